//! JSON with the numbers that strict JSON lacks: infinity and NaN in the two spellings found in checkpoints.

use indexmap::IndexSet;
use serde_json::Value;

/// Key of the object that stands for a number which JSON lacks: `{"__float__": "Infinity"}`.
const FLOAT_KEY: &str = "__float__";

/// Parses JSON in which bare `Infinity`, `-Infinity` and `NaN` may stand where a value may.
pub(crate) fn parse(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(&with_strict_numbers(text))
}

/// A number in any spelling.
pub(crate) fn number(value: &Value) -> Option<f64> {
    if let Some(number) = value.as_f64() {
        return Some(number);
    }
    match value.as_object()?.get(FLOAT_KEY)?.as_str()? {
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        _ => None,
    }
}

/// A whole number that is not negative; also one that is written with a point, such as `2.0`.
pub(crate) fn count(value: &Value) -> Option<usize> {
    if let Some(count) = value.as_u64() {
        return usize::try_from(count).ok();
    }
    let number = value.as_f64()?;
    let is_count = number >= 0.0 && number <= f64::from(u32::MAX) && number.fract() == 0.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number between 0 and 2^32")]
    let count = number as usize;
    is_count.then_some(count)
}

/// The limits of a time step, `[lo, hi]`; an upper limit of `null`, infinity or the string `Infinity` is the largest f32,
/// since kernels know no infinity.
pub(crate) fn dt_limit(value: &Value) -> Option<[f32; 2]> {
    let [lo, hi] = value.as_array()?.as_slice() else { return None };
    let hi = if hi.is_null() || hi == "Infinity" { f64::INFINITY } else { number(hi)? };
    let (lo, hi) = (to_f32(number(lo)?), to_f32(hi));
    Some([lo, if hi == f32::INFINITY { f32::MAX } else { hi }])
}

#[expect(clippy::cast_possible_truncation, reason = "rounded to f32 on purpose")]
const fn to_f32(number: f64) -> f32 {
    number as f32
}

/// Text of JSON with the numbers that it lacks as bare words again, for messages.
pub(crate) fn with_words(text: &str) -> String {
    let bare = |text: String, word: &str| text.replace(&format!("{{\"{FLOAT_KEY}\":\"{word}\"}}"), word);
    ["-Infinity", "Infinity", "NaN"].into_iter().fold(text.to_owned(), bare)
}

/// A key that stands twice in one object of valid JSON, of which parsers keep the last only.
pub(crate) fn twice(text: &str) -> Option<String> {
    let mut objects: Vec<IndexSet<&str>> = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = if first == '"' { string_len(rest) } else { first.len_utf8() };
        let (token, after) = rest.split_at(len);
        let is_key = first == '"' && after.trim_start().starts_with(':');
        if is_key && objects.last_mut().is_some_and(|keys| !keys.insert(token)) {
            return Some(token.trim_matches('"').to_owned());
        }
        match first {
            '{' => objects.push(IndexSet::new()),
            '}' => drop(objects.pop()),
            _ => {}
        }
        rest = after;
    }
    None
}

/// The text with bare infinities and NaN, outside of strings, in the form that [`number`] reads.
fn with_strict_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let taken = if first == '"' {
            let len = string_len(rest);
            out.push_str(&rest[..len]);
            len
        } else if let Some(word) = ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| rest.starts_with(word)) {
            out.push_str(&format!("{{\"{FLOAT_KEY}\":\"{word}\"}}"));
            word.len()
        } else {
            out.push(first);
            first.len_utf8()
        };
        rest = &rest[taken..];
    }
    out
}

/// Bytes of the string literal that `text` starts with, quotes included; all of it if it does not end.
fn string_len(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_are_read_outside_of_strings_only() {
        let value =
            parse(r#"{"a": [0.5, Infinity], "b": -Infinity, "c": "NaN \" Infinity", "d": NaN, "é": {"__float__": "Infinity"}}"#).unwrap();
        assert_eq!(dt_limit(&value["a"]), Some([0.5, f32::MAX]));
        assert_eq!(number(&value["b"]), Some(f64::NEG_INFINITY));
        assert_eq!(value["c"], "NaN \" Infinity");
        assert!(number(&value["d"]).is_some_and(f64::is_nan));
        assert_eq!(number(&value["é"]), Some(f64::INFINITY));
    }

    #[test]
    fn a_key_that_stands_twice_is_found_in_its_object_only() {
        assert_eq!(twice(r#"{"a": {"b": "a"}, "b": [{"b": 1}, {"b": "b"}], "c": "\"c\": {"}"#), None);
        assert_eq!(twice(r#"{"a": [{"b": 1}, {"c": 1, "b" : 2, "c"  : 3}]}"#).as_deref(), Some("c"));
        assert_eq!(twice(r#"{"a": {"b": {}}, "a": 1}"#).as_deref(), Some("a"));
    }

    #[test]
    fn a_lower_limit_stays_infinite() {
        let limit = |text| dt_limit(&parse(text).unwrap());
        assert_eq!(limit("[Infinity, Infinity]"), Some([f32::INFINITY, f32::MAX]));
        assert_eq!(limit(r#"[0, "Infinity"]"#), Some([0.0, f32::MAX]));
        assert_eq!(limit(r#"["Infinity", 1]"#), None);
        assert_eq!(with_words(&parse("[NaN, -Infinity]").unwrap().to_string()), "[NaN,-Infinity]");
    }

    #[test]
    fn a_broken_text_stays_broken() {
        assert!(parse("{\"a\": \"Infinity").is_err());
        assert!(parse("{\"a\": Infinit}").is_err());
        assert!(parse("").is_err());
    }

    #[test]
    fn counts_are_whole() {
        assert_eq!(count(&serde_json::json!(2.0)), Some(2));
        assert_eq!(count(&serde_json::json!(2.5)), None);
        assert_eq!(count(&serde_json::json!(-1)), None);
        assert_eq!(dt_limit(&serde_json::json!([0.1, null])), Some([0.1, f32::MAX]));
    }
}
