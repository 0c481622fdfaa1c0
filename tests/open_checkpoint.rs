//! Guards that a checkpoint brought to a device one tensor at a time computes what the interpreter computes with all of it in f32.

mod common;

use common::{Outcome, difference_within, folder, gpu, settle};
use monopass::blocks::checkpoint::{self, LoadOptions, Storage, open};
use monopass::blocks::{Head, Io, LmGraph, model};
use monopass::fs::DirFiles;
use monopass::ir::eval::Interpreter;
use monopass::ir::{Elements, TensorData};
use monopass::lower::CompileOptions;
use monopass::{Engine, Tensors};
use pollster::block_on;

const BATCH: usize = 3;
const LEN: usize = 7;

#[test]
fn tensors_of_a_checkpoint_are_brought_to_a_device_one_by_one() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    let engine = Engine::on(device.clone());
    let mut problems = Vec::new();
    for id in ["ckpt_gguf_mamba2", "ckpt_hf_mamba2_sharded", "ckpt_ssm_mamba3"] {
        let files = DirFiles::open(folder("golden").join(id))?;
        let is_mamba3 = id.ends_with('3');
        for storage in [None, Some(Storage::F16), Some(Storage::Int8), Some(Storage::Q8_0)] {
            let options = LoadOptions { a_act: is_mamba3.then_some(monopass::blocks::AAct::HeavyTail), storage };
            let opened = open(&files, &options)?;
            opened.check_finite()?;
            let graph = model::graph(opened.config(), BATCH, LEN, LmGraph::new(Io::Stateless, Head::Logits))?;
            let inputs = Tensors::from([("ids".to_owned(), ids(opened.config().n_tokens())?)]);
            let params = checkpoint::load_with(&files, &options)?.params;
            let wanted = Interpreter::new(&graph)?.run(&inputs, &params, &mut Tensors::new())?;
            let mut uploader = engine.uploader();
            for param in opened.params() {
                block_on(uploader.put(&param.name, opened.tensor(&param.name)?))?;
            }
            let params = block_on(uploader.finish())?;
            for param in opened.params() {
                let found = params.storage(&param.name).map(monopass::ir::storage::ParamStorage::storage);
                assert_eq!(found, Some(param.storage), "{id} {}", param.name);
            }
            let program = block_on(engine.load(&graph, &params, &CompileOptions::default()))?;
            let run = block_on(program.run(&mut engine.session(), &[("ids", &inputs["ids"])]))?;
            let problem = difference_within(&run.outputs, &wanted, 4.0);
            problems.extend(problem.map(|what| format!("{id} {storage:?}: {what}")));
        }
    }
    settle(&problems)
}

fn ids(n_tokens: usize) -> Outcome<TensorData> {
    let ids = (0..BATCH * LEN).map(|i| u32::try_from((i * 5 + i / 4) % n_tokens)).collect::<Result<Vec<_>, _>>()?;
    Ok(TensorData::new([BATCH, LEN], Elements::U32(ids))?)
}
