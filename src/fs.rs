//! Checkpoints in directories, on native targets.

use monopass_blocks::checkpoint::{Bytes, Files, GGUF_FILE, INDEX_FILE, ReadError, TORCH_FILE, WEIGHTS_FILE};
use std::io;
use std::path::{Path, PathBuf};

/// The files of a directory, read whole when they are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirFiles {
    dir: PathBuf,
    weights: Option<PathBuf>,
}

impl DirFiles {
    /// The checkpoint at `path`: a directory, or a `.safetensors` or `.bin` file, which then stands for the tensors, with the
    /// configuration beside it, or a `.gguf` file, which has it inside.
    ///
    /// # Errors
    /// Nothing is there, or neither of the two.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        if path.metadata()?.is_dir() {
            return Ok(Self { dir: path.to_owned(), weights: None });
        }
        if path.extension().is_none_or(|extension| extension != "safetensors" && extension != "bin" && extension != "gguf") {
            let message = "neither a directory nor a .safetensors, .bin or .gguf file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        Ok(Self { dir: dir.to_owned(), weights: Some(path.to_owned()) })
    }

    /// Where the file called `name` is; `None` if there is none.
    #[must_use]
    pub fn locate(&self, name: &str) -> Option<PathBuf> {
        match &self.weights {
            Some(weights) if name == weights_name(weights) => Some(weights.clone()),
            // One file was named, so a list of shards or another one beside it is not meant.
            Some(_) if [WEIGHTS_FILE, TORCH_FILE, GGUF_FILE, INDEX_FILE].contains(&name) => None,
            _ => Some(self.dir.join(name)).filter(|path| path.exists()),
        }
    }
}

/// What a file of tensors is called in a directory of its own; a GGUF file may have any name.
fn weights_name(path: &Path) -> &str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("bin") => TORCH_FILE,
        Some("gguf") => path.file_name().and_then(|name| name.to_str()).unwrap_or(GGUF_FILE),
        _ => WEIGHTS_FILE,
    }
}

impl Files for DirFiles {
    fn read(&self, name: &str) -> Result<Option<Bytes<'_>>, ReadError> {
        let read = |path: PathBuf| -> Result<Bytes<'_>, ReadError> {
            // A pipe that nobody writes to would block for ever when it is opened.
            if !path.metadata()?.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file").into());
            }
            Ok(Box::new(std::fs::read(path)?))
        };
        self.locate(name).map(read).transpose()
    }

    /// Names of the directory's files that are text; that of the file of tensors alone if one was named.
    fn names(&self) -> Result<Vec<String>, ReadError> {
        if let Some(weights) = &self.weights {
            return Ok(vec![weights_name(weights).to_owned()]);
        }
        let entries = std::fs::read_dir(&self.dir)?.collect::<io::Result<Vec<_>>>()?;
        Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }
}
