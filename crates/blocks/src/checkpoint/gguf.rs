//! A reader of GGUF files, versions 2 and 3, little-endian: metadata and where tensors lie.
//!
//! Nothing is taken for granted: every count, length and offset is checked against the file before anything is allocated for
//! it, and lists, such as a tokenizer's words, are walked over and not kept.
//!
//! # Source
//! The description of the format in ggml, `docs/gguf.md`.

use super::CheckpointError;
use super::tensors::{Encoding, Stored};
use indexmap::IndexMap;
use safetensors::Dtype;
use std::ops::Range;

/// Keys, and tensors, at most; published models have some tens and some thousands.
const MAX_ENTRIES: u64 = 1 << 16;
/// Axes of a tensor, as the format allows.
const MAX_AXES: u64 = 4;
/// Bytes of a name.
const MAX_NAME: usize = 256;
/// Lists in lists; the format's own keys nest none.
const MAX_NESTING: usize = 4;
/// What tensors are aligned to unless the file says otherwise.
const ALIGNMENT: u64 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";
/// Elements and bytes of a block of `Q8_0`.
const Q8_0: (u64, u64) = (32, 34);

/// What is wrong with a file, and what to do.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) what: String,
    pub(super) help: String,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Meta {
    /// A whole number that is not negative.
    Count(u64),
    Number(f64),
    Text(String),
    /// A list, a flag, a long text or a negative number, none of which is asked for.
    Other,
}

/// What stands before the tensors' elements.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) meta: IndexMap<String, Meta>,
    tensors: Vec<Tensor>,
}

#[derive(Debug)]
struct Tensor {
    name: String,
    /// Outermost first.
    shape: Vec<usize>,
    encoding: Encoding,
    range: Range<usize>,
}

/// Where a tensor is, before it is known where the elements start.
struct Info {
    name: String,
    shape: Vec<usize>,
    encoding: Encoding,
    offset: u64,
    n_bytes: u64,
}

impl Problem {
    fn damaged(what: impl Into<String>) -> Self {
        Self { what: what.into(), help: "download it again".to_owned() }
    }

    fn new(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { what: what.into(), help: help.into() }
    }

    pub(super) fn of(self, file: &str) -> CheckpointError {
        CheckpointError::Gguf { file: file.to_owned(), problem: self.what, help: self.help }
    }
}

impl Header {
    /// The tensors, their shapes and encodings those of our parameters; `file` is the file's name.
    pub(super) fn tensors(&self, file: &str) -> Result<Vec<Stored>, CheckpointError> {
        let stored = |tensor: &Tensor| {
            let (shape, encoding) = as_ours(tensor)?;
            let (name, range) = (tensor.name.clone(), tensor.range.clone());
            Ok(Stored { name, file: file.to_owned(), file_idx: 0, shape, encoding, range })
        };
        self.tensors.iter().map(stored).collect::<Result<_, Problem>>().map_err(|problem| problem.of(file))
    }
}

/// Our shape of a tensor: taps have an axis of one, decay rates and skips lack one, the norm's groups lie in one row.
fn as_ours(tensor: &Tensor) -> Result<(Vec<usize>, Encoding), Problem> {
    let kind = tensor.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or("", |(_, kind)| kind);
    let shape = match (kind, tensor.shape.as_slice()) {
        ("ssm_conv1d.weight", &[channels, taps]) => vec![channels, 1, taps],
        ("ssm_a" | "ssm_d", &[heads, 1]) => vec![heads],
        // The number of elements is known to be countable.
        ("ssm_norm.weight", &[groups, channels]) => vec![groups * channels],
        (_, shape) => shape.to_vec(),
    };
    if kind != "ssm_a" {
        return Ok((shape, tensor.encoding.clone()));
    }
    match tensor.encoding {
        Encoding::Plain(Dtype::F32) => Ok((shape, Encoding::Rates)),
        Encoding::Plain(_) | Encoding::Rates | Encoding::Blocks | Encoding::Scaled(..) => {
            let what = format!("tensor {} holds decay rates in another type than F32", tensor.name);
            Err(Problem::new(what, "convert the model again; decay rates are never narrowed"))
        }
    }
}

/// Metadata and tensors of a file.
pub(super) fn parse(bytes: &[u8]) -> Result<Header, Problem> {
    let mut reader = Reader { bytes, at: 0 };
    check_start(&mut reader)?;
    let (n_tensors, n_keys) = (reader.u64()?, reader.u64()?);
    // The least that a tensor and a key take.
    reader.check_count("tensors", n_tensors, 24)?;
    reader.check_count("keys", n_keys, 13)?;
    let mut meta = IndexMap::new();
    for _ in 0..n_keys {
        let key = reader.name("a key")?;
        let ty = reader.u32()?;
        let value = reader.value(ty, 0).map_err(|problem| Problem { what: format!("key {key}: {}", problem.what), ..problem })?;
        if meta.insert(key.clone(), value).is_some() {
            return Err(Problem::damaged(format!("key {key} stands twice")));
        }
    }
    let alignment = alignment(&meta)?;
    let infos: Vec<Info> = (0..n_tensors).map(|_| reader.info()).collect::<Result<_, _>>()?;
    let start = (reader.at as u64).checked_next_multiple_of(alignment).ok_or_else(|| Problem::damaged("its header has no end"))?;
    let tensors = infos.into_iter().map(|info| info.placed(start, alignment, bytes.len())).collect::<Result<Vec<_>, _>>()?;
    check_apart(&tensors)?;
    Ok(Header { meta, tensors })
}

fn check_start(reader: &mut Reader<'_>) -> Result<(), Problem> {
    const MAGIC: &[u8] = b"GGUF";
    if reader.bytes.is_empty() {
        return Err(Problem::damaged("it is empty"));
    }
    if !reader.bytes.starts_with(MAGIC) {
        return Err(Problem::damaged("it does not start with GGUF, so it is no GGUF file"));
    }
    reader.take(MAGIC.len())?;
    match reader.u32()? {
        2 | 3 => Ok(()),
        version if matches!(version.swap_bytes(), 1..=3) => {
            Err(Problem::new("its numbers are big-endian", "convert the model again, for a little-endian machine"))
        }
        version => Err(Problem::new(format!("it has version {version}"), "versions 2 and 3 are read; convert the model again")),
    }
}

fn alignment(meta: &IndexMap<String, Meta>) -> Result<u64, Problem> {
    match meta.get(ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT),
        Some(&Meta::Count(alignment)) if alignment.is_power_of_two() && (8..=1 << 20).contains(&alignment) => Ok(alignment),
        Some(found) => Err(Problem::damaged(format!("{ALIGNMENT_KEY} is {found:?}, not a power of two from 8 to 1048576"))),
    }
}

/// No two tensors share bytes, or have one name.
fn check_apart(tensors: &[Tensor]) -> Result<(), Problem> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    if let Some([name, _]) = names.array_windows().find(|[one, next]| one == next) {
        return Err(Problem::damaged(format!("tensor {name} stands twice")));
    }
    let mut places: Vec<&Tensor> = tensors.iter().filter(|tensor| !tensor.range.is_empty()).collect();
    places.sort_by_key(|tensor| tensor.range.start);
    match places.array_windows().find(|[one, next]| next.range.start < one.range.end) {
        Some([one, next]) => Err(Problem::damaged(format!("tensors {} and {} overlap", one.name, next.name))),
        None => Ok(()),
    }
}

impl Info {
    fn placed(self, start: u64, alignment: u64, file_len: usize) -> Result<Tensor, Problem> {
        let Self { name, shape, encoding, offset, n_bytes } = self;
        if !offset.is_multiple_of(alignment) {
            return Err(Problem::damaged(format!("tensor {name} starts at {offset}, which is not a multiple of {alignment}")));
        }
        let from = start.checked_add(offset);
        let range = from.and_then(|from| Some((usize::try_from(from).ok()?, usize::try_from(from.checked_add(n_bytes)?).ok()?)));
        match range {
            // What has no elements may stand at the end of a file without padding.
            _ if n_bytes == 0 => Ok(Tensor { name, shape, encoding, range: 0..0 }),
            Some((from, to)) if to <= file_len => Ok(Tensor { name, shape, encoding, range: from..to }),
            _ => {
                let what = format!("tensor {name} {shape:?} ends behind the end of the file, which has {file_len} bytes");
                Err(Problem::damaged(what))
            }
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Problem> {
        let end = self.at.checked_add(n);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| Problem::damaged(format!("it ends inside its header, after {} bytes", self.bytes.len())))?;
        self.at += n;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        self.take(N)?.try_into().map_err(|_| Problem::damaged("it ends inside its header"))
    }

    fn u32(&mut self) -> Result<u32, Problem> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Problem> {
        self.array().map(u64::from_le_bytes)
    }

    /// Refuses more entries than the rest of the file can hold, each of at least `n_bytes`, or than are read.
    fn check_count(&self, what: &str, count: u64, n_bytes: u64) -> Result<(), Problem> {
        let rest = self.bytes.len().saturating_sub(self.at) as u64;
        if count > MAX_ENTRIES || count > rest / n_bytes {
            let len = self.bytes.len();
            return Err(Problem::damaged(format!("it says that it has {count} {what}, too many for its {len} bytes or for any model")));
        }
        Ok(())
    }

    /// Text whose length stands before it, `None` if it is longer than any name.
    fn text(&mut self) -> Result<Option<String>, Problem> {
        let len = self.u64()?;
        let len = usize::try_from(len).map_err(|_| Problem::damaged(format!("it has a text of {len} bytes")))?;
        let bytes = self.take(len)?;
        Ok((len <= MAX_NAME).then(|| String::from_utf8_lossy(bytes).into_owned()))
    }

    fn name(&mut self, what: &str) -> Result<String, Problem> {
        let name = self.text()?.filter(|name| !name.is_empty() && !name.contains(char::is_control));
        name.ok_or_else(|| Problem::damaged(format!("the name of {what} is empty, longer than {MAX_NAME} bytes, or no text")))
    }

    /// The value of a key, of a type by its number in the format.
    fn value(&mut self, ty: u32, nesting: usize) -> Result<Meta, Problem> {
        let signed = |number: i64| u64::try_from(number).map_or(Meta::Other, Meta::Count);
        Ok(match ty {
            0 => Meta::Count(u8::from_le_bytes(self.array()?).into()),
            1 => signed(i8::from_le_bytes(self.array()?).into()),
            2 => Meta::Count(u16::from_le_bytes(self.array()?).into()),
            3 => signed(i16::from_le_bytes(self.array()?).into()),
            4 => Meta::Count(self.u32()?.into()),
            5 => signed(i32::from_le_bytes(self.array()?).into()),
            6 => Meta::Number(f32::from_le_bytes(self.array()?).into()),
            7 => {
                self.take(1)?;
                Meta::Other
            }
            8 => self.text()?.map_or(Meta::Other, Meta::Text),
            9 => {
                self.skip_list(nesting)?;
                Meta::Other
            }
            10 => Meta::Count(self.u64()?),
            11 => signed(i64::from_le_bytes(self.array()?)),
            12 => Meta::Number(f64::from_le_bytes(self.array()?)),
            _ => return Err(Problem::damaged(format!("a value has the type {ty}, which the format does not know"))),
        })
    }

    fn skip_list(&mut self, nesting: usize) -> Result<(), Problem> {
        if nesting >= MAX_NESTING {
            return Err(Problem::damaged(format!("lists are nested deeper than {MAX_NESTING}")));
        }
        let (ty, count) = (self.u32()?, self.u64()?);
        let fixed = match ty {
            0 | 1 | 7 => Some(1),
            2 | 3 => Some(2),
            4..=6 => Some(4),
            10..=12 => Some(8),
            _ => None,
        };
        let too_long = || Problem::damaged(format!("it has a list of {count} values, more than its bytes"));
        if let Some(size) = fixed {
            let len = usize::try_from(count).ok().and_then(|count| count.checked_mul(size)).ok_or_else(too_long)?;
            return self.take(len).map(|_| ());
        }
        // A text takes at least its length, and a list its type and length, so that the loop ends with the file.
        if count > (self.bytes.len() - self.at) as u64 / 8 {
            return Err(too_long());
        }
        for _ in 0..count {
            if ty == 8 {
                let len = self.u64()?;
                self.take(usize::try_from(len).map_err(|_| too_long())?)?;
            } else {
                self.value(ty, nesting + 1)?;
            }
        }
        Ok(())
    }

    fn info(&mut self) -> Result<Info, Problem> {
        let name = self.name("a tensor")?;
        let n_axes = u64::from(self.u32()?);
        if n_axes > MAX_AXES {
            return Err(Problem::damaged(format!("tensor {name} has {n_axes} axes, more than {MAX_AXES}")));
        }
        let mut sizes = (0..n_axes).map(|_| self.u64()).collect::<Result<Vec<_>, _>>()?;
        let ty = self.u32()?;
        let offset = self.u64()?;
        let (encoding, block, block_bytes) = encoding(ty).ok_or_else(|| {
            let what = format!("tensor {name} has the element type {}", type_name(ty));
            Problem::new(
                what,
                "F32, F16, BF16 and Q8_0 are read; convert or requantize the model to one of them, such as with --outtype f16",
            )
        })?;
        let columns = sizes.first().copied().unwrap_or(1);
        if !columns.is_multiple_of(block) {
            return Err(Problem::damaged(format!("tensor {name} is Q8_0 and has rows of {columns}, not of whole blocks of {block}")));
        }
        let n_elems = sizes.iter().try_fold(1u64, |n, &size| n.checked_mul(size));
        let n_bytes = n_elems.and_then(|n| (n / block).checked_mul(block_bytes));
        // The format has the innermost axis first.
        sizes.reverse();
        let shape = sizes.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<Vec<_>>>();
        match (shape, n_bytes) {
            (Some(shape), Some(n_bytes)) => Ok(Info { name, shape, encoding, offset, n_bytes }),
            _ => Err(Problem::damaged(format!("tensor {name} {sizes:?} is too large for any file"))),
        }
    }
}

/// How elements of a type lie, elements of a block, and its bytes; `None` for a type that is not read.
fn encoding(ty: u32) -> Option<(Encoding, u64, u64)> {
    match ty {
        0 => Some((Encoding::Plain(Dtype::F32), 1, 4)),
        1 => Some((Encoding::Plain(Dtype::F16), 1, 2)),
        8 => Some((Encoding::Blocks, Q8_0.0, Q8_0.1)),
        30 => Some((Encoding::Plain(Dtype::BF16), 1, 2)),
        _ => None,
    }
}

/// The format's word for an element type.
fn type_name(ty: u32) -> String {
    const NAMES: [&str; 31] = [
        "F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K",
        "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16",
    ];
    let name = usize::try_from(ty).ok().and_then(|ty| NAMES.get(ty));
    name.map_or_else(|| format!("number {ty}"), |&name| name.to_owned())
}
