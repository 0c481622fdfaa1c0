//! Makes a checkpoint with random weights from a fixed seed: `make_checkpoint [DIR [SHAPES [TYPE]]]`. Without a directory it only says what it
//! would write. SHAPES are those of a published model, such as `mamba2-130m`, or `tiny`; TYPE is f32, f16 or bf16.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use monopass::blocks::checkpoint::{SaveOptions, save_with};
use monopass::blocks::{init, shapes};
use monopass::{LmConfig, Mamba2Config};
use std::error::Error;
use std::path::Path;

/// Where the random numbers start.
const SEED: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next();
    let config = config(args.next().as_deref().unwrap_or("tiny"))?;
    let storage = args.next().as_deref().unwrap_or("f32").parse()?;
    let files = save_with(&config, &init::lm(&config, SEED)?, &SaveOptions { storage, ..SaveOptions::default() })?;
    for (name, bytes) in files {
        println!("{name}: {} bytes", bytes.len());
        if let Some(dir) = &dir {
            std::fs::create_dir_all(dir)?;
            std::fs::write(Path::new(dir).join(name), bytes)?;
        }
    }
    Ok(())
}

/// `tiny` has a token for each byte and two layers, about 100 kB.
fn config(shapes: &str) -> Result<LmConfig, Box<dyn Error>> {
    if shapes == "tiny" {
        let block = Mamba2Config { d_state: 16, headdim: 16, ..Mamba2Config::new(32) };
        return Ok(LmConfig::new(block, 2, 256));
    }
    shapes::published(shapes).ok_or_else(|| format!("no sizes {shapes}; there are tiny, {}", shapes::names().join(", ")).into())
}
