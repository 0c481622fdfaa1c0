//! Guards that a model whose weights are stored in 16 or 8 bits, or in several buffers, computes what the interpreter computes
//! with the numbers that were kept.

mod common;

use common::{Outcome, Sources, compile, difference_within, gpu, settle};
use indexmap::IndexMap;
use monopass::blocks::{Head, Io, LmGraph, Mamba2Config, Mamba3Config, init, model};
use monopass::ir::storage::{ParamStorage, Storage, StoredTensor};
use monopass::ir::{Elements, TensorData};
use monopass::lower::{CompileOptions, Pass, Target};
use monopass::{Engine, LmConfig, Tensors};
use pollster::block_on;

/// Weights as they are stored, how, and as computations see them.
struct Stored {
    layout: IndexMap<String, ParamStorage>,
    buffers: Tensors,
    widened: Tensors,
}

/// The linear maps and the embedding in `storage` where they fit, in buffers of at most `max_bytes`.
fn stored(config: &LmConfig, storage: Storage, max_bytes: u64) -> Outcome<Stored> {
    let mut all = Stored { layout: IndexMap::new(), buffers: Tensors::new(), widened: Tensors::new() };
    let params = init::lm(config, 7)?;
    for info in config.parameters()? {
        let tensor = params[&info.name].clone();
        let tensor = StoredTensor::quantize(tensor.clone(), info.role.storage(tensor.shape(), storage))?;
        let how = ParamStorage::within(tensor.storage(), tensor.shape(), max_bytes);
        all.buffers.extend(how.buffers(&info.name, tensor.clone())?);
        all.widened.insert(info.name.clone(), tensor.into_f32());
        all.layout.insert(info.name, how);
    }
    Ok(all)
}

fn models() -> Outcome<Vec<(&'static str, LmConfig)>> {
    let mamba2 = Mamba2Config { headdim: 16, d_state: 8, ..Mamba2Config::new(32) };
    let mamba3 = Mamba3Config { headdim: 16, d_state: 8, ..Mamba3Config::new(32) };
    // 37 and 33 rows: neither parts nor tiles are whole. A d_model of 32 has blocks of q8_0, in_proj of Mamba-3 odd rows.
    Ok(vec![
        ("tied", LmConfig::new(mamba2.clone(), 2, 37)),
        ("untied", LmConfig { tie_embeddings: false, ..LmConfig::new(mamba2, 1, 33) }),
        ("mamba3", LmConfig::new(mamba3, 1, 37)),
    ])
}

fn ids(batch: usize, len: usize, vocab: usize) -> Outcome<TensorData> {
    let ids = (0..batch * len).map(|i| u32::try_from((i * 7 + i / 5) % vocab)).collect::<Result<Vec<_>, _>>()?;
    Ok(TensorData::new([batch, len], Elements::U32(ids))?)
}

#[test]
fn narrow_weights_and_weights_in_parts_compute_as_the_interpreter_does() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    let mut problems = Vec::new();
    for (name, config) in models()? {
        for len in [1, 19] {
            let graph = model::graph(&config, 3, len, LmGraph::new(Io::Stateful, Head::Logits))?;
            let n_cmds = compile(&graph, device.target(), &CompileOptions::default())?.cmds.len();
            let whole = Storage::ALL.map(|storage| (storage, u64::MAX));
            for (storage, max_bytes) in whole.into_iter().chain([(Storage::F32, 600), (Storage::Q8_0, 600)]) {
                let Stored { layout, buffers, widened } = stored(&config, storage, max_bytes)?;
                let mut sources = Sources::of(&graph, 3);
                sources.inputs.insert("ids".to_owned(), ids(3, len, config.vocab_size)?);
                sources.params = widened;
                let wanted = sources.interpret(&graph)?;
                let rewritten = graph.with_storage(&layout)?;
                sources.params = buffers;
                let least = Target::webgpu_default();
                let own = device.target();
                for target in [own, &least].into_iter().take(if storage == Storage::Q8_0 { 2 } else { 1 }) {
                    let of = format!("{name} len {len} {storage} in parts of {max_bytes}, for {}", target.name);
                    let plan = compile(&rewritten, target, &CompileOptions::default()).map_err(|error| format!("{of}: {error}"))?;
                    if max_bytes == u64::MAX && target.name == own.name && plan.cmds.len() > n_cmds {
                        problems.push(format!("{of}: {} dispatches where f32 has {n_cmds}", plan.cmds.len()));
                    }
                    let problem = difference_within(&sources.execute(device, plan)?, &wanted, 4.0);
                    problems.extend(problem.map(|what| format!("{of}: {what}")));
                }
            }
        }
    }
    settle(&problems)
}

#[test]
fn with_each_pass_off_narrow_weights_are_the_same() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    let (_, config) = models()?.swap_remove(0);
    let graph = model::graph(&config, 3, 5, LmGraph::new(Io::Stateful, Head::Logits))?;
    let mut problems = Vec::new();
    for storage in [Storage::Bf16, Storage::Int8, Storage::Q8_0] {
        let Stored { layout, buffers, widened } = stored(&config, storage, 700)?;
        let mut sources = Sources::of(&graph, 3);
        sources.inputs.insert("ids".to_owned(), ids(3, 5, config.vocab_size)?);
        sources.params = widened;
        let wanted = sources.interpret(&graph)?;
        sources.params = buffers;
        let rewritten = graph.with_storage(&layout)?;
        for pass in Pass::ALL {
            let plan = compile(&rewritten, device.target(), &CompileOptions::without(&[pass]))?;
            let problem = difference_within(&sources.execute(device, plan)?, &wanted, 4.0);
            problems.extend(problem.map(|what| format!("{storage} without {}: {what}", pass.name())));
        }
    }
    settle(&problems)
}

#[test]
fn an_embedding_over_the_binding_limit_is_split_by_the_engine() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    // Just over the least limit that a device may have, 128 MiB; those that can bind more do not split it.
    let block = Mamba2Config { headdim: 32, d_state: 4, ..Mamba2Config::new(64) };
    let config = LmConfig { tie_embeddings: true, ..LmConfig::new(block, 1, 525_000) };
    let params = std::sync::Arc::new(init::lm(&config, 3)?.into_iter().collect::<Tensors>());
    let graph = model::graph(&config, 3, 1, LmGraph::new(Io::Stateful, Head::Next))?;
    let ids = TensorData::new([3, 1], Elements::U32(vec![0, 262_500, 524_999]))?;
    let mut tokens = Vec::new();
    for engine in [Engine::cpu(), Engine::on(device.clone())] {
        let params = block_on(engine.upload(std::sync::Arc::clone(&params)))?;
        let is_split = params.storage("backbone.embedding.weight").is_some_and(|how| !how.parts().is_empty());
        assert_eq!(is_split, engine.is_gpu() && device.target().max_binding_bytes < 525_000 * 64 * 4);
        let program = block_on(engine.load(&graph, &params, &CompileOptions::default()))?;
        let run = block_on(program.run(&mut engine.session(), &[("ids", &ids)]))?;
        tokens.push(run.outputs["next"].clone());
        // Tokens that do not exist are found in a table in parts, too.
        let wrong = TensorData::new([3, 1], Elements::U32(vec![0, 525_000, 1]))?;
        let error = block_on(program.run(&mut engine.session(), &[("ids", &wrong)])).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("index 525000 at [1, 0]"), "{error}");
    }
    assert_eq!(tokens[0], tokens[1]);
    Ok(())
}
