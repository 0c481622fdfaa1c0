//! Names by pattern.

/// Whether `text` matches `pattern`, where `*` stands for any text and `?` for any character.
#[must_use]
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    // `reach[i]`: whether the pattern read so far matches the first `i` characters.
    let mut reach = vec![false; text.len() + 1];
    reach[0] = true;
    for &symbol in &pattern {
        if symbol == '*' {
            let first = reach.iter().position(|&is_reached| is_reached).unwrap_or(reach.len());
            reach[first..].fill(true);
        } else {
            for i in (0..text.len()).rev() {
                reach[i + 1] = reach[i] && (symbol == '?' || symbol == text[i]);
            }
            reach[0] = false;
        }
    }
    reach[text.len()]
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_match_any_text() {
        assert!(matches("*", "") && matches("a*c*", "abcc") && matches("**b", "ab"));
        assert!(!matches("a?", "a") && !matches("", "a") && !matches("a*d", "abc"));
    }
}
