//! Taps: values inside a graph as outputs of their own, so that a run gives them back.

use crate::graph::{Graph, Named, Node, NodeKind, ValueId};
use crate::pattern;
use crate::types::DType;
use indexmap::IndexSet;

/// A value that was tapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    /// Name of the output that gives it: `tap:` and the name that matched, with the number of the value where that name is taken.
    pub output: String,
    /// The value.
    pub value: ValueId,
}

/// A pattern that names no value, or one that cannot be given back. The caller's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TapError {
    /// Nothing has this name.
    #[error(
        "no value of graph @{graph} is {pattern:?}\n  help: give a number such as %3, the name of an input, param, state or output, or a scope; {}",
        near_line(.near)
    )]
    Unknown {
        /// As given.
        pattern: String,
        /// The graph.
        graph: String,
        /// Names that are like it.
        near: Vec<String>,
    },
    /// Quantized weights are no results.
    #[error("{pattern:?} is a value of type i8, which no run gives back\n  help: tap the cast that reads it")]
    Quantized {
        /// As given.
        pattern: String,
    },
}

fn near_line(near: &[String]) -> String {
    if near.is_empty() { "it has no scopes".to_owned() } else { format!("there are {}", near.join(", ")) }
}

impl Graph {
    /// The same graph with an output for each value that a pattern names, and what they are, in the order of the patterns.
    ///
    /// A pattern is the number of a value (`%12`), the name of an input, param, state or output, or a scope, which stands for
    /// its last value (`layers.0/mixer/in_proj`); in names and scopes `*` stands for any text and `?` for any character. What
    /// is tapped is stored, so the plan may fuse less than without.
    ///
    /// # Errors
    /// [`TapError`].
    pub fn with_taps(&self, patterns: &[impl AsRef<str>]) -> Result<(Self, Vec<Tap>), TapError> {
        let mut found: IndexSet<(String, ValueId)> = IndexSet::new();
        for pattern in patterns.iter().map(AsRef::as_ref) {
            let values = self.matching(pattern);
            if values.is_empty() {
                let near = self.near(pattern);
                return Err(TapError::Unknown { pattern: pattern.to_owned(), graph: self.name.clone(), near });
            }
            if values.iter().any(|&(_, value)| self.ty(value).dtype == DType::I8) {
                return Err(TapError::Quantized { pattern: pattern.to_owned() });
            }
            found.extend(values);
        }
        let taps = self.named_taps(found);
        Ok((self.tapping(&taps), taps))
    }

    /// The same graph with these outputs beside its own.
    #[must_use]
    pub fn tapping(&self, taps: &[Tap]) -> Self {
        let mut graph = self.clone();
        graph.outputs.extend(taps.iter().map(|tap| Named { name: tap.output.clone(), value: tap.value }));
        graph
    }

    /// A name of its own for each value: an input, a state and an output may have one name.
    fn named_taps(&self, found: IndexSet<(String, ValueId)>) -> Vec<Tap> {
        let numbers = self.numbering();
        let mut taken: IndexSet<String> = self.outputs.iter().map(|named| named.name.clone()).collect();
        let mut tap = |(name, value)| {
            let mut output = format!("tap:{name}");
            while !taken.insert(output.clone()) {
                output = format!("{output} %{}", numbers.of(value));
            }
            Tap { output, value }
        };
        found.into_iter().map(&mut tap).collect()
    }

    /// Name and value of all that a pattern matches, in graph order.
    fn matching(&self, pattern: &str) -> Vec<(String, ValueId)> {
        if let Some(number) = pattern.strip_prefix('%') {
            let numbers = self.numbering();
            let values = self.nodes().flat_map(|(_, node)| node.results.iter().copied());
            let is_it = |value: &ValueId| number.parse() == Ok(numbers.of(*value));
            return values.filter(is_it).map(|value| (pattern.to_owned(), value)).collect();
        }
        let sources = self.sources().map(|(name, value, _)| (name, value));
        let outputs = self.outputs.iter().map(|named| (named.name.as_str(), named.value));
        let named = sources.chain(outputs).chain(self.scopes());
        let mut seen = IndexSet::new();
        let matching = named.filter(|(name, value)| pattern::matches(pattern, name) && seen.insert((*name, *value)));
        matching.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Each scope with its last value, in graph order of the first.
    fn scopes(&self) -> impl Iterator<Item = (&str, ValueId)> {
        let mut last: indexmap::IndexMap<&str, ValueId> = indexmap::IndexMap::new();
        let is_op = |node: &&Node| matches!(node.kind, NodeKind::Op(_)) && !node.scope.is_empty();
        for node in self.nodes().map(|(_, node)| node).filter(is_op) {
            if let Some(&value) = node.results.first() {
                last.insert(&node.scope, value);
            }
        }
        last.into_iter()
    }

    /// Scopes and names that share a part with a pattern, or else the first few.
    fn near(&self, wanted: &str) -> Vec<String> {
        const SHOWN: usize = 6;
        let sources = self.sources().map(|(name, ..)| name);
        let all: IndexSet<&str> = self.scopes().map(|(name, _)| name).chain(sources).collect();
        let parts: Vec<&str> = wanted.split(['/', '.', '*', '?']).filter(|part| part.len() > 2).collect();
        let like: Vec<&str> = all.iter().copied().filter(|name| parts.iter().any(|part| name.contains(part))).take(SHOWN).collect();
        let shown = if like.is_empty() { all.into_iter().take(SHOWN).collect() } else { like };
        shown.into_iter().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::text;

    const TEXT: &str = r#"ir 1
graph @g {
  %0 = input "x" : f32[3, 5]
  %1 = param "layers.0.w" : f32[5]
  %2 = param "q" : i8[3, 5]
  %3 = cast %2 {dtype = f32} : f32[3, 5] @ layers.0/mixer
  %4 = mul %0, %1 : f32[3, 5] @ layers.0/mixer
  %5 = add %4, %3 : f32[3, 5] @ layers.1/mixer
  %6 = exp %5 : f32[3, 5] @ layers.1/mixer
  output "y" = %6
}
"#;

    fn outputs(patterns: &[&str]) -> Result<Vec<(String, u32)>, String> {
        let graph = text::parse_one(TEXT).unwrap();
        let (tapped, taps) = graph.with_taps(patterns).map_err(|error| error.to_string())?;
        crate::verify::verify(&tapped).unwrap();
        assert_eq!(tapped.outputs.len(), 1 + taps.len());
        Ok(taps.iter().map(|tap| (tap.output.clone(), graph.numbering().of(tap.value))).collect())
    }

    #[test]
    fn values_are_found_by_number_name_and_scope() {
        let found = outputs(&["%4", "x", "layers.*/mixer", "layers.0.w", "y"]).unwrap();
        let expected =
            [("tap:%4", 4), ("tap:x", 0), ("tap:layers.0/mixer", 4), ("tap:layers.1/mixer", 6), ("tap:layers.0.w", 1), ("tap:y", 6)];
        assert_eq!(found, expected.map(|(name, number)| (name.to_owned(), number)));
        assert_eq!(outputs(&["x", "x"]).unwrap().len(), 1, "once is enough");
    }

    #[test]
    fn values_of_one_name_are_told_apart() {
        let text = TEXT.replace("output \"y\"", "output \"x\"");
        let graph = text::parse_one(&format!("{}  output \"tap:layers.0.w\" = %4\n}}\n", text.trim_end().trim_end_matches('}'))).unwrap();
        let (tapped, taps) = graph.with_taps(&["x", "layers.0.w"]).unwrap();
        let names: Vec<&str> = taps.iter().map(|tap| tap.output.as_str()).collect();
        assert_eq!(names, ["tap:x", "tap:x %6", "tap:layers.0.w %1"]);
        crate::verify::verify(&tapped).unwrap();
    }

    #[test]
    fn what_is_not_there_is_said_with_what_is_like_it() {
        let error = outputs(&["layers.7/mixer"]).unwrap_err();
        assert!(
            error.starts_with("no value of graph @g is \"layers.7/mixer\"")
                && error.ends_with("layers.0/mixer, layers.1/mixer, layers.0.w"),
            "{error}"
        );
        assert!(outputs(&["%9"]).is_err() && outputs(&["%x"]).is_err() && outputs(&[""]).is_err());
        assert!(outputs(&["q"]).unwrap_err().contains("no run gives back"));
    }
}
