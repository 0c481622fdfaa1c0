//! A prefix that goes through the model once and is continued many times, and a sequence that goes to disk and back.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use monopass::engine::{EngineOptions, ExecutorChoice, blocking};
use monopass::fs::DirFiles;
use monopass::generate::{Sampling, Sequence};
use monopass::{Error, Generator, blocks::checkpoint};
use std::ops::ControlFlow;

/// The text that a sequence is continued by.
async fn more(generator: &mut Generator, sequence: &mut Sequence) -> Result<String, Error> {
    let generated = generator.generate(sequence, 40, async |_token| ControlFlow::Continue(())).await?;
    let bytes: Vec<u8> = generated.tokens.iter().filter_map(|&token| u8::try_from(token).ok()).collect();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = DirFiles::open(concat!(env!("CARGO_MANIFEST_DIR"), "/models/sotu-mamba2"))?;
    let model = checkpoint::load(&files)?;
    let engine = blocking::open(ExecutorChoice::Auto, &EngineOptions::default())?;
    pollster::block_on(async {
        let mut generator = Generator::new(&engine, model.config, model.params).await?;
        let mut prefix = generator.sequence(Sampling { temperature: 0.7, top_p: 0.9, ..Sampling::default() })?;
        prefix.push(&"The people of the United States ".bytes().map(u32::from).collect::<Vec<_>>());
        generator.prefill(&mut prefix).await?;
        println!("{} of {} tokens went through the model", prefix.n_consumed(), prefix.tokens().len());
        for seed in 1..=4 {
            let mut text = prefix.fork()?;
            text.sampling.seed = seed;
            println!("{seed}: {:?}", more(&mut generator, &mut text).await?);
            if seed == 4 {
                let bytes = generator.save(&text).await?;
                let mut again = generator.restore("the state", &bytes)?;
                println!("   {:?}, after {} bytes on disk", more(&mut generator, &mut again).await?, bytes.len());
            }
        }
        Ok::<_, Error>(())
    })?;
    Ok(())
}
