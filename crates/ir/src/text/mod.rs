//! The text form of graphs (`.ir`): printing, and parsing back to the same graph.
//!
//! ```text
//! file   := "ir" INT graph*          graph := "graph" "@"NAME "{" line* "}"        comment := "//" to end of line
//! line   := value ("," value)* "=" rhs ":" type ("," type)* ("@" scope)?  |  ("output" | "update") STR "=" value
//! rhs    := ("input" | "state") STR dynamic?  |  "param" STR  |  "const" number  |  MNEMONIC (operand ("," operand)*)? attrs?
//! value  := "%"NAME                  operand := value | "_"                  dynamic := "{" "dynamic" "=" "[" INT ("," INT)* "]" "}"
//! attrs  := "{" NAME "=" literal ("," …)* "}"                                type := DTYPE "[" (INT ("," INT)*)? "]"
//! ```
//!
//! Printing numbers the values densely, leaves out attributes that have their default, and writes floats so that they
//! read back exactly; equal graphs print equal bytes. Source locations are not part of the text. A scope of letters,
//! digits and `._/-` stands bare, any other as a string. Parsing accepts any layout of lines and any value names.

mod lex;
mod parse;
mod print;

pub use parse::{parse, parse_one};
pub use print::{print, print_all};

/// The version after `ir` on the first line.
pub const VERSION: u32 = 1;

/// Whether `name` is an identifier: a letter or underscore, then letters, digits and underscores.
#[must_use]
pub fn is_identifier(name: &str) -> bool {
    name.starts_with(lex::is_word_start) && name.chars().all(lex::is_word_char)
}
