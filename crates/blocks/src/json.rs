//! JSON with the numbers that strict JSON lacks: infinity and NaN in the two spellings found in checkpoints.

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

/// The limits of a time step, `[lo, hi]`; an upper limit of `null` or infinity is the largest f32.
pub(crate) fn dt_limit(value: &Value) -> Option<[f32; 2]> {
    let [lo, hi] = value.as_array()?.as_slice() else { return None };
    let hi = if hi.is_null() { f64::INFINITY } else { number(hi)? };
    Some([to_f32(number(lo)?), to_f32(hi)])
}

/// An f64 as f32, infinity as the largest finite number, since kernels know no infinity.
fn to_f32(number: f64) -> f32 {
    #[expect(clippy::cast_possible_truncation, reason = "rounded to f32 on purpose")]
    let number = number as f32;
    if number.is_nan() { number } else { number.clamp(f32::MIN, f32::MAX) }
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
