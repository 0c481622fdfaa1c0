//! Cuts a text into tokens, on demand, because a scope path after `@` has characters that are punctuation elsewhere.

use crate::error::ParseError;

/// A token; text without what marks its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'t> {
    /// A keyword, mnemonic, element type, attribute name or `_`.
    Word(&'t str),
    /// Digits with optional sign, point and exponent.
    Number(&'t str),
    /// What follows `%`.
    Value(&'t str),
    /// What stands between quotes, not yet unescaped.
    Str(&'t str),
    /// One of `@ { } [ ] = : ,`.
    Punct(char),
    /// The end of the text.
    End,
}

/// A token and the bytes it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lexeme<'t> {
    pub(super) token: Token<'t>,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// A mistake at a byte of the text; [`Fault::locate`] makes it an error with line and caret.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) message: String,
    pub(super) help: Option<String>,
}

pub(super) const fn is_word_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

pub(super) const fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

pub(super) const fn is_scope_char(c: char) -> bool {
    is_word_char(c) || matches!(c, '.' | '/' | '-')
}

/// The tokens of a text from left to right.
#[derive(Debug)]
pub(super) struct Lexer<'t> {
    text: &'t str,
    at: usize,
    peeked: Option<Lexeme<'t>>,
}

impl<'t> Lexer<'t> {
    pub(super) const fn new(text: &'t str) -> Self {
        Self { text, at: 0, peeked: None }
    }

    /// The next token, which stays next.
    pub(super) fn peek(&mut self) -> Result<Lexeme<'t>, Fault> {
        if let Some(lexeme) = self.peeked {
            return Ok(lexeme);
        }
        let lexeme = self.lex()?;
        self.peeked = Some(lexeme);
        Ok(lexeme)
    }

    /// The next token.
    pub(super) fn next(&mut self) -> Result<Lexeme<'t>, Fault> {
        let lexeme = self.peek()?;
        self.peeked = None;
        self.at = lexeme.end;
        Ok(lexeme)
    }

    /// A bare scope path on the same line; `None` if the next character does not belong to one. Call it only when
    /// nothing is peeked.
    pub(super) fn scope(&mut self) -> Option<Lexeme<'t>> {
        self.at += prefix_len(self.rest(), |c| matches!(c, ' ' | '\t'));
        let (start, rest) = (self.at, self.rest());
        let comment = rest.find("//").unwrap_or(rest.len());
        let len = rest.find(|c| !is_scope_char(c)).unwrap_or(rest.len()).min(comment);
        self.at += len;
        (len > 0).then(|| Lexeme { token: Token::Word(&rest[..len]), start, end: start + len })
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn lex(&mut self) -> Result<Lexeme<'t>, Fault> {
        self.skip_space();
        let rest = self.rest();
        let Some(first) = rest.chars().next() else {
            return Ok(Lexeme { token: Token::End, start: self.at, end: self.at });
        };
        let (token, len) = match first {
            '@' | '{' | '}' | '[' | ']' | '=' | ':' | ',' => (Token::Punct(first), 1),
            '%' => self.value(rest)?,
            '"' => self.string(rest)?,
            '-' | '0'..='9' => self.number(rest)?,
            c if is_word_start(c) => {
                let len = prefix_len(rest, is_word_char);
                (Token::Word(&rest[..len]), len)
            }
            c => return Err(self.fault(format!("unexpected character {c:?}"))),
        };
        Ok(Lexeme { token, start: self.at, end: self.at + len })
    }

    fn skip_space(&mut self) {
        if self.at == 0 && self.text.starts_with('\u{feff}') {
            self.at = '\u{feff}'.len_utf8();
        }
        loop {
            let rest = self.rest();
            let len = if rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else {
                prefix_len(rest, |c| matches!(c, ' ' | '\t' | '\r' | '\n'))
            };
            if len == 0 {
                return;
            }
            self.at += len;
        }
    }

    fn value(&self, rest: &'t str) -> Result<(Token<'t>, usize), Fault> {
        let len = 1 + prefix_len(&rest[1..], is_word_char);
        if len == 1 {
            return Err(self.fault("a value needs a name or number after %".to_owned()));
        }
        Ok((Token::Value(&rest[1..len]), len))
    }

    fn string(&self, rest: &'t str) -> Result<(Token<'t>, usize), Fault> {
        let mut is_escaped = false;
        for (i, c) in rest.char_indices().skip(1) {
            match c {
                '\n' => break,
                '"' if !is_escaped => return Ok((Token::Str(&rest[1..i]), i + 1)),
                _ => is_escaped = c == '\\' && !is_escaped,
            }
        }
        let help = "end it with \" on the same line; write a quote as \\\" and a line break as \\n";
        Err(Fault { at: self.at, message: "the string is not closed".to_owned(), help: Some(help.to_owned()) })
    }

    fn number(&self, rest: &'t str) -> Result<(Token<'t>, usize), Fault> {
        let digits = |from: usize| from + prefix_len(&rest[from..], |c| c.is_ascii_digit());
        let start = usize::from(rest.starts_with('-'));
        let mut end = digits(start);
        let mut is_good = end > start;
        if is_good && rest[end..].starts_with('.') {
            end = digits(end + 1);
        }
        if is_good && rest[end..].starts_with(['e', 'E']) {
            let exponent = end + 1 + usize::from(rest[end + 1..].starts_with(['+', '-']));
            end = digits(exponent);
            is_good = end > exponent;
        }
        if is_good && !rest[end..].starts_with(is_word_char) {
            return Ok((Token::Number(&rest[..end]), end));
        }
        let help = "numbers look like 3, -0.5 or 1e-6; infinity and NaN have no text form";
        Err(Fault { at: self.at, message: "bad number".to_owned(), help: Some(help.to_owned()) })
    }

    const fn fault(&self, message: String) -> Fault {
        Fault { at: self.at, message, help: None }
    }
}

fn prefix_len(text: &str, test: impl Fn(char) -> bool) -> usize {
    text.find(|c| !test(c)).unwrap_or(text.len())
}

/// The characters that a string between quotes stands for; `at` is the byte after the opening quote.
pub(super) fn unescape(raw: &str, at: usize) -> Result<String, Fault> {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(slash) = rest.find('\\') {
        text.push_str(&rest[..slash]);
        let escape = &rest[slash + 1..];
        let (c, len) = escape_char(escape).ok_or_else(|| Fault {
            at: at + raw.len() - escape.len() - 1,
            message: "unknown escape in a string".to_owned(),
            help: Some("known are \\\" \\\\ \\n \\r \\t and \\u{hex}".to_owned()),
        })?;
        text.push(c);
        rest = &escape[len..];
    }
    text.push_str(rest);
    Ok(text)
}

fn escape_char(escape: &str) -> Option<(char, usize)> {
    let simple = match escape.chars().next()? {
        '"' => '"',
        '\\' => '\\',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'u' => {
            let hex = escape.strip_prefix("u{")?.split_once('}')?.0;
            let is_hex = !hex.is_empty() && hex.len() <= 6 && hex.bytes().all(|b| b.is_ascii_hexdigit());
            let c = char::from_u32(u32::from_str_radix(hex, 16).ok().filter(|_| is_hex)?)?;
            return Some((c, "u{}".len() + hex.len()));
        }
        _ => return None,
    };
    Some((simple, 1))
}

impl Fault {
    /// The error at its line, with a caret. Of a long line only the surroundings are shown.
    pub(super) fn locate(self, text: &str) -> ParseError {
        const SHOWN_BEFORE: usize = 80;
        const SHOWN: usize = 120;
        let mut at = self.at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let line_start = text[..at].rfind('\n').map_or(0, |i| i + 1);
        let line_text = text[line_start..].lines().next().unwrap_or("");
        let column_idx = text[line_start..at].chars().count();
        let first_shown = column_idx.saturating_sub(SHOWN_BEFORE);
        let visible = |c: char| {
            if c == '\t' {
                ' '
            } else if c.is_control() {
                '\u{fffd}'
            } else {
                c
            }
        };
        ParseError {
            message: self.message,
            line: line_of(text, at),
            column: column_idx + 1,
            text: line_text.chars().skip(first_shown).take(SHOWN).map(visible).collect(),
            caret: format!("{}^", " ".repeat(column_idx - first_shown)),
            help: self.help,
        }
    }
}

/// Line of a byte, from 1.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|&&b| b == b'\n').count() + 1
}
