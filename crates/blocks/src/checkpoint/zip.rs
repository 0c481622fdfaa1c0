//! Where the entries of a zip archive lie. `torch.save` stores them uncompressed, so that each is a slice of the file.

use std::ops::Range;

/// An entry of an archive.
pub(super) struct Entry {
    /// Path in the archive.
    pub(super) name: String,
    /// Its bytes in the file.
    pub(super) range: Range<usize>,
}

const END: &[u8] = b"PK\x05\x06";
const END_LEN: usize = 22;
const END_64: &[u8] = b"PK\x06\x06";
const LOCATOR_64: &[u8] = b"PK\x06\x07";
const LOCATOR_64_LEN: usize = 20;
const CENTRAL: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";
/// Tag of the extra field with the 64-bit forms of sizes and offset.
const EXTRA_64: u16 = 1;
/// What a 32-bit field says if its 64-bit form holds.
const IN_EXTRA: u64 = 0xFFFF_FFFF;

/// The entries of an archive, in the order of its directory; an error says what is wrong.
pub(super) fn entries(file: &[u8]) -> Result<Vec<Entry>, String> {
    let (mut at, n_entries) = directory(file)?;
    let mut entries = Vec::new();
    for i in 0..n_entries {
        let entry = CentralEntry::read(file, at).ok_or_else(|| format!("entry {i} of its directory is broken"))?;
        at = entry.next;
        if entry.method != 0 || entry.is_encrypted {
            let how = if entry.is_encrypted { "encrypted" } else { "compressed" };
            return Err(format!("{} is {how}, which torch.save never does", entry.name));
        }
        let range = entry.data(file).ok_or_else(|| format!("{} is cut off", entry.name))?;
        entries.push(Entry { name: entry.name, range });
    }
    Ok(entries)
}

/// Where the directory starts, and how many entries it has.
fn directory(file: &[u8]) -> Result<(usize, u64), String> {
    const MAX_COMMENT: usize = 0xFFFF;
    let first = file.len().saturating_sub(END_LEN + MAX_COMMENT);
    let last = file.len().checked_sub(END_LEN);
    let end = last.and_then(|last| (first..=last).rev().find(|&at| file[at..].starts_with(END)));
    let end = end.ok_or("it has no directory, as if it were cut off or no zip archive")?;
    let broken = || "its directory is broken".to_owned();
    let (n_entries, start) = (number(file, end + 10, 2).ok_or_else(broken)?, number(file, end + 16, 4).ok_or_else(broken)?);
    let locator = end.checked_sub(LOCATOR_64_LEN).filter(|&at| file[at..].starts_with(LOCATOR_64));
    let (n_entries, start) = match locator {
        Some(at) => {
            let end = offset(file, at + 8, 8).filter(|&at| file.get(at..).is_some_and(|rest| rest.starts_with(END_64)));
            let end = end.ok_or_else(broken)?;
            (number(file, end + 32, 8).ok_or_else(broken)?, number(file, end + 48, 8).ok_or_else(broken)?)
        }
        None => (n_entries, start),
    };
    Ok((usize::try_from(start).map_err(|_| broken())?, n_entries))
}

/// An entry as the directory has it.
struct CentralEntry {
    name: String,
    method: u64,
    is_encrypted: bool,
    size: u64,
    local: u64,
    next: usize,
}

impl CentralEntry {
    fn read(file: &[u8], at: usize) -> Option<Self> {
        if !file.get(at..)?.starts_with(CENTRAL) {
            return None;
        }
        let [name_len, extra_len, comment_len] = [28, 30, 32].map(|field| offset(file, at + field, 2));
        let extra = at + 46 + name_len?;
        let next = extra + extra_len? + comment_len?;
        let name = String::from_utf8_lossy(file.get(at + 46..extra)?).into_owned();
        let wide = file.get(extra..extra + extra_len?).and_then(extra_64).unwrap_or_default();
        let mut wide = wide.chunks_exact(8).map(|bytes| number(bytes, 0, 8));
        // In the order of the wide fields; one is there only if the narrow field says so.
        let [size, _, local] = [24, 20, 42].map(|field| match number(file, at + field, 4)? {
            IN_EXTRA => wide.next()?,
            narrow => Some(narrow),
        });
        let is_encrypted = number(file, at + 8, 2)? & 1 != 0;
        Some(Self { name, method: number(file, at + 10, 2)?, is_encrypted, size: size?, local: local?, next })
    }

    /// The entry's bytes, which follow its local header.
    fn data(&self, file: &[u8]) -> Option<Range<usize>> {
        let local = usize::try_from(self.local).ok()?;
        if !file.get(local..)?.starts_with(LOCAL) {
            return None;
        }
        let start = local + 30 + offset(file, local + 26, 2)? + offset(file, local + 28, 2)?;
        let end = start.checked_add(usize::try_from(self.size).ok()?)?;
        (end <= file.len()).then_some(start..end)
    }
}

/// The extra field with 64-bit numbers.
fn extra_64(mut extra: &[u8]) -> Option<&[u8]> {
    while extra.len() >= 4 {
        let len = offset(extra, 2, 2)?;
        let field = extra.get(4..4 + len)?;
        if number(extra, 0, 2)? == u64::from(EXTRA_64) {
            return Some(field);
        }
        extra = &extra[4 + len..];
    }
    None
}

/// A little-endian number of some bytes.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(len)?)?;
    Some(field.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

fn offset(bytes: &[u8], at: usize, len: usize) -> Option<usize> {
    // Far below the largest usize, so that sums of a few do not overflow.
    number(bytes, at, len).and_then(|number| usize::try_from(number).ok()).filter(|&number| number < usize::MAX / 8)
}
