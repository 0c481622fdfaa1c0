//! Text out of tokens as they come: whole characters, and an end at a given text.

/// Bytes as text: a character comes out when it is whole, and U+FFFD for what cannot become one.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// The text that a further byte completes; empty within a character.
    pub fn push(&mut self, byte: u8) -> String {
        self.pending.push(byte);
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(rest) => {
                    text.push_str(rest);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let (valid, rest) = self.pending.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(n_bad) = error.error_len() else {
                        self.pending = rest.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.pending = rest[n_bad..].to_vec();
                }
            }
        }
    }

    /// What is left at the end, U+FFFD if it is part of a character.
    #[must_use]
    pub fn finish(&self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// Text up to the first of some texts. What could be the beginning of one is held back until it is known.
#[derive(Clone, Debug, Default)]
pub struct StopTexts {
    stops: Vec<String>,
    held: String,
    is_over: bool,
}

impl StopTexts {
    /// Text that ends before any of `stops`; empty ones are none.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(), ..Self::default() }
    }

    /// Takes more text and gives what is certain; after the end nothing.
    pub fn push(&mut self, text: &str) -> String {
        if self.is_over {
            return String::new();
        }
        self.held.push_str(text);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.is_over = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let is_beginning = |at: usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..]));
        let n_certain = self.held.char_indices().map(|(at, _)| at).find(|&at| is_beginning(at)).unwrap_or(self.held.len());
        let rest = self.held.split_off(n_certain);
        std::mem::replace(&mut self.held, rest)
    }

    /// Whether one of the texts came.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// What was held back, when no more comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed(bytes: &[u8]) -> (Vec<String>, String) {
        let mut stream = Utf8Stream::default();
        let parts = bytes.iter().map(|&byte| stream.push(byte)).collect();
        (parts, stream.finish())
    }

    #[test]
    fn characters_come_out_whole() {
        let (parts, rest) = streamed("aé€".as_bytes());
        assert_eq!((parts, rest.as_str()), (["a", "", "é", "", "", "€"].map(str::to_owned).into(), ""));
    }

    #[test]
    fn what_is_no_text_is_replaced_as_a_whole_file_would_be() {
        for bytes in [&b"\xffa"[..], b"\xc3\xc3\xa9", b"\xe2\x82", b"\x80\xf0\x9f\x92b", b"\xed\xa0\x80"] {
            let (parts, rest) = streamed(bytes);
            assert_eq!(parts.concat() + &rest, String::from_utf8_lossy(bytes));
        }
    }

    fn stopped(stops: &[&str], parts: &[&str]) -> (Vec<String>, String, bool) {
        let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
        let mut text = StopTexts::new(&stops);
        let given = parts.iter().map(|part| text.push(part)).collect();
        (given, text.finish(), text.is_over())
    }

    #[test]
    fn text_ends_before_a_stop_wherever_parts_begin() {
        let owned = |parts: &[&str]| parts.iter().map(|&part| part.to_owned()).collect::<Vec<_>>();
        assert_eq!(stopped(&["\n\n"], &["a\n", "b\n", "\nc", "d"]), (owned(&["a", "\nb", "", ""]), String::new(), true));
        assert_eq!(stopped(&["END", "é!"], &["E", "N", "x é", "EN"]), (owned(&["", "", "ENx ", "é"]), "EN".to_owned(), false));
        // The first one in the text counts, and not the first one of the list.
        assert_eq!(stopped(&["cd", "b"], &["abcd"]), (owned(&["a"]), String::new(), true));
        assert_eq!(stopped(&[""], &["abc"]), (owned(&["abc"]), String::new(), false));
        assert_eq!(stopped(&["aab"], &["a", "a", "a", "b", "c"]), (owned(&["", "", "a", "", ""]), String::new(), true));
    }
}
