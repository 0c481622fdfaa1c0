//! A reader of the pickles that `torch.save` writes for a dictionary of tensors. It executes nothing: it builds plain values,
//! and knows by name the three functions that such a pickle calls; any other is an error.

use indexmap::IndexMap;

/// Bytes of a pickle, at most: it holds names and shapes, some hundred bytes for each tensor, and each byte may take a hundred of memory.
const MAX_LEN: usize = 1 << 20;
/// Bytes of what a pickle can make copies of for a few bytes of its own: module, class, function, key of a storage.
const MAX_NAME: usize = 128;
/// Axes of a tensor, which are copied in the same way.
const MAX_AXES: usize = 16;

/// A value, in a list of all values; values refer to others by their place in it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// `None`, and whatever does not matter here, such as floats.
    Other,
    /// A whole number; also true and false.
    Int(i64),
    Text(String),
    /// A class or function, as `module.name`.
    Global(String),
    /// A tuple or list.
    List(Vec<usize>),
    Dict(Vec<(usize, usize)>),
    Storage(Box<Storage>),
    Tensor(Box<Tensor>),
}

/// The memory of tensors: an entry of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Storage {
    /// Name of its class, such as `torch.HalfStorage`.
    pub(super) class: String,
    /// Name of its entry.
    pub(super) key: String,
}

/// A view of a storage; sizes in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) storage: Storage,
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

/// The tensors of a pickled dictionary by name, in its order; an error says what is wrong.
pub(super) fn tensors(pickle: &[u8]) -> Result<Vec<(String, Tensor)>, String> {
    if pickle.len() > MAX_LEN {
        return Err(format!("its pickle has {} bytes, which no dictionary of tensors needs", pickle.len()));
    }
    let mut machine = Machine { rest: pickle, values: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: IndexMap::new() };
    let root = machine.run()?;
    let Value::Dict(entries) = machine.value(root)? else { return Err("it holds no dictionary of tensors".to_owned()) };
    let mut named: IndexMap<&str, &Tensor> = IndexMap::new();
    for &(key, value) in entries {
        if let (Value::Text(name), Value::Tensor(tensor)) = (machine.value(key)?, machine.value(value)?)
            && named.insert(name, &**tensor).is_some()
        {
            return Err(format!("its pickle has two tensors called {}", start_of(name)));
        }
    }
    Ok(named.into_iter().map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect())
}

/// A name for a message, which need not be as long as a file can make it.
fn start_of(name: &str) -> String {
    if name.chars().count() > MAX_NAME { name.chars().take(MAX_NAME).chain("...".chars()).collect() } else { name.to_owned() }
}

struct Machine<'a> {
    rest: &'a [u8],
    values: Vec<Value>,
    stack: Vec<usize>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: IndexMap<u64, usize>,
}

impl Machine<'_> {
    /// Runs to the end; gives the result's place.
    fn run(&mut self) -> Result<usize, String> {
        loop {
            match self.byte()? {
                b'.' => return self.pop(),
                op => self.step(op)?,
            }
        }
    }

    fn step(&mut self, op: u8) -> Result<(), String> {
        match op {
            // Protocol and frames say nothing about values.
            0x80 => drop(self.byte()?),
            0x95 => drop(self.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'N' => self.push(Value::Other),
            0x88 => self.push(Value::Int(1)),
            0x89 => self.push(Value::Int(0)),
            b'K' => self.int(1)?,
            b'M' => self.int(2)?,
            b'J' => {
                let bytes = self.take(4)?.try_into().map_err(|_| CUT_OFF)?;
                self.push(Value::Int(i64::from(i32::from_le_bytes(bytes))));
            }
            0x8a => self.long()?,
            b'G' => {
                self.take(8)?;
                self.push(Value::Other);
            }
            b'X' => self.text(4)?,
            0x8c | b'U' => self.text(1)?,
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(&module, &name)?;
            }
            0x93 => {
                let (name, module) = (self.pop_name()?, self.pop_name()?);
                self.global(&module, &name)?;
            }
            b'}' => self.push(Value::Dict(Vec::new())),
            b')' | b']' => self.push(Value::List(Vec::new())),
            b't' => {
                let items = self.since_mark()?;
                self.push(Value::List(items));
            }
            0x85..=0x87 => {
                let n = usize::from(op - 0x84);
                let at = self.stack.len().checked_sub(n).ok_or(EMPTY)?;
                let items = self.stack.split_off(at);
                self.push(Value::List(items));
            }
            b'q' => self.remember(1)?,
            b'r' => self.remember(4)?,
            0x94 => {
                let top = *self.stack.last().ok_or(EMPTY)?;
                self.memo.insert(self.memo.len() as u64, top);
            }
            b'h' => self.recall(1)?,
            b'j' => self.recall(4)?,
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            b'e' => {
                let items = self.since_mark()?;
                self.append(&items)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.insert(&[key, value])?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.insert(&items)?;
            }
            // Attributes of an object, such as a state dict's metadata: of no interest.
            b'b' => drop(self.pop()?),
            b'Q' => self.storage()?,
            b'R' => self.call()?,
            _ => return Err(format!("its pickle has the opcode {op:#04x}, which no dictionary of tensors needs")),
        }
        Ok(())
    }

    fn global(&mut self, module: &str, name: &str) -> Result<(), String> {
        check_name(module)?;
        check_name(name)?;
        self.push(Value::Global(format!("{module}.{name}")));
        Ok(())
    }

    /// A reference to a storage: a tuple of "storage", its class, its key, its device and its size.
    fn storage(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let items = self.list(id)?;
        let get = |at: usize| items.get(at).and_then(|&item| self.values.get(item));
        let (Some(Value::Text(kind)), Some(Value::Global(class)), Some(Value::Text(key))) = (get(0), get(1), get(2)) else {
            return Err("its pickle refers to something that is no storage".to_owned());
        };
        if kind != "storage" {
            return Err(format!("its pickle refers to a {:?}, not to a storage", start_of(kind)));
        }
        check_name(key)?;
        let storage = Storage { class: class.clone(), key: key.clone() };
        self.push(Value::Storage(Box::new(storage)));
        Ok(())
    }

    /// A call, of which three are known.
    fn call(&mut self) -> Result<(), String> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let Value::Global(name) = self.value(function)?.clone() else {
            return Err("its pickle calls something that is no function".to_owned());
        };
        match name.as_str() {
            "collections.OrderedDict" => {
                if !self.list(arguments)?.is_empty() {
                    return Err("its pickle makes a dictionary in a way that torch.save does not".to_owned());
                }
                self.push(Value::Dict(Vec::new()));
                Ok(())
            }
            "torch._utils._rebuild_tensor_v2" => {
                let tensor = self.tensor(arguments).ok_or("its pickle has a tensor without storage, or of no shape that a tensor has")?;
                self.push(Value::Tensor(Box::new(tensor)));
                Ok(())
            }
            "torch._utils._rebuild_parameter" => {
                let tensor = *self.list(arguments)?.first().ok_or(EMPTY)?;
                self.stack.push(tensor);
                Ok(())
            }
            _ => Err(format!("its pickle calls {name}, which is never executed")),
        }
    }

    /// A tensor of storage, offset, shape and strides.
    fn tensor(&self, arguments: usize) -> Option<Tensor> {
        let arguments = self.list(arguments).ok()?;
        let get = |at: usize| self.values.get(*arguments.get(at)?);
        let number = |value: &Value| if let Value::Int(number) = value { usize::try_from(*number).ok() } else { None };
        let numbers = |at| {
            let Value::List(items) = get(at)? else { return None };
            if items.len() > MAX_AXES {
                return None;
            }
            items.iter().map(|&item| number(self.values.get(item)?)).collect()
        };
        let Value::Storage(storage) = get(0)? else { return None };
        Some(Tensor { storage: (**storage).clone(), offset: number(get(1)?)?, shape: numbers(2)?, strides: numbers(3)? })
    }

    fn append(&mut self, items: &[usize]) -> Result<(), String> {
        let Value::List(list) = self.top()? else { return Err("its pickle appends to something that is no list".to_owned()) };
        list.extend_from_slice(items);
        Ok(())
    }

    fn insert(&mut self, items: &[usize]) -> Result<(), String> {
        let Value::Dict(entries) = self.top()? else {
            return Err("its pickle sets an item of something that is no dictionary".to_owned());
        };
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err("its pickle sets an item without a value".to_owned());
        }
        entries.extend(pairs.iter().map(|&[key, value]| (key, value)));
        Ok(())
    }

    fn remember(&mut self, n_bytes: usize) -> Result<(), String> {
        let key = self.number(n_bytes)?;
        self.memo.insert(key, *self.stack.last().ok_or(EMPTY)?);
        Ok(())
    }

    fn recall(&mut self, n_bytes: usize) -> Result<(), String> {
        let key = self.number(n_bytes)?;
        let value = *self.memo.get(&key).ok_or("its pickle recalls what it has not remembered")?;
        self.stack.push(value);
        Ok(())
    }

    fn since_mark(&mut self) -> Result<Vec<usize>, String> {
        let mark = self.marks.pop().filter(|&mark| mark <= self.stack.len()).ok_or(EMPTY)?;
        Ok(self.stack.split_off(mark))
    }

    fn int(&mut self, n_bytes: usize) -> Result<(), String> {
        let number = i64::try_from(self.number(n_bytes)?).map_err(|_| CUT_OFF)?;
        self.push(Value::Int(number));
        Ok(())
    }

    /// A number of as many bytes as the first one says; one that is too large becomes what no size is.
    fn long(&mut self) -> Result<(), String> {
        let n_bytes = usize::from(self.byte()?);
        let bytes = self.take(n_bytes)?;
        let sign = if bytes.last().is_some_and(|last| last & 0x80 != 0) { 0xFF } else { 0 };
        let mut wide = [sign; 8];
        let fits = n_bytes <= 8;
        wide.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = byte);
        self.push(if fits { Value::Int(i64::from_le_bytes(wide)) } else { Value::Other });
        Ok(())
    }

    fn text(&mut self, n_bytes: usize) -> Result<(), String> {
        let len = usize::try_from(self.number(n_bytes)?).map_err(|_| CUT_OFF)?;
        let text = String::from_utf8_lossy(self.take(len)?).into_owned();
        self.push(Value::Text(text));
        Ok(())
    }

    fn line(&mut self) -> Result<String, String> {
        let len = self.rest.iter().position(|&byte| byte == b'\n').ok_or(CUT_OFF)?;
        let line = String::from_utf8_lossy(self.take(len)?).into_owned();
        self.take(1)?;
        Ok(line)
    }

    fn number(&mut self, n_bytes: usize) -> Result<u64, String> {
        Ok(self.take(n_bytes)?.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.take(1).map(|bytes| bytes.first().copied().unwrap_or_default())
    }

    fn take(&mut self, n: usize) -> Result<&[u8], String> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(CUT_OFF)?;
        self.rest = rest;
        Ok(taken)
    }

    fn push(&mut self, value: Value) {
        self.stack.push(self.values.len());
        self.values.push(value);
    }

    fn pop(&mut self) -> Result<usize, String> {
        self.stack.pop().ok_or_else(|| EMPTY.to_owned())
    }

    fn pop_name(&mut self) -> Result<String, String> {
        let value = self.pop()?;
        let Value::Text(text) = self.value(value)? else { return Err(EMPTY.to_owned()) };
        check_name(text)?;
        Ok(text.clone())
    }

    fn top(&mut self) -> Result<&mut Value, String> {
        let top = *self.stack.last().ok_or(EMPTY)?;
        self.values.get_mut(top).ok_or_else(|| EMPTY.to_owned())
    }

    fn value(&self, at: usize) -> Result<&Value, String> {
        self.values.get(at).ok_or_else(|| EMPTY.to_owned())
    }

    fn list(&self, at: usize) -> Result<&[usize], String> {
        if let Value::List(items) = self.value(at)? { Ok(items) } else { Err(EMPTY.to_owned()) }
    }
}

fn check_name(name: &str) -> Result<(), String> {
    if name.len() <= MAX_NAME { Ok(()) } else { Err(format!("its pickle uses the name {}, longer than any of torch", start_of(name))) }
}

const CUT_OFF: &str = "its pickle is cut off";
const EMPTY: &str = "its pickle takes values that are not there";

#[cfg(test)]
mod tests {
    use super::*;

    /// A dictionary with one tensor of two by three halves, as protocol 2 writes it.
    const ONE: &[u8] = b"\x80\x02}q\x00X\x01\x00\x00\x00wq\x01ctorch._utils\n_rebuild_tensor_v2\nq\x02((X\x07\x00\x00\x00storageq\x03\
ctorch\nHalfStorage\nq\x04X\x01\x00\x00\x000q\x05X\x03\x00\x00\x00cpuq\x06K\x06tq\x07QK\x00K\x02K\x03\x86q\x08K\x03K\x01\x86q\x09\x89\
ccollections\nOrderedDict\nq\x0a)Rq\x0btq\x0cRq\x0ds.";

    #[test]
    fn a_dictionary_of_tensors_is_read() {
        let tensors = tensors(ONE).unwrap();
        let storage = Storage { class: "torch.HalfStorage".into(), key: "0".into() };
        assert_eq!(tensors, [("w".to_owned(), Tensor { storage, offset: 0, shape: vec![2, 3], strides: vec![3, 1] })]);
    }

    #[test]
    fn no_call_is_executed() {
        let evil = b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.";
        assert_eq!(tensors(evil).unwrap_err(), "its pickle calls os.system, which is never executed");
        assert!(tensors(b"\x80\x02cposix\nsystem\nq\x00i.").unwrap_err().contains("opcode 0x69"));
    }

    #[test]
    fn nothing_grows_faster_than_the_pickle() {
        let text = |text: &str| [b"X", &u32::try_from(text.len()).unwrap().to_le_bytes()[..], text.as_bytes()].concat();
        let long = "a".repeat(10_000);
        // One long name that many calls, storages or tensors would each copy.
        let called = [text(&long), b"q\x00h\x00\x93.".to_vec()].concat();
        assert!(tensors(&called).unwrap_err().ends_with("..., longer than any of torch"), "{:?}", tensors(&called));
        assert!(tensors(&[b"c", long.as_bytes(), b"\nx\n."].concat()).unwrap_err().contains("longer than any of torch"));
        let stored = [&b"("[..], &text("storage"), b"ctorch\nHalfStorage\n", &text(&long), b"tQ."].concat();
        assert!(tensors(&stored).unwrap_err().contains("longer than any of torch"));
        let axes = String::from_utf8(ONE.to_vec().iter().map(|&byte| if byte < 128 { byte } else { b'?' }).collect()).unwrap();
        let at = axes.find("K\u{2}K\u{3}").unwrap();
        let wide = [&ONE[..at], b"(", &b"K\x01".repeat(17), b"t", &ONE[at + 5..]].concat();
        assert!(tensors(&wide).unwrap_err().contains("of no shape that a tensor has"));
        assert!(tensors(&vec![b'N'; MAX_LEN + 1]).unwrap_err().contains(&format!("{} bytes", MAX_LEN + 1)));
        assert!(tensors(&vec![b'('; MAX_LEN]).is_err());
    }

    #[test]
    fn what_torch_does_not_write_is_refused_rather_than_dropped() {
        let entry = &ONE[5..ONE.len() - 2];
        let twice = [&ONE[..5], entry, b"s", entry, b"s."].concat();
        assert_eq!(tensors(&twice).unwrap_err(), "its pickle has two tensors called w");
        assert!(
            tensors(b"\x80\x02ccollections\nOrderedDict\nX\x01\x00\x00\x00w\x85R.")
                .unwrap_err()
                .contains("in a way that torch.save does not")
        );
        assert!(tensors(b"\x80\x02}(K\x01u.").unwrap_err().contains("an item without a value"));
    }

    #[test]
    fn damaged_pickles_are_errors() {
        for len in 0..ONE.len() {
            assert!(tensors(&ONE[..len]).is_err(), "{len}");
        }
        // Every byte replaced: whatever comes out, nothing breaks.
        for at in 0..ONE.len() {
            for byte in [0, b't', b'u', b'R', b'Q', b's', 0x87, 0x93, 0xFF] {
                let mut bytes = ONE.to_vec();
                bytes[at] = byte;
                let _ = tensors(&bytes);
            }
        }
    }
}
