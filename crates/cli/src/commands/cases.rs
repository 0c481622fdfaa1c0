//! `monopass cases`: a directory of reference cases, each through the same compile path as everything else.

use crate::args::{ExecutorArgs, PassArgs};
use crate::files::MappedFiles;
use crate::output::{bar, counted, harmless, note, print_line};
use crate::report::{Failure, OrReport, io_failure};
use crate::{Outcome, engine, files};
use glob::Pattern;
use miette::Result;
use monopass::blocks::cases::{Case, CaseError, CaseGraphs, MANIFEST_FILE, Manifest, Verdict, read_tensors};
use monopass::blocks::checkpoint;
use monopass::engine::{Engine, Params, Program, Session, blocking};
use monopass::{CompileOptions, Error, Graph, TensorData, Tensors};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory with manifest.json
    dir: PathBuf,
    /// Only cases of this kind; may be given several times
    #[arg(long, value_name = "KIND")]
    kind: Vec<String>,
    /// Only cases whose id matches; may be given several times
    #[arg(long, value_name = "GLOB")]
    id: Vec<Pattern>,
    /// No cases whose id matches; may be given several times
    #[arg(long, value_name = "GLOB")]
    skip: Vec<Pattern>,
    /// Check the gradients of cases that have them, too
    #[arg(long)]
    grads: bool,
    #[command(flatten)]
    executor: ExecutorArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// One JSON object a case, and one of the counts at the end; an error that is no number is null
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let cases = selected(args)?;
    let engine = engine::open(&args.executor)?;
    note(&format!("{} on {}", counted(cases.len() as u64, "case"), engine.describe()));
    let runner = Runner { dir: &args.dir, engine: &engine, options: args.passes.options(), with_gradients: args.grads };
    let bar = bar("cases", cases.len() as u64);
    let (mut n_passed, mut n_failed) = (0usize, 0usize);
    for case in &cases {
        let result = runner.judge(case);
        let is_good = result.as_ref().is_ok_and(|verdicts| verdicts.iter().all(Verdict::passes));
        if is_good {
            n_passed += 1;
        } else {
            n_failed += 1;
        }
        bar.suspend(|| if args.json { print_line(&object(case, &result).to_string()) } else { print_failures(case, &result) })?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    if args.json {
        print_line(&json!({ "passed": n_passed, "failed": n_failed }).to_string())?;
    } else {
        print_line(&format!("{n_passed} passed, {n_failed} failed"))?;
    }
    Ok(if n_failed == 0 { Outcome::Good } else { Outcome::Bad })
}

/// The cases that the filters leave.
fn selected(args: &Args) -> Result<Vec<Case>> {
    let path = args.dir.join(MANIFEST_FILE);
    let bytes = files::bytes(&path).map_err(|error| io_failure(&path, &error).help("give a directory of cases"))?;
    let text = String::from_utf8(bytes).map_err(|_| Failure::new(format!("{}: not text in UTF-8", path.display())))?;
    let all = Manifest::parse(&text).or_report()?.cases;
    for kind in &args.kind {
        if !all.iter().any(|case| case.kind == *kind) {
            return Err(no_match("--kind", kind));
        }
    }
    for id in &args.id {
        if !all.iter().any(|case| id.matches(&case.id)) {
            return Err(no_match("--id", id.as_str()));
        }
    }
    let is_wanted = |case: &Case| {
        (args.kind.is_empty() || args.kind.contains(&case.kind))
            && (args.id.is_empty() || args.id.iter().any(|id| id.matches(&case.id)))
            && !args.skip.iter().any(|skip| skip.matches(&case.id))
    };
    let cases: Vec<Case> = all.into_iter().filter(is_wanted).collect();
    if cases.is_empty() {
        return Err(Failure::new("no case is left by the filters").help(format!("look for ids and kinds in {}", path.display())).into());
    }
    Ok(cases)
}

fn no_match(option: &str, filter: &str) -> miette::Report {
    Failure::new(format!("{option} {filter} matches no case")).help(format!("look for ids and kinds in {MANIFEST_FILE}")).into()
}

struct Runner<'a> {
    dir: &'a Path,
    engine: &'a Engine,
    options: CompileOptions,
    with_gradients: bool,
}

impl Runner<'_> {
    /// Runs a case and compares what it gives.
    fn judge(&self, case: &Case) -> std::result::Result<Vec<Verdict>, Failure> {
        let path = self.dir.join(&case.file);
        let bytes = files::bytes(&path).map_err(|error| io_failure(&path, &error))?;
        let tensors = read_tensors(&case.file, &bytes).map_err(|error| Failure::of(&error))?;
        case.check_shapes(&tensors).map_err(|error| Failure::of(&error))?;
        let (graphs, params) = self.graphs(case, &tensors)?;
        let mut run = CaseRun::new(self, params).map_err(|error| Failure::of(&error))?;
        let given = graphs.run(&tensors, &Tensors::new(), |graph, inputs, _, states| run.step(graph, inputs, states));
        Ok(case.judge(&given.map_err(|error| Failure::of(&error))?, &tensors, self.with_gradients))
    }

    fn graphs(&self, case: &Case, tensors: &Tensors) -> std::result::Result<(CaseGraphs, Tensors), Failure> {
        let failure = |error: CaseError| Failure::of(&error);
        if case.kind != "checkpoint" {
            let params = CaseGraphs::params_of(tensors);
            let graphs = if self.with_gradients { CaseGraphs::with_gradients(case, tensors) } else { CaseGraphs::new(case, tensors) };
            return Ok((graphs.map_err(failure)?, params));
        }
        let first = case.files.first().ok_or_else(|| Failure::new(format!("case {}: no files of a checkpoint", case.id)))?;
        let file = self.dir.join(first);
        let dir = file.parent().unwrap_or(self.dir);
        let files = MappedFiles::open(dir).map_err(|report| Failure::new(report.to_string()))?;
        let checkpoint = checkpoint::load_with(&files, &case.load_options()).map_err(|error| Failure::of(&error))?;
        Ok((CaseGraphs::of_checkpoint(case, tensors, &checkpoint).map_err(failure)?, checkpoint.params))
    }
}

/// The runs of a case, which share programs and states.
struct CaseRun<'a> {
    runner: &'a Runner<'a>,
    params: Params,
    session: Session,
    /// By the address of their graphs.
    programs: Vec<(*const Graph, Program)>,
}

impl<'a> CaseRun<'a> {
    fn new(runner: &'a Runner<'a>, params: Tensors) -> std::result::Result<Self, Error> {
        Ok(Self { params: blocking::upload(runner.engine, params)?, session: runner.engine.session(), runner, programs: Vec::new() })
    }

    /// States stay in the session from run to run; the host gets a copy of each after it.
    fn step(&mut self, graph: &Graph, inputs: &Tensors, states: &mut Tensors) -> std::result::Result<Tensors, Error> {
        let program = self.program(graph)?;
        let inputs: Vec<(&str, &TensorData)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let run = blocking::run(&program, &mut self.session, &inputs)?;
        for (name, _) in graph.states() {
            states.insert(name.to_owned(), blocking::read(&self.session, name)?);
        }
        Ok(run.outputs)
    }

    fn program(&mut self, graph: &Graph) -> std::result::Result<Program, Error> {
        let key = std::ptr::from_ref(graph);
        if let Some((_, program)) = self.programs.iter().find(|(known, _)| *known == key) {
            return Ok(program.clone());
        }
        let program = blocking::load(self.runner.engine, graph, &self.params, &self.runner.options)?;
        self.programs.push((key, program.clone()));
        Ok(program)
    }
}

type Judged = std::result::Result<Vec<Verdict>, Failure>;

fn print_failures(case: &Case, result: &Judged) -> Result<()> {
    match result {
        Err(error) => {
            let text = chain(error);
            let text = text.strip_prefix(&format!("case {}: ", case.id)).unwrap_or(&text);
            print_line(&harmless(&format!("FAIL {}: {text}", case.id)))
        }
        Ok(verdicts) => verdicts.iter().filter(|verdict| !verdict.passes()).try_for_each(|verdict| {
            let Verdict { tensor, error, atol, problem } = verdict;
            let problem = problem.as_ref().map_or_else(String::new, |problem| format!(": {problem}"));
            print_line(&harmless(&format!("FAIL {} {tensor} error {error:.3e} over atol {atol:.3e}{problem}", case.id)))
        }),
    }
}

fn object(case: &Case, result: &Judged) -> Value {
    let tensor = |verdict: &Verdict| {
        let Verdict { tensor, error, atol, problem } = verdict;
        json!({ "tensor": tensor, "error": error, "atol": atol, "passed": verdict.passes(), "problem": problem })
    };
    let tensors = result.as_ref().map(|verdicts| verdicts.iter().map(tensor).collect::<Vec<_>>()).unwrap_or_default();
    let error = result.as_ref().err().map(chain);
    let is_good = result.as_ref().is_ok_and(|verdicts| verdicts.iter().all(Verdict::passes));
    json!({ "id": case.id, "kind": case.kind, "passed": is_good, "error": error, "tensors": tensors })
}

/// An error with its causes.
fn chain(error: &Failure) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
