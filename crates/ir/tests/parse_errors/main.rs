//! Guards the errors of the parser: what they say, where they point, and how they say to mend it.

mod attributes;
mod form;
mod names;
mod operands;
mod types;

use monopass_ir::text;

/// A graph around the lines under test: `%0` is an input, `%1` a param, `%2` a state.
const HEAD: &str = r#"ir 1
graph @g {
  %0 = input "x" : f32[3, 5]
  %1 = param "w" : f32[7, 5]
  %2 = state "s" : f32[3, 7]
"#;

/// The error of a text, or that it has none.
pub(crate) fn error_of_text(text: &str) -> String {
    text::parse(text).map_or_else(|error| error.to_string(), |graphs| format!("no error, {} graphs", graphs.len()))
}

/// The error of a graph with these lines; they begin on line 6.
pub(crate) fn error_of(lines: &str) -> String {
    error_of_text(&format!("{HEAD}{lines}\n}}\n"))
}
