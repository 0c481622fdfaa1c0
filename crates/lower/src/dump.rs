//! Where texts of intermediate forms go. The compiler only names them; who calls it decides about files.

/// Takes a text under a name such as `01-canonicalize.ir`, `plan.txt` or `k0.wgsl`.
pub trait DumpSink {
    /// Takes one text.
    fn dump(&mut self, name: &str, text: &str);

    /// Whether texts are wanted at all; callers need not make them otherwise.
    fn wants_text(&self) -> bool {
        true
    }
}

/// Drops every text.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDump;

impl DumpSink for NoDump {
    fn dump(&mut self, _name: &str, _text: &str) {}

    fn wants_text(&self) -> bool {
        false
    }
}

/// Keeps every text with its name, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dumps(pub Vec<(String, String)>);

impl DumpSink for Dumps {
    fn dump(&mut self, name: &str, text: &str) {
        self.0.push((name.to_owned(), text.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_kept_in_order_or_dropped() {
        let mut dumps = Dumps::default();
        for sink in [&mut dumps as &mut dyn DumpSink, &mut NoDump] {
            if sink.wants_text() {
                sink.dump("00-input.ir", "ir 1");
                sink.dump("plan.txt", "plan 1");
            }
        }
        assert_eq!(dumps.0.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["00-input.ir", "plan.txt"]);
    }
}
