//! A length of a class gives the texts that every other length of the class gives, so no new pipeline.

use crate::common::{Outcome, compile, profile, settle};
use crate::{published, small};
use indexmap::IndexSet;
use monopass_blocks::{BlockGraph, Head, Io, LmConfig, LmGraph, block, model};
use monopass_ir::Graph;
use monopass_lower::{CompileOptions, Target};

/// Lengths by class: one token to eight, under 256 rows, more.
const CLASSES: [&[usize]; 3] = [&[1, 5, 8], &[20, 100], &[300, 2048]];
fn texts(graph: &Graph, target: &Target) -> Outcome<IndexSet<String>> {
    Ok(compile(graph, target, &CompileOptions::default())?.kernels.into_iter().map(|kernel| kernel.wgsl).collect())
}

/// Asserts that all lengths of each class give the same texts.
fn check(name: &str, classes: &[&[usize]], graph_of: impl Fn(usize) -> Outcome<Graph>) -> Outcome {
    for target in ["nvidia", "webgpu-default", "lavapipe"] {
        let target = profile(target)?;
        for lens in classes {
            let first = texts(&graph_of(lens[0])?, &target)?;
            for &len in &lens[1..] {
                let other = texts(&graph_of(len)?, &target)?;
                let news: Vec<&String> = other.iter().filter(|text| !first.contains(*text)).collect();
                let gone: Vec<&String> = first.iter().filter(|text| !other.contains(*text)).collect();
                let shown = |texts: &[&String]| texts.first().map_or(String::new(), |text| (*text).clone());
                if !news.is_empty() || !gone.is_empty() {
                    return Err(format!(
                        "{name} for {}: {len} tokens need {} kernels that {} tokens do not, such as\n{}\nand not {}, such as\n{}",
                        target.name,
                        news.len(),
                        lens[0],
                        shown(&news),
                        gone.len(),
                        shown(&gone)
                    )
                    .into());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn of_blocks() -> Outcome {
    let mut problems = Vec::new();
    for (name, config) in published().into_iter().chain(small()) {
        for io in [Io::Stateful, Io::Fresh] {
            let checked = check(&format!("{name} {io:?}"), &CLASSES, |len| Ok(block::graph(&config, 1, len, io)?));
            problems.extend(checked.err().map(|error| error.to_string()));
        }
    }
    settle(&problems)
}

/// With more sequences than one the rows of the products are more than the tokens.
#[test]
fn of_batches() -> Outcome {
    for (name, config) in small() {
        check(name, &[&[1, 2], &[3, 5, 8], &[9, 20, 80], &[300, 500]], |len| Ok(block::graph(&config, 3, len, Io::Stateful)?))?;
    }
    Ok(())
}

#[test]
fn of_packed_and_padded_sequences() -> Outcome {
    for (name, config) in small() {
        let options = BlockGraph { seq_idx: true, mask: true, ..Io::Fresh.into() };
        check(name, &CLASSES, |len| Ok(block::graph_with(&config, 1, len, options)?))?;
    }
    Ok(())
}

#[test]
fn of_language_models() -> Outcome {
    for (name, block) in small() {
        let config = LmConfig::new(block, 2, 61);
        for head in [Head::Logits, Head::Next] {
            check(&format!("{name} {head:?}"), &CLASSES, |len| Ok(model::graph(&config, 1, len, LmGraph::new(Io::Stateful, head))?))?;
        }
    }
    Ok(())
}
