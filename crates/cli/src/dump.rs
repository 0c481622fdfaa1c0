//! Texts of every stage as files of a directory.

use crate::report::{Failure, io_failure};
use miette::Result;
use monopass::lower::dump::DumpSink;
use std::io;
use std::path::{Path, PathBuf};

/// Writes each text to a file, or nothing if there is no directory.
#[derive(Debug)]
pub(crate) struct DirDump {
    dir: Option<PathBuf>,
    failed: Option<(PathBuf, io::Error)>,
}

impl DirDump {
    pub(crate) fn open(dir: Option<&Path>) -> Result<Self> {
        if let Some(dir) = dir {
            std::fs::create_dir_all(dir).map_err(|error| io_failure(dir, &error))?;
            if let Some(stale) = stale(dir).map_err(|error| io_failure(dir, &error))? {
                let what = format!("{}: has {stale:?} of an earlier dump", dir.display());
                return Err(Failure::new(what).help("give an empty directory, so that stages of two graphs are not mixed").into());
            }
        }
        Ok(Self { dir: dir.map(Path::to_owned), failed: None })
    }

    /// The first file that could not be written, if any.
    pub(crate) fn finish(self) -> Result<()> {
        match self.failed {
            Some((path, error)) => Err(io_failure(&path, &error).into()),
            None => Ok(()),
        }
    }
}

/// A file in the directory that has a name as dumps have.
fn stale(dir: &Path) -> io::Result<Option<String>> {
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if is_of_a_dump(&name) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn is_of_a_dump(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_graph = name.strip_suffix(".ir").and_then(|name| name.split_once('-')).is_some_and(|(number, _)| is_number(number));
    let is_kernel = name.strip_suffix(".wgsl").and_then(|name| name.strip_prefix('k')).is_some_and(is_number);
    is_graph || is_kernel || name == "plan.txt" || name == "clusters.txt"
}

impl DumpSink for DirDump {
    fn dump(&mut self, name: &str, text: &str) {
        let Some(path) = self.dir.as_ref().map(|dir| dir.join(name)) else { return };
        if let Err(error) = std::fs::write(&path, text) {
            self.failed.get_or_insert((path, error));
        }
    }

    fn wants_text(&self) -> bool {
        self.dir.is_some()
    }
}
