//! Reads graphs from text, and stops at the first mistake with its place.
//!
//! Never panics, whatever the text, and needs memory in proportion to it: nothing in the grammar nests, lists have at
//! most [`MAX_RANK`] numbers, and every graph that comes out has passed [`verify`](crate::verify::verify).

use super::lex::{Fault, Lexeme, Lexer, Token, line_of, unescape};
use super::{VERSION, is_identifier};
use crate::error::{ParseError, VerifyErrors};
use crate::graph::{Graph, Named, NodeKind, ValueId};
use crate::op::{Literal, OPS, Op, OpTextError};
use crate::ops;
use crate::types::{DType, MAX_ELEMS, MAX_RANK, TensorType};
use indexmap::IndexMap;
use std::sync::Arc;

/// All graphs of a text, verified.
///
/// # Errors
/// The first mistake, with its line and how to fix it.
pub fn parse(text: &str) -> Result<Vec<Graph>, ParseError> {
    Parser::new(text).file().map(|(graphs, _)| graphs).map_err(|fault| fault.locate(text))
}

/// The graph of a text that has exactly one.
///
/// # Errors
/// The first mistake, or that the text has no graph or several.
pub fn parse_one(text: &str) -> Result<Graph, ParseError> {
    let (mut graphs, places) = Parser::new(text).file().map_err(|fault| fault.locate(text))?;
    let n_graphs = graphs.len();
    match (graphs.pop(), places.get(1)) {
        (Some(graph), None) => Ok(graph),
        (_, second) => {
            let message = format!("one graph is wanted, the text has {n_graphs}");
            Err(Fault { at: second.map_or(text.len(), |at| *at), message, help: None }.locate(text))
        }
    }
}

struct Parser<'t> {
    text: &'t str,
    lexer: Lexer<'t>,
    /// Where the last token ended: a missing token is missing there, not on a later line.
    last_end: usize,
}

/// A graph being read.
struct Body<'t> {
    graph: Graph,
    /// Values by their name in the text, with the place of their definition.
    values: IndexMap<&'t str, (ValueId, usize)>,
    sources: IndexMap<String, (ValueId, usize)>,
    outputs: IndexMap<String, usize>,
    updates: IndexMap<String, usize>,
}

/// A type or attribute with its place.
#[derive(Clone, Copy)]
struct At<T> {
    what: T,
    at: usize,
}

type Parsed<T> = Result<T, Fault>;

fn fault<T>(at: usize, message: impl Into<String>, help: impl Into<Option<String>>) -> Parsed<T> {
    Err(Fault { at, message: message.into(), help: help.into() })
}

impl Body<'_> {
    /// The first of the verifier's errors, at the line of its value or else at `at`.
    fn fault_of(&self, errors: VerifyErrors, at: usize) -> Fault {
        let Some(error) = errors.0.into_iter().next() else {
            return Fault { at, message: "the graph is not valid".to_owned(), help: None };
        };
        // Values were added in graph order, which is the order of their numbers.
        let place = error.site.value.and_then(|number| self.values.get_index(number as usize)).map(|(_, (_, place))| *place);
        Fault { at: place.unwrap_or(at), message: error.message, help: error.help }
    }
}

impl<'t> Parser<'t> {
    const fn new(text: &'t str) -> Self {
        Self { text, lexer: Lexer::new(text), last_end: 0 }
    }

    /// `"ir" INT graph*`: the graphs and where each begins.
    fn file(&mut self) -> Parsed<(Vec<Graph>, Vec<usize>)> {
        let first = self.lexer.peek()?;
        if first.token != Token::Word("ir") {
            return fault(
                first.start,
                format!("expected ir, found {}", describe(first.token)),
                format!("the first line of a text is ir {VERSION}"),
            );
        }
        self.next()?;
        let version = self.int("the version of the text form")?;
        if version.what != VERSION as usize {
            return fault(
                version.at,
                format!("version {} of the text form is not known", version.what),
                format!("this program reads version {VERSION}"),
            );
        }
        let mut graphs: Vec<Graph> = Vec::new();
        let mut places: IndexMap<String, usize> = IndexMap::new();
        while self.lexer.peek()?.token != Token::End {
            let (graph, at) = self.graph()?;
            if let Some(before) = places.insert(graph.name.clone(), at) {
                return self.twice(at, &format!("graph @{}", graph.name), before);
            }
            graphs.push(graph);
        }
        Ok((graphs, places.into_values().collect()))
    }

    /// `"graph" "@"NAME "{" line* "}"`.
    fn graph(&mut self) -> Parsed<(Graph, usize)> {
        self.keyword("graph")?;
        self.punct('@')?;
        let (name, at) = self.word("the name of the graph")?;
        if !is_identifier(name) {
            return fault(at, format!("{name:?} is not an identifier"), None);
        }
        let open = self.punct('{')?;
        let mut body = Body {
            graph: Graph::new(name),
            values: IndexMap::new(),
            sources: IndexMap::new(),
            outputs: IndexMap::new(),
            updates: IndexMap::new(),
        };
        loop {
            let next = self.lexer.peek()?;
            match next.token {
                Token::Value(_) => self.node(&mut body)?,
                Token::Word("output") => self.output(&mut body)?,
                Token::Word("update") => self.update(&mut body)?,
                Token::Punct('}') => break,
                Token::End => return fault(open, "the graph is not closed", "end it with }".to_owned()),
                Token::Word(_) | Token::Number(_) | Token::Str(_) | Token::Punct(_) => {
                    let message = format!("expected a value, output, update or }}, found {}", describe(next.token));
                    return fault(next.start, message, "a line looks like %3 = exp %2 : f32[4]".to_owned());
                }
            }
        }
        self.next()?;
        // What the checks above leave to the verifier is rare, or concerns the graph as a whole.
        match crate::verify::verify(&body.graph) {
            Ok(()) => Ok((body.graph, at)),
            Err(errors) => Err(body.fault_of(errors, at)),
        }
    }

    /// `value ("," value)* "=" rhs ":" type ("," type)* ("@" scope)?`.
    fn node(&mut self, body: &mut Body<'t>) -> Parsed<()> {
        let mut names: Vec<At<&'t str>> = vec![self.new_value(body, &[])?];
        while self.eat(',')? {
            let name = self.new_value(body, &names)?;
            names.push(name);
        }
        self.punct('=')?;
        let (word, at) = self.word("an op, input, param, state or const")?;
        let (kind, operands) = match word {
            "input" | "state" | "param" => (self.source(body, word)?, Vec::new()),
            "const" => (NodeKind::Const(self.number()?), Vec::new()),
            _ => {
                let operands = self.operands(body, word, at)?;
                (NodeKind::Op(self.op(word, at)?), operands)
            }
        };
        self.punct(':')?;
        let mut types = vec![self.ty()?];
        while self.eat(',')? {
            types.push(self.ty()?);
        }
        check_types(&body.graph, At { what: &kind, at }, &operands, &names, &types)?;
        let scope = self.scope()?;
        let source = source_name(&kind);
        let results = body.graph.push_unchecked(kind, operands, types.into_iter().map(|ty| ty.what).collect(), scope);
        if let (Some(name), Some(&value)) = (source, results.first()) {
            body.sources.insert(name, (value, at));
        }
        body.values.extend(names.iter().zip(results).map(|(name, value)| (name.what, (value, name.at))));
        Ok(())
    }

    /// A value on the left, which must be new.
    fn new_value(&mut self, body: &Body<'t>, siblings: &[At<&'t str>]) -> Parsed<At<&'t str>> {
        let next = self.lexer.peek()?;
        let Token::Value(name) = next.token else { return self.unexpected(next, "a value such as %0") };
        self.next()?;
        let before = body.values.get(name).map(|(_, at)| *at).or_else(|| siblings.iter().find(|s| s.what == name).map(|s| s.at));
        match before {
            Some(before) => self.twice(next.start, &format!("%{name}"), before),
            None => Ok(At { what: name, at: next.start }),
        }
    }

    /// A value on the right, which must be defined.
    fn old_value(&mut self, body: &Body<'t>) -> Parsed<At<ValueId>> {
        let next = self.lexer.peek()?;
        let Token::Value(name) = next.token else { return self.unexpected(next, "a value such as %0") };
        self.next()?;
        match body.values.get(name) {
            Some((value, _)) => Ok(At { what: *value, at: next.start }),
            None => fault(next.start, format!("%{name} is not defined before this line"), "values are defined above their uses".to_owned()),
        }
    }

    /// What follows `input`, `state` or `param`.
    fn source(&mut self, body: &Body<'t>, keyword: &str) -> Parsed<NodeKind> {
        let At { what: name, at } = self.string(&format!("the name of the {keyword} in quotes"))?;
        if let Some((_, before)) = body.sources.get(&name) {
            return self.twice(at, &format!("the name {name:?}"), *before);
        }
        let mut dynamic = Vec::new();
        for (attr, literal) in self.attrs()? {
            if keyword == "param" || attr.what != "dynamic" {
                let help = if keyword == "param" { "it has no attributes" } else { "known: dynamic" };
                return fault(attr.at, format!("{keyword} has no attribute {}", attr.what), help.to_owned());
            }
            let Some(axes) = crate::op::Attr::from_literal(&literal.what) else {
                return fault(literal.at, "dynamic expects axes in brackets", "such as [0, 1]".to_owned());
            };
            dynamic = axes;
        }
        Ok(match keyword {
            "input" => NodeKind::Input { name, dynamic },
            "state" => NodeKind::State { name, dynamic },
            _ => NodeKind::Param { name },
        })
    }

    /// The operands of `mnemonic`, which has to be an op: that is the first thing to say of a line.
    fn operands(&mut self, body: &Body<'t>, mnemonic: &str, at: usize) -> Parsed<Vec<Option<ValueId>>> {
        if !OPS.iter().any(|info| info.mnemonic == mnemonic) {
            return unknown_op(mnemonic, at);
        }
        let mut operands = Vec::new();
        if !matches!(self.lexer.peek()?.token, Token::Value(_) | Token::Word("_")) {
            return Ok(operands);
        }
        loop {
            if self.lexer.peek()?.token == Token::Word("_") {
                self.next()?;
                operands.push(None);
            } else {
                operands.push(Some(self.old_value(body)?.what));
            }
            if !self.eat(',')? {
                return Ok(operands);
            }
        }
    }

    fn op(&mut self, mnemonic: &str, at: usize) -> Parsed<Op> {
        let mut places = Vec::new();
        let mut args = Vec::new();
        for (name, literal) in self.attrs()? {
            places.push((name.at, literal.at));
            args.push((name.what.to_owned(), literal.what));
        }
        let place = |name: &str| args.iter().position(|(given, _)| given == name).and_then(|i| places.get(i)).copied().unwrap_or((at, at));
        let given = |name: &str| args.iter().find(|(given, _)| given == name).map(|(_, literal)| literal.to_string()).unwrap_or_default();
        match Op::from_text(mnemonic, &args) {
            Ok(op) => Ok(op),
            Err(OpTextError::UnknownOp) => unknown_op(mnemonic, at),
            Err(OpTextError::UnknownAttr { name, known }) => {
                let help = if known.is_empty() { "it has no attributes".to_owned() } else { format!("known: {}", known.join(", ")) };
                fault(place(&name).0, format!("{mnemonic} has no attribute {name}"), help)
            }
            Err(OpTextError::BadAttr { name, expects }) => {
                fault(place(name).1, format!("{name} of {mnemonic} expects {expects}, found {}", given(name)), None)
            }
            Err(OpTextError::MissingAttr { name }) => {
                fault(at, format!("{mnemonic} needs the attribute {name}"), format!("write {{{name} = …}} after the operands"))
            }
        }
    }

    /// `"{" NAME "=" literal ("," …)* "}"`, or nothing.
    fn attrs(&mut self) -> Parsed<Vec<(At<&'t str>, At<Literal>)>> {
        let mut attrs: Vec<(At<&'t str>, At<Literal>)> = Vec::new();
        if !self.eat('{')? {
            return Ok(attrs);
        }
        loop {
            let (name, at) = self.word("the name of an attribute")?;
            if let Some((before, _)) = attrs.iter().find(|(before, _)| before.what == name) {
                return self.twice(at, &format!("the attribute {name}"), before.at);
            }
            if attrs.len() == MAX_RANK {
                return fault(at, format!("more than {MAX_RANK} attributes"), None);
            }
            self.punct('=')?;
            attrs.push((At { what: name, at }, self.literal()?));
            if !self.eat(',')? {
                break;
            }
        }
        self.punct('}')?;
        Ok(attrs)
    }

    fn literal(&mut self) -> Parsed<At<Literal>> {
        let next = self.lexer.peek()?;
        let what = match next.token {
            Token::Word("true") => Literal::Bool(true),
            Token::Word("false") => Literal::Bool(false),
            Token::Word(word) => Literal::Word(word.to_owned()),
            Token::Number(digits) => number_literal(digits, next.start)?,
            Token::Punct('[') => return self.int_list().map(|list| At { what: Literal::List(list), at: next.start }),
            Token::Value(_) | Token::Str(_) | Token::Punct(_) | Token::End => {
                return self.unexpected(next, "a literal: a number, true, false, a word or whole numbers in brackets");
            }
        };
        self.next()?;
        Ok(At { what, at: next.start })
    }

    /// `"[" (INT ("," INT)*)? "]"` with signs allowed, so that the attribute's type can refuse them.
    fn int_list(&mut self) -> Parsed<Vec<i64>> {
        self.bracketed(|parser| {
            let next = parser.lexer.peek()?;
            let Token::Number(digits) = next.token else { return parser.unexpected(next, "a whole number") };
            parser.next()?;
            match number_literal(digits, next.start)? {
                Literal::Int(v) => Ok(v),
                Literal::Float(_) | Literal::Bool(_) | Literal::List(_) | Literal::Word(_) => {
                    fault(next.start, format!("{digits} is not a whole number of 64 bits"), None)
                }
            }
        })
    }

    fn bracketed<T>(&mut self, mut item: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        self.punct('[')?;
        let mut items = Vec::new();
        if self.eat(']')? {
            return Ok(items);
        }
        loop {
            let at = self.lexer.peek()?.start;
            if items.len() == MAX_RANK {
                return fault(at, format!("more than {MAX_RANK} numbers in brackets"), format!("a value has at most {MAX_RANK} axes"));
            }
            items.push(item(self)?);
            if !self.eat(',')? {
                break;
            }
        }
        self.punct(']')?;
        Ok(items)
    }

    /// `DTYPE "[" (INT ("," INT)*)? "]"`.
    fn ty(&mut self) -> Parsed<At<TensorType>> {
        let (name, at) = self.word("a type such as f32[4, 256]")?;
        let Some(dtype) = DType::from_name(name) else {
            let known = DType::ALL.map(DType::name).join(", ");
            return fault(at, format!("unknown element type {name:?}"), format!("known: {known}"));
        };
        let shape = self.bracketed(|parser| {
            let next = parser.lexer.peek()?;
            if let Token::Word(name) = next.token {
                let help = "names in place of sizes are kept free for symbolic dimensions, which this version does not have";
                return fault(next.start, format!("size {name} is not a number"), help.to_owned());
            }
            parser.int("a size").map(|size| size.what)
        })?;
        let ty = TensorType { dtype, shape };
        if ty.n_elems() > MAX_ELEMS {
            return fault(
                at,
                format!("{ty} has more than {MAX_ELEMS} elements"),
                "split the batch or the length into several runs".to_owned(),
            );
        }
        Ok(At { what: ty, at })
    }

    /// A whole number that is not negative.
    fn int(&mut self, what: &str) -> Parsed<At<usize>> {
        let next = self.lexer.peek()?;
        let Token::Number(digits) = next.token else { return self.unexpected(next, what) };
        self.next()?;
        match digits.parse::<usize>() {
            Ok(int) => Ok(At { what: int, at: next.start }),
            Err(_) => fault(next.start, format!("expected {what}, found {digits}"), format!("a whole number from 0 to {}", usize::MAX)),
        }
    }

    fn number(&mut self) -> Parsed<f64> {
        let next = self.lexer.peek()?;
        let Token::Number(digits) = next.token else { return self.unexpected(next, "a number") };
        self.next()?;
        finite(digits, next.start)
    }

    /// `"@" scope`, or nothing.
    fn scope(&mut self) -> Parsed<Arc<str>> {
        if !self.eat('@')? {
            return Ok(Arc::from(""));
        }
        if let Some(scope) = self.lexer.scope() {
            self.last_end = scope.end;
            return Ok(Arc::from(&self.text[scope.start..scope.end]));
        }
        self.string("a scope path").map(|scope| Arc::from(scope.what))
    }

    /// `"output" STR "=" value`.
    fn output(&mut self, body: &mut Body<'t>) -> Parsed<()> {
        self.keyword("output")?;
        let At { what: name, at } = self.string("the name of the output in quotes")?;
        if let Some(before) = body.outputs.insert(name.clone(), at) {
            return self.twice(at, &format!("output {name:?}"), before);
        }
        self.punct('=')?;
        let value = self.old_value(body)?.what;
        body.graph.outputs.push(Named { name, value });
        Ok(())
    }

    /// `"update" STR "=" value`, of a state or param with the type of the value.
    fn update(&mut self, body: &mut Body<'t>) -> Parsed<()> {
        self.keyword("update")?;
        let At { what: name, at } = self.string("the name of a state or param in quotes")?;
        if let Some(before) = body.updates.insert(name.clone(), at) {
            return self.twice(at, &format!("the update of {name:?}"), before);
        }
        self.punct('=')?;
        let value = self.old_value(body)?;
        let Some(&(target, _)) = body.sources.get(&name) else {
            return fault(at, format!("there is no state or param {name:?} to update"), "define it above, as state or param".to_owned());
        };
        if matches!(body.graph.def(target).kind, NodeKind::Input { .. }) {
            return fault(at, format!("{name:?} is an input, which has no update"), "make it a state".to_owned());
        }
        let (new, old) = (body.graph.ty(value.what), body.graph.ty(target));
        if new != old {
            return fault(value.at, format!("update of {name:?}: the new content is {new}, the old is {old}"), None);
        }
        body.graph.updates.push(Named { name, value: value.what });
        Ok(())
    }

    fn string(&mut self, what: &str) -> Parsed<At<String>> {
        let next = self.lexer.peek()?;
        let Token::Str(raw) = next.token else { return self.unexpected(next, what) };
        self.next()?;
        Ok(At { what: unescape(raw, next.start + 1)?, at: next.start })
    }

    fn word(&mut self, what: &str) -> Parsed<(&'t str, usize)> {
        let next = self.lexer.peek()?;
        let Token::Word(word) = next.token else { return self.unexpected(next, what) };
        self.next()?;
        Ok((word, next.start))
    }

    fn keyword(&mut self, keyword: &'static str) -> Parsed<()> {
        let next = self.lexer.peek()?;
        if next.token != Token::Word(keyword) {
            return self.unexpected(next, keyword);
        }
        self.next().map(|_| ())
    }

    fn punct(&mut self, c: char) -> Parsed<usize> {
        let next = self.lexer.peek()?;
        if next.token != Token::Punct(c) {
            return self.unexpected(next, &c.to_string());
        }
        self.next().map(|lexeme| lexeme.start)
    }

    fn eat(&mut self, c: char) -> Parsed<bool> {
        let is_next = self.lexer.peek()?.token == Token::Punct(c);
        if is_next {
            self.next()?;
        }
        Ok(is_next)
    }

    fn next(&mut self) -> Parsed<Lexeme<'t>> {
        let lexeme = self.lexer.next()?;
        self.last_end = lexeme.end;
        Ok(lexeme)
    }

    fn unexpected<T>(&self, found: Lexeme<'_>, wanted: &str) -> Parsed<T> {
        let is_later_line = self.text.get(self.last_end..found.start).is_some_and(|between| between.contains('\n'));
        if is_later_line && self.last_end > 0 {
            return fault(self.last_end, format!("expected {wanted}, found the end of the line"), None);
        }
        fault(found.start, format!("expected {wanted}, found {}", describe(found.token)), None)
    }

    fn twice<T>(&self, at: usize, what: &str, before: usize) -> Parsed<T> {
        fault(at, format!("{what} is given twice"), format!("the first is on line {}", line_of(self.text, before)))
    }
}

/// The types written must be those that the op's typing rule gives.
fn check_types(
    graph: &Graph,
    kind: At<&NodeKind>,
    operands: &[Option<ValueId>],
    names: &[At<&str>],
    types: &[At<TensorType>],
) -> Parsed<()> {
    let inferred = if let NodeKind::Op(op) = kind.what {
        let operand_types: Vec<Option<&TensorType>> = operands.iter().map(|operand| operand.map(|id| graph.ty(id))).collect();
        ops::infer(op, &operand_types).map_err(|error| Fault {
            at: kind.at,
            message: error.to_string(),
            help: error.help_text().map(str::to_owned),
        })?
    } else {
        types.iter().take(1).map(|ty| ty.what.clone()).collect()
    };
    let n_results = inferred.len();
    let plural = if n_results == 1 { "" } else { "s" };
    if names.len() != n_results {
        let at = names.get(n_results).or_else(|| names.last()).map_or(kind.at, |name| name.at);
        return fault(at, format!("the line gives {n_results} value{plural}, {} are named", names.len()), None);
    }
    if types.len() != n_results {
        let at = types.get(n_results).or_else(|| types.last()).map_or(kind.at, |ty| ty.at);
        return fault(at, format!("the line gives {n_results} value{plural}, {} types are written", types.len()), None);
    }
    if let Some((written, inferred)) = types.iter().zip(&inferred).find(|(written, inferred)| written.what != **inferred) {
        return fault(written.at, format!("the type written is {}, the op gives {inferred}", written.what), None);
    }
    if let (NodeKind::Input { dynamic, .. } | NodeKind::State { dynamic, .. }, Some(ty)) = (kind.what, types.first())
        && let Some(axis) = dynamic.iter().find(|axis| **axis >= ty.what.rank())
    {
        return fault(kind.at, format!("dynamic axis {axis} of {}", ty.what), "use axes below the rank".to_owned());
    }
    Ok(())
}

fn source_name(kind: &NodeKind) -> Option<String> {
    match kind {
        NodeKind::Input { name, .. } | NodeKind::State { name, .. } | NodeKind::Param { name } => Some(name.clone()),
        NodeKind::Const(_) | NodeKind::Op(_) => None,
    }
}

/// A whole number that fits becomes an int; all others become floats, which attributes of floats accept.
fn number_literal(digits: &str, at: usize) -> Parsed<Literal> {
    if !digits.contains(['.', 'e', 'E'])
        && let Ok(int) = digits.parse()
        // Minus zero is a float, and must stay one.
        && digits != "-0"
    {
        return Ok(Literal::Int(int));
    }
    finite(digits, at).map(Literal::Float)
}

fn finite(digits: &str, at: usize) -> Parsed<f64> {
    match digits.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => fault(at, "the number is out of range", format!("at most {:e} in size", f64::MAX)),
    }
}

fn unknown_op<T>(mnemonic: &str, at: usize) -> Parsed<T> {
    let known = OPS.iter().map(|info| info.mnemonic).chain(["input", "param", "state", "const"]);
    let nearest = known.map(|known| (edit_distance(mnemonic, known), known)).min();
    let help = nearest.filter(|(distance, known)| *distance <= known.len().div_ceil(3)).map(|(_, known)| format!("did you mean {known}?"));
    fault(at, format!("unknown op {mnemonic:?}"), help)
}

/// Insertions, removals and changes that lead from one word to the other; large for words much longer than a mnemonic.
fn edit_distance(from: &str, to: &str) -> usize {
    const MAX_LEN: usize = 32;
    if from.len() > MAX_LEN {
        return MAX_LEN;
    }
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.bytes().enumerate() {
            let change = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

fn describe(token: Token<'_>) -> String {
    let shorten = |text: &str| text.chars().take(40).collect::<String>();
    match token {
        Token::Word(word) => shorten(word),
        Token::Number(digits) => shorten(digits),
        Token::Value(name) => format!("%{}", shorten(name)),
        Token::Str(raw) => format!("\"{}\"", shorten(raw)),
        Token::Punct(c) => c.to_string(),
        Token::End => "the end of the text".to_owned(),
    }
}
