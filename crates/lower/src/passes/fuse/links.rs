//! Which group needs which; asked before two are joined, so that no group comes to need itself.

use super::Group;
use indexmap::IndexSet;

/// Groups and what they need directly.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    needs: Vec<IndexSet<Group>>,
}

impl Links {
    /// A new group.
    pub(super) fn add(&mut self, needs: impl IntoIterator<Item = Group>) -> Group {
        self.needs.push(needs.into_iter().collect());
        self.needs.len() - 1
    }

    /// Number of groups.
    pub(super) fn len(&self) -> usize {
        self.needs.len()
    }

    /// Adds needs of a group; a group does not need itself.
    pub(super) fn extend(&mut self, group: Group, needs: impl IntoIterator<Item = Group>) {
        self.needs[group].extend(needs.into_iter().filter(|&need| need != group));
    }

    /// Forgets all needs, for a count of groups from now on.
    pub(super) fn reset(&mut self, n_groups: usize) {
        self.needs = vec![IndexSet::new(); n_groups];
    }

    /// Lets `into` stand for `from` as well.
    pub(super) fn merge(&mut self, into: Group, from: Group) {
        let needs = std::mem::take(&mut self.needs[from]);
        self.extend(into, needs.into_iter().filter(|&need| need != into));
        for (group, needs) in self.needs.iter_mut().enumerate() {
            if needs.shift_remove(&from) && group != into {
                needs.insert(into);
            }
        }
    }

    /// Whether two groups need each other through a third.
    pub(super) fn are_apart(&self, a: Group, b: Group) -> bool {
        let through = |from: Group, to: Group| self.needs(from).any(|need| need != to && self.reaches(need, to));
        through(a, b) || through(b, a)
    }

    /// Direct needs.
    pub(super) fn needs(&self, group: Group) -> impl Iterator<Item = Group> + '_ {
        self.needs[group].iter().copied()
    }

    /// Whether `from` needs `to`, directly or through others; a group reaches itself.
    pub(super) fn reaches(&self, from: Group, to: Group) -> bool {
        let mut seen = vec![false; self.needs.len()];
        let mut open = vec![from];
        while let Some(group) = open.pop() {
            if group == to {
                return true;
            }
            if std::mem::replace(&mut seen[group], true) {
                continue;
            }
            open.extend(self.needs(group));
        }
        false
    }

    /// Whether a group would need itself if it also needed these.
    pub(super) fn would_cycle(&self, group: Group, needs: &[Group]) -> bool {
        needs.iter().any(|&need| need != group && self.reaches(need, group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_that_leads_back_is_a_cycle() {
        let mut links = Links::default();
        let a = links.add([]);
        let b = links.add([a]);
        let c = links.add([b]);
        assert!(links.are_apart(a, c) && !links.are_apart(a, b));
        assert!(links.would_cycle(a, &[c]) && !links.would_cycle(c, &[a]) && !links.would_cycle(b, &[b]));
    }
}
