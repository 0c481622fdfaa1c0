//! Texts of every stage as files of a directory.

use crate::report::io_failure;
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
