//! Text from the byte-level model that ships with the project: bytes in, bytes out, one submit a token.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use monopass::engine::{EngineOptions, ExecutorChoice, blocking};
use monopass::fs::DirFiles;
use monopass::generate::Sampling;
use monopass::{Generator, blocks::checkpoint};
use std::ops::ControlFlow;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = DirFiles::open(concat!(env!("CARGO_MANIFEST_DIR"), "/models/sotu-mamba2"))?;
    let model = checkpoint::load(&files)?;
    let engine = blocking::open(ExecutorChoice::Auto, &EngineOptions::default())?;
    println!("{}", engine.describe());

    let prompt: Vec<u32> = "The ".bytes().map(u32::from).collect();
    let generated = pollster::block_on(async {
        let mut generator = Generator::new(&engine, model.config, model.params).await?;
        let mut text = generator.sequence(Sampling { temperature: 0.7, seed: 3, ..Sampling::default() })?;
        text.push(&prompt);
        generator.generate(&mut text, 64, async |_token| ControlFlow::Continue(())).await
    })?;
    let bytes: Vec<u8> = generated.tokens.iter().filter_map(|&token| u8::try_from(token).ok()).collect();
    println!("{:?}", String::from_utf8_lossy(&bytes));
    println!("{} submit and {} dispatches a token", generated.step.submits, generated.step.dispatches);
    Ok(())
}
