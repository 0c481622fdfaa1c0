//! What training promises: the logits of a batch never live at once, and the loss by blocks is the same on a device.

use crate::common::{Outcome, Sources, compile, difference, gpu, profile, targets};
use monopass_blocks::train::head_loss;
use monopass_ir::{DType, Graph, GraphBuilder};
use monopass_lower::CompileOptions;

/// Rows, width, vocabulary and rows of a block.
type Sizes = [usize; 4];

fn loss_graph([rows, d, vocab, block_rows]: Sizes) -> Outcome<Graph> {
    let g = GraphBuilder::new("head_loss");
    let (hidden, weight) = (g.input("hidden", DType::F32, [rows, d]), g.param("weight", DType::F32, [vocab, d]));
    let head = head_loss(hidden, weight, g.input("target", DType::I32, [rows]), -100, block_rows);
    for (name, value) in [("loss", head.loss), ("count", head.count), ("d_hidden", head.d_hidden), ("d_weight", head.d_weight)] {
        g.output(name, value);
    }
    Ok(g.finish()?)
}

/// A block has its logits and their exponentials; what else lives are sums of gradients of the weight, and the results by rows.
#[test]
fn only_one_block_of_logits_lives() -> Outcome {
    let sizes @ [rows, d, vocab, block_rows] = [4096, 64, 8192, 1024];
    let graph = loss_graph(sizes)?;
    for target in ["nvidia", "webgpu-default", "lavapipe"] {
        let plan = compile(&graph, &profile(target)?, &CompileOptions::default())?;
        let slots = plan.totals().slots_bytes;
        let [block, all, weight, hidden] = [block_rows * vocab, rows * vocab, vocab * d, rows * d].map(|n| 4 * n as u64);
        assert!(slots < all, "for {target}: {slots} bytes of slots where all logits are {all}\n{plan}");
        let wanted = 2 * block + 2 * weight + hidden;
        assert!(slots <= wanted * 105 / 100, "for {target}: {slots} bytes of slots, {wanted} wanted\n{plan}");
    }
    Ok(())
}

#[test]
fn the_loss_by_blocks_is_the_same_on_a_device() -> Outcome {
    let Some(device) = gpu()? else { return Ok(()) };
    for sizes in [[7, 12, 61, 3], [130, 20, 96, 50], [3, 8, 5, 9]] {
        let graph = loss_graph(sizes)?;
        let sources = Sources::of(&graph, 5);
        let wanted = sources.interpret(&graph)?;
        for (name, target) in targets(device) {
            let given = sources.execute(device, compile(&graph, &target, &CompileOptions::default())?)?;
            if let Some(problem) = difference(&given, &wanted) {
                return Err(format!("{sizes:?} with the kernels of {name}: {problem}").into());
            }
        }
    }
    Ok(())
}
