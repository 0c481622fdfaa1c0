//! A training run on disk, so that it can go on after any interruption.
//!
//! Each save is a file of tensors and then a file that describes it, both written beside their place and moved there: the second is there
//! only if the first is whole. The newest whole pair is where a run goes on from.

use super::data::{Order, Position};
use super::hash::fnv1a;
use crate::error::Error;
use monopass_blocks::cases::read_tensors;
use monopass_blocks::checkpoint::{WEIGHTS_FILE, write_tensors};
use monopass_ir::eval::Tensors;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where saves lie in a run's directory.
const DIR: &str = "training";
/// Form of the description.
const VERSION: u32 = 1;

/// What a run was started with; it can only be resumed with the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunOptions {
    /// The model, as text.
    pub model: String,
    /// A number that differs between texts.
    pub data: u64,
    /// A number that differs between first parameters.
    pub start: u64,
    /// Sequences a batch.
    pub batch: usize,
    /// Tokens of each.
    pub len: usize,
    /// Batches a step.
    pub accumulate: usize,
    /// Share of the text that is held out.
    pub held_out: f64,
    /// Order of windows.
    pub order: Order,
    /// What they are drawn from.
    pub seed: u64,
    /// What trains, as text.
    pub trainable: String,
    /// Optimizer and learning rates, as text.
    pub optimizer: String,
}

/// A save.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    version: u32,
    /// Steps taken.
    pub step: u64,
    /// Where the next batch comes from.
    pub position: Position,
    /// Hash of the file of tensors.
    tensors: u64,
    /// What the run was started with.
    pub options: RunOptions,
}

/// A run's directory that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file cannot be read or written.
    #[error("{}: the file cannot be read or written\n  help: check that the directory is there, may be written, and has room", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// There is nothing to go on from.
    #[error("{}: no saved step\n  help: start the run without --resume", path.display())]
    Nothing {
        /// The directory.
        path: PathBuf,
    },
    /// There is a run already.
    #[error("{}: there is a run already, saved at step {step}\n  help: go on with --resume, or give another directory", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
        /// Its last saved step.
        step: u64,
    },
    /// There is a model that a run would overwrite.
    #[error("{}: there is a model already\n  help: give another directory to --out", path.display())]
    Occupied {
        /// The file.
        path: PathBuf,
    },
    /// A description is no description of ours.
    #[error("{}: not the description of a saved step: {problem}\n  help: remove the file to go on from the one before it", path.display())]
    Description {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Tensors are not those that were saved.
    #[error(
        "{}: not what was saved; the file was cut off or changed\n  help: remove it and the .json file beside it to go on from the save before",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The run was started with other options.
    #[error("{}: the run was started with {what} {saved}, not {given}\n  help: resume with the options that it was started with", path.display())]
    Other {
        /// The directory.
        path: PathBuf,
        /// Which option.
        what: &'static str,
        /// As it was.
        saved: String,
        /// As it is now.
        given: String,
    },
}

/// A run's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    dir: PathBuf,
    keep: usize,
}

impl Store {
    /// The run in `dir`, of whose saves the last `keep` stay (at least 1).
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>, keep: usize) -> Self {
        Self { dir: dir.into(), keep: keep.max(1) }
    }

    /// Makes the directory of a new run.
    ///
    /// # Errors
    /// [`StoreError::Exists`] if there is a run in it, [`StoreError::Occupied`] if there is another model; [`StoreError::Io`].
    pub fn begin(&self) -> Result<(), StoreError> {
        let model = self.dir.join(WEIGHTS_FILE);
        if self.steps()?.is_empty() && model.exists() {
            return Err(StoreError::Occupied { path: model });
        }
        let dir = self.dir.join(DIR);
        fs::create_dir_all(&dir).map_err(|source| StoreError::Io { path: dir.clone(), source })?;
        match self.steps()?.last() {
            Some(&step) => Err(StoreError::Exists { path: self.dir.clone(), step }),
            None => Ok(()),
        }
    }

    /// Saves a step; a crash at any point leaves the saves before it as they are.
    ///
    /// # Errors
    /// [`StoreError::Io`]; a tensor that the format cannot hold.
    pub fn save(&self, step: u64, position: Position, options: &RunOptions, state: &Tensors) -> Result<(), Error> {
        let tensors = write_tensors(&file_name(step, "safetensors"), state, None)?;
        let saved = Saved { version: VERSION, step, position, tensors: fnv1a(tensors.iter().copied()), options: options.clone() };
        let text = serde_json::to_vec_pretty(&saved).map_err(|error| StoreError::Io { path: self.dir.clone(), source: error.into() })?;
        write_atomically(&self.path(step, "safetensors"), &tensors)?;
        write_atomically(&self.path(step, "json"), &text)?;
        let steps = self.steps()?;
        for &old in steps.iter().take(steps.len().saturating_sub(self.keep)) {
            // The description goes first: without it the tensors are no save.
            for ext in ["json", "safetensors"] {
                let path = self.path(old, ext);
                fs::remove_file(&path).map_err(|source| StoreError::Io { path, source })?;
            }
        }
        Ok(())
    }

    /// The last save, and its tensors.
    ///
    /// # Errors
    /// [`StoreError`] if there is none, or one that is damaged or was started with other options.
    pub fn load(&self, options: &RunOptions) -> Result<(Saved, Tensors), Error> {
        let step = *self.steps()?.last().ok_or_else(|| StoreError::Nothing { path: self.dir.clone() })?;
        let path = self.path(step, "json");
        let problem = |problem: String| StoreError::Description { path: path.clone(), problem };
        let saved: Saved = serde_json::from_slice(&read(&path)?).map_err(|error| problem(error.to_string()))?;
        if saved.version != VERSION || saved.step != step {
            return Err(problem(format!("version {} of step {}", saved.version, saved.step)).into());
        }
        self.check(&saved.options, options)?;
        let path = self.path(step, "safetensors");
        let bytes = read(&path)?;
        if fnv1a(bytes.iter().copied()) != saved.tensors {
            return Err(StoreError::Damaged { path }.into());
        }
        let tensors = read_tensors(&path.display().to_string(), &bytes)?;
        Ok((saved, tensors))
    }

    fn check(&self, saved: &RunOptions, given: &RunOptions) -> Result<(), StoreError> {
        let pairs = [
            ("the model", saved.model.clone(), given.model.clone()),
            ("a text of fingerprint", format!("{:x}", saved.data), format!("{:x}", given.data)),
            ("first parameters of fingerprint", format!("{:x}", saved.start), format!("{:x}", given.start)),
            ("--batch", saved.batch.to_string(), given.batch.to_string()),
            ("--len", saved.len.to_string(), given.len.to_string()),
            ("--accumulate", saved.accumulate.to_string(), given.accumulate.to_string()),
            ("--held-out", saved.held_out.to_string(), given.held_out.to_string()),
            ("windows", format!("{:?}", saved.order), format!("{:?}", given.order)),
            ("--seed", saved.seed.to_string(), given.seed.to_string()),
            ("--trainable", saved.trainable.clone(), given.trainable.clone()),
            ("the optimizer", saved.optimizer.clone(), given.optimizer.clone()),
        ];
        match pairs.into_iter().find(|(_, saved, given)| saved != given) {
            Some((what, saved, given)) => Err(StoreError::Other { path: self.dir.clone(), what, saved, given }),
            None => Ok(()),
        }
    }

    /// Saved steps in order.
    fn steps(&self) -> Result<Vec<u64>, StoreError> {
        let dir = self.dir.join(DIR);
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(StoreError::Io { path: dir, source }),
        };
        let mut steps = Vec::new();
        for entry in entries {
            let name = entry.map_err(|source| StoreError::Io { path: dir.clone(), source })?.file_name();
            let step: Option<u64> = name.to_str().and_then(|name| name.strip_prefix("step-")?.strip_suffix(".json")?.parse().ok());
            steps.extend(step);
        }
        steps.sort_unstable();
        Ok(steps)
    }

    fn path(&self, step: u64, ext: &str) -> PathBuf {
        self.dir.join(DIR).join(file_name(step, ext))
    }
}

fn file_name(step: u64, ext: &str) -> String {
    format!("step-{step:08}.{ext}")
}

fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    fs::read(path).map_err(|source| StoreError::Io { path: path.to_owned(), source })
}

/// [`crate::fs::write_atomically`], with this module's errors.
///
/// # Errors
/// [`StoreError::Io`].
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    crate::fs::write_atomically(path, bytes).map_err(|source| StoreError::Io { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use monopass_ir::TensorData;

    fn options() -> RunOptions {
        RunOptions {
            model: "m".to_owned(),
            data: 1,
            start: 2,
            batch: 3,
            len: 4,
            accumulate: 1,
            held_out: 0.1,
            order: Order::Carried,
            seed: 5,
            trainable: "all".to_owned(),
            optimizer: "adamw".to_owned(),
        }
    }

    fn state(value: f32) -> Tensors {
        Tensors::from([("w".to_owned(), TensorData::f32([2], [value, -0.0]).unwrap())])
    }

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("monopass-store-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            Self(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_last_save_is_gone_on_from() {
        let dir = Dir::new("last");
        let store = Store::new(&dir.0, 2);
        assert!(store.load(&options()).unwrap_err().to_string().contains("no saved step"));
        store.begin().unwrap();
        for step in [10, 20, 30] {
            let position = Position { epoch: 1, batch: step };
            store.save(step, position, &options(), &state(f32::from(u8::try_from(step).unwrap()))).unwrap();
        }
        let (saved, tensors) = store.load(&options()).unwrap();
        assert_eq!((saved.step, saved.position.batch), (30, 30));
        assert_eq!(tensors, state(30.0));
        assert_eq!(store.steps().unwrap(), [20, 30]);
        assert!(matches!(store.begin(), Err(StoreError::Exists { step: 30, .. })));
        let other = RunOptions { batch: 8, ..options() };
        assert!(store.load(&other).unwrap_err().to_string().contains("started with --batch 3, not 8"));
    }

    #[test]
    fn damaged_saves_are_errors() {
        let dir = Dir::new("damaged");
        let store = Store::new(&dir.0, 2);
        store.begin().unwrap();
        store.save(1, Position::default(), &options(), &state(1.0)).unwrap();
        let whole = fs::read(store.path(1, "safetensors")).unwrap();
        fs::write(store.path(1, "safetensors"), &whole[..whole.len() - 3]).unwrap();
        assert!(store.load(&options()).unwrap_err().to_string().contains("not what was saved"));
        // One bit of an element, which every reader of tensors would take.
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        fs::write(store.path(1, "safetensors"), flipped).unwrap();
        assert!(store.load(&options()).unwrap_err().to_string().contains("help: remove it"));
        fs::write(store.path(1, "json"), b"{").unwrap();
        assert!(store.load(&options()).unwrap_err().to_string().contains("not the description"));
        // A save that was cut off before its description is none.
        fs::write(store.path(2, "safetensors"), &whole).unwrap();
        assert_eq!(store.steps().unwrap(), [1]);
    }
}
