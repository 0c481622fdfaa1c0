//! Checkpoints in directories, and files that are replaced whole, on native targets.

use monopass_blocks::checkpoint::{Bytes, Files, GGUF_FILE, INDEX_FILE, ReadError, TORCH_FILE, WEIGHTS_FILE};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Writes a file so that at any time either the old or the new one is there, whole. A link is followed, and the file behind it replaced; an
/// existing file keeps its permissions.
///
/// # Errors
/// A directory that is not there or cannot be written, something else than a file at `path`, no room. What was there is as it was.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (path, old) = target(path)?;
    let (beside, mut file) = create_beside(&path)?;
    let mut write = || -> io::Result<()> {
        if let Some(old) = &old {
            file.set_permissions(old.permissions())?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)?;
        // Names of two files reach the disk in the order in which they were given only if the directory is written between them.
        #[cfg(unix)]
        File::open(parent(&path))?.sync_all()?;
        Ok(())
    };
    let written = write();
    if written.is_err() {
        // What is half written is of no use.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

/// Whether [`write_atomically`] could write there now, without writing anything that stays.
///
/// # Errors
/// Those of [`write_atomically`], but for no room.
pub fn check_writable(path: &Path) -> io::Result<()> {
    let (path, _) = target(path)?;
    let (beside, _) = create_beside(&path)?;
    std::fs::remove_file(beside)
}

/// The file behind a path, and what is known of it if it is there.
fn target(path: &Path) -> io::Result<(PathBuf, Option<std::fs::Metadata>)> {
    match path.metadata() {
        Ok(old) if old.is_file() => Ok((path.canonicalize()?, Some(old))),
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() => Ok((path.to_owned(), None)),
        Err(error) => Err(error),
    }
}

/// A new file in the same directory, which no one else has.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    if path.file_name().is_none() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"));
    }
    loop {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let beside = parent(path).join(format!(".monopass-{}-{n}.tmp", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&beside) {
            Ok(file) => return Ok((beside, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_replaced_whole_and_others_left_alone() {
        let dir = std::env::temp_dir().join(format!("monopass-fs-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let names = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
        let path = dir.join("a.state");
        std::fs::write(dir.join("a.tmp"), "notes").unwrap();
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"two").unwrap();
        check_writable(&path).unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), std::fs::read(dir.join("a.tmp")).unwrap()), (b"two".to_vec(), b"notes".to_vec()));
        for wrong in [dir.clone(), dir.join("no/such/dir/file"), dir.join("..")] {
            assert!(write_atomically(&wrong, b"x").is_err() && check_writable(&wrong).is_err(), "{}", wrong.display());
        }
        assert_eq!(names(&dir), 2);
        #[cfg(unix)]
        {
            use std::os::unix::fs::{PermissionsExt, symlink};
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            let link = dir.join("link");
            symlink(&path, &link).unwrap();
            write_atomically(&link, b"three").unwrap();
            assert!(link.symlink_metadata().unwrap().is_symlink());
            assert_eq!(std::fs::read(&path).unwrap(), b"three");
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
