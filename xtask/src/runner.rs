//! Steps of a task: each is a program with a name, run in the repository's root, timed, and the end of the task if it fails.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Result of a task's part.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Runs steps.
#[derive(Debug)]
pub(crate) struct Runner {
    root: PathBuf,
    target: PathBuf,
    env: BTreeMap<String, String>,
    done: Vec<(String, Duration)>,
    /// Whether what needs a Vulkan driver is run.
    pub(crate) has_gpu: bool,
}

impl Runner {
    /// A runner for this repository. Its own manifest says where that is, so the working directory does not matter.
    pub(crate) fn new() -> Outcome<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask lies in the repository's root")?.to_owned();
        // An own setting of the caller is kept; cargo reads a relative one from the working directory, which is the root here.
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        Ok(Self { root, target, env: BTreeMap::new(), done: Vec::new(), has_gpu: false })
    }

    /// The repository.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where cargo builds, and tasks keep what may be deleted.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Sets an environment variable for all following steps.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.env.insert(name.to_owned(), value.into());
    }

    /// The value that steps see.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        self.env.get(name).cloned().or_else(|| std::env::var(name).ok())
    }

    /// Runs something with other environment variables, and the old ones again after it.
    pub(crate) fn with(&mut self, env: &[(&str, &str)], what: impl FnOnce(&mut Self) -> Outcome) -> Outcome {
        let before = self.env.clone();
        for (name, value) in env {
            self.set(name, *value);
        }
        let outcome = what(self);
        self.env = before;
        outcome
    }

    /// A step that cargo runs.
    pub(crate) fn cargo(&mut self, name: &str, args: &[&str]) -> Outcome {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        self.step(name, Command::new(cargo).args(args))
    }

    /// A step that a program runs which an earlier step has built: a path below the folder of the profile `dev`.
    pub(crate) fn built(&mut self, name: &str, program: &str, args: &[&str]) -> Outcome {
        let path = self.target.join("debug").join(format!("{program}{}", std::env::consts::EXE_SUFFIX));
        self.step(name, Command::new(path).args(args))
    }

    /// A step.
    pub(crate) fn step(&mut self, name: &str, command: &mut Command) -> Outcome {
        println!("\n==> {name}: {}", shown(command));
        let start = Instant::now();
        let status = command.current_dir(&self.root).envs(&self.env).status();
        let took = start.elapsed();
        let status = status.map_err(|error| format!("{name}: {} does not start: {error}", command.get_program().to_string_lossy()))?;
        if !status.success() {
            return Err(format!("{name} failed after {:.1} s ({status}): {}", took.as_secs_f64(), shown(command)).into());
        }
        println!("<== {name}: {:.1} s", took.as_secs_f64());
        self.done.push((name.to_owned(), took));
        Ok(())
    }

    /// Prints the steps that ran and how long they took.
    pub(crate) fn summary(&self) {
        if self.done.is_empty() {
            return;
        }
        println!("\nall passed");
        for (name, took) in &self.done {
            println!("{:>8.1} s  {name}", took.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|(_, took)| *took).sum();
        println!("{:>8.1} s  in all", total.as_secs_f64());
    }
}

/// A command as one would type it.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
    std::iter::once(program).chain(args).collect::<Vec<_>>().join(" ")
}
