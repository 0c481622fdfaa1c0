//! Guards looking inside a run on a device: tapped values are those of the interpreter, and the first value that is not finite
//! is found where the interpreter finds it.

mod common;

use common::{Outcome, Sources, compile, difference, gpu};
use monopass::blocks::{Head, Io, LmGraph, Mamba2Config, init, model};
use monopass::hooks::{Culprit, trace_non_finite};
use monopass::ir::Elements;
use monopass::ir::storage::{Storage, StoredTensor};
use monopass::{CompileOptions, Engine, Graph, LmConfig, TensorData, Tensors};
use pollster::block_on;

fn config() -> LmConfig {
    LmConfig::new(Mamba2Config { headdim: 4, d_state: 3, ..Mamba2Config::new(16) }, 2, 23)
}

fn graph() -> Outcome<Graph> {
    Ok(model::graph(&config(), 3, 5, LmGraph::new(Io::Stateful, Head::LastLogits))?)
}

fn ids() -> Outcome<TensorData> {
    Ok(TensorData::new([3, 5], Elements::U32((0..15).map(|i| i * 3 % 23).collect()))?)
}

#[test]
fn tapped_values_are_those_of_the_interpreter() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    let (tapped, taps) =
        graph()?.with_taps(&["layers.*/mixer/in_proj", "layers.1/mixer/conv1d", "%9", "ids", "*norm_f*", "layers.0.ssm_state"])?;
    assert!(taps.len() >= 6, "{taps:?}");
    let mut sources = Sources::of(&tapped, 5);
    sources.inputs.insert("ids".to_owned(), ids()?);
    sources.params = init::lm(&config(), 2)?.into_iter().collect();
    let wanted = sources.interpret(&tapped)?;
    assert!(taps.iter().all(|tap| wanted.contains_key(&tap.output)));
    let found = sources.execute(device, compile(&tapped, device.target(), &CompileOptions::default())?)?;
    difference(&found, &wanted).map_or(Ok(()), |what| Err(what.into()))
}

/// What is found in a model with one element of one weight replaced.
fn traced(engine: &Engine, name: &str, at: usize, value: f32, storage: Storage) -> Outcome<Option<Culprit>> {
    let mut params: Tensors = init::lm(&config(), 2)?.into_iter().collect();
    let tensor = params.get_mut(name).ok_or("no such weight")?;
    tensor.as_f32_mut().ok_or("not f32")?[at] = value;
    block_on(async {
        let mut uploader = engine.uploader();
        for (name, tensor) in params {
            let own = if storage.fits(tensor.shape()) && tensor.shape().len() == 2 { storage } else { Storage::F32 };
            uploader.put(&name, StoredTensor::quantize(tensor, own)?).await?;
        }
        let (params, session) = (uploader.finish().await?, engine.session());
        Ok(trace_non_finite(engine, &graph()?, &params, &session, &[("ids", &ids()?)]).await?)
    })
}

#[test]
fn the_first_value_that_is_not_finite_is_found_on_every_executor() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    let mut all = Vec::new();
    for engine in [Engine::cpu(), Engine::on(device.clone())] {
        assert_eq!(traced(&engine, "backbone.norm_f.weight", 0, 1.0, Storage::F32)?, None);
        let nan = traced(&engine, "backbone.layers.1.mixer.in_proj.weight", 21, f32::NAN, Storage::Bf16)?.ok_or("not found")?;
        assert_eq!((nan.op.as_str(), nan.n_nan, &nan.first), ("param \"backbone.layers.1.mixer.in_proj.weight\"", 1, &vec![1, 5]));
        // exp(A_log) overflows.
        let inf = traced(&engine, "backbone.layers.0.mixer.A_log", 2, 100.0, Storage::F32)?.ok_or("not found")?;
        assert!(inf.op == "exp" && inf.n_inf == 1 && inf.first == [2] && inf.scope.starts_with("layers.0"), "{inf}");
        all.push((nan, inf));
    }
    assert_eq!(all[0], all[1]);
    Ok(())
}
