//! Checkpoints mapped into memory, so that a large one is not read twice.

use crate::report::{Failure, io_failure};
use miette::Result;
use monopass::blocks::checkpoint::{Bytes, CONFIG_FILE, Files, ReadError};
use monopass::fs::DirFiles;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The files of a checkpoint.
#[derive(Debug)]
pub(crate) struct MappedFiles(DirFiles);

impl MappedFiles {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let files = DirFiles::open(path).map_err(|error| {
            io_failure(path, &error)
                .help(format!("give the directory that holds {CONFIG_FILE}, or the .safetensors or .bin file beside it, or a .gguf file"))
        })?;
        Ok(Self(files))
    }

    /// The file of this name, if there is one.
    pub(crate) fn get(&self, name: &str) -> Result<Option<Bytes<'_>>> {
        let path = self.0.locate(name);
        self.read(name).map_err(|error| {
            let path = path.map_or_else(|| name.to_owned(), |path| path.display().to_string());
            Failure::new(format!("{path}: {error}")).help("check that it is a file that may be read").into()
        })
    }

    /// Whether there is a file of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.locate(name).is_some()
    }
}

impl Files for MappedFiles {
    fn read(&self, name: &str) -> Result<Option<Bytes<'_>>, ReadError> {
        self.0.locate(name).map(|path| map(&path)).transpose()
    }

    fn names(&self) -> Result<Vec<String>, ReadError> {
        self.0.names()
    }
}

/// A file with an end: a pipe that nobody writes to would block for ever when it is opened.
pub(crate) fn regular(path: &Path) -> io::Result<File> {
    if path.metadata()?.is_file() { File::open(path) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")) }
}

/// All of a regular file.
pub(crate) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn map(path: &Path) -> Result<Bytes<'static>, ReadError> {
    let file = regular(path)?;
    // SAFETY: the bytes change if another process writes the file meanwhile; parsers check every length against the
    // mapping before they read, and a checkpoint that is being overwritten has no meaning anyway.
    #[expect(unsafe_code, reason = "files of many gigabytes are not copied to be read")]
    let mapped = unsafe { memmap2::Mmap::map(&file)? };
    Ok(Box::new(mapped))
}
