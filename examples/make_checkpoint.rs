//! Makes a small checkpoint with random weights from a fixed seed: with a directory as argument writes it there, without one only says what
//! it would write.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use monopass::blocks::{CheckpointError, checkpoint, init};
use monopass::{LmConfig, Mamba2Config};
use std::path::Path;

/// Where the random numbers start.
const SEED: u64 = 1;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args_os().nth(1);
    for (name, bytes) in files()? {
        println!("{name}: {} bytes", bytes.len());
        if let Some(dir) = &dir {
            std::fs::create_dir_all(dir)?;
            std::fs::write(Path::new(dir).join(name), bytes)?;
        }
    }
    Ok(())
}

/// One token a byte, two layers, about 100 kB.
fn config() -> LmConfig {
    let block = Mamba2Config { d_state: 16, headdim: 16, ..Mamba2Config::new(32) };
    LmConfig::new(block, 2, 256)
}

/// The files of the checkpoint by name, in the layout of Hugging Face.
fn files() -> Result<impl IntoIterator<Item = (String, Vec<u8>)>, CheckpointError> {
    let config = config();
    checkpoint::save(&config, &init::lm(&config, SEED)?)
}
