//! Guards reverse mode: gradients of every case and of random graphs of all ops agree with finite differences in f64.

use monopass_ir::gradcheck::{Gradcheck, GradcheckError, Report, check};
use monopass_ir::{Graph, sample, text};
use std::error::Error;
use std::path::Path;

/// The report, or `None` if the graph has nothing to differentiate or rounds to 16 bits, which has no derivative.
fn report(graph: &Graph, seed: u64, with: &Gradcheck) -> Result<Option<Report>, Box<dyn Error>> {
    let rounds = graph
        .nodes()
        .flat_map(|(_, node)| &node.results)
        .any(|&value| graph.ty(value).dtype.is_float() && graph.ty(value).dtype.size_bytes() < 4);
    // The adjoint of a scan has no derivative of its own.
    if rounds || graph.nodes().any(|(_, node)| node.mnemonic() == "scan_grad") {
        return Ok(None);
    }
    let (inputs, params, states) = sample::inputs(graph, seed);
    match check(graph, &inputs, &params, &states, with) {
        // Zero tokens, or kinks alone, leave nothing to compare.
        Ok(report) => Ok((report.n_checked > 0).then_some(report)),
        Err(GradcheckError::NothingToCheck) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[test]
fn gradients_of_every_case_are_right() -> Result<(), Box<dyn Error>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases");
    let (mut n_checked, mut problems) = (0, Vec::new());
    let mut files: Vec<_> = std::fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|ext| ext == "ir")) {
        for graph in text::parse(&std::fs::read_to_string(file)?)? {
            let with = Gradcheck { max_elems: 24, ..Gradcheck::default() };
            let Some(report) = report(&graph, 7, &with).map_err(|error| format!("{}: {error}", file.display()))? else { continue };
            n_checked += report.n_checked;
            if !report.passed || report.n_not_smooth > report.n_checked / 2 {
                problems.push(format!("{}: {report}", file.display()));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(n_checked > 1000, "only {n_checked} elements were checked");
    Ok(())
}

#[test]
fn gradients_of_random_graphs_are_right() -> Result<(), Box<dyn Error>> {
    let (mut n_checked, mut n_not_smooth) = (0, 0);
    for seed in 0..2000 {
        let graph = sample::graph(seed, 3 + usize::try_from(seed % 13)?);
        let with = Gradcheck { max_elems: 8, tolerance: 1e-5, ..Gradcheck::default() };
        let Some(report) = report(&graph, seed, &with).map_err(|error| format!("{error}\n{graph}"))? else { continue };
        assert!(report.passed, "seed {seed}: {report}\n{graph}");
        n_checked += report.n_checked;
        n_not_smooth += report.n_not_smooth;
    }
    assert!(n_checked > 2000 && n_not_smooth < n_checked / 10, "{n_checked} elements were checked, {n_not_smooth} were not smooth");
    Ok(())
}
