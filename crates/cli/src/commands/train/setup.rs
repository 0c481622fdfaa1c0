//! From options to a model, its first parameters and a trainer.

use super::{Args, Init, ScheduleName, export};
use crate::files::MappedFiles;
use crate::output::{bytes, counted, kernels_bar, note};
use crate::report::{Failure, OrReport};
use miette::Result;
use monopass::blocks::checkpoint::load_with;
use monopass::blocks::params::Role;
use monopass::blocks::train::{AdamW, Adapter, Decay, DecayTo, Phase, Schedule, TrainStep, init_adapters};
use monopass::blocks::{BlockConfig, LmConfig, TrainRows, Trainable, init};
use monopass::engine::Engine;
use monopass::train::data::{Corpus, IGNORE};
use monopass::train::hash::fnv1a;
use monopass::train::store::RunOptions;
use monopass::train::{Trainer, TrainerOptions};
use monopass::{TensorData, Tensors};
use pollster::block_on;

/// Width of the block unless the settings say otherwise.
const DEFAULT_D_MODEL: usize = 128;

/// What a run starts from.
pub(super) struct Setup {
    pub(super) config: LmConfig,
    /// All parameters, and the adapters' factors.
    pub(super) params: Tensors,
    pub(super) adapters: Vec<Adapter>,
    pub(super) schedule: Schedule,
    pub(super) run: RunOptions,
    /// Bytes of text a token stands for, on average.
    pub(super) bytes_per_token: f64,
    /// Bytes of the parameters.
    pub(super) n_bytes: u64,
    options: TrainerOptions,
}

impl Setup {
    pub(super) fn new(args: &Args, corpus: &Corpus, vocab_size: usize) -> Result<Self> {
        let (config, mut params) = model(args, vocab_size)?;
        let n_bytes = params.values().map(|tensor| tensor.ty().size_bytes()).sum();
        check_vocab(args, config.n_tokens(), vocab_size)?;
        let adapters = adapters(args, &config)?;
        params.extend(init_adapters(&config, &adapters, args.seed).or_report()?);
        let trainable = trainable(args, &config)?;
        let adamw = AdamW { beta1: args.beta1, beta2: args.beta2, eps: 1e-8, weight_decay: args.weight_decay };
        adamw.check().or_report()?;
        let schedule = schedule(args)?;
        if args.clip.is_nan() || args.clip < 0.0 {
            return Err(Failure::new(format!("--clip is {}", args.clip)).help("give a norm above 0, or 0 for no limit").into());
        }
        if let Some((_, why)) = export::layout(&config, args.dtype) {
            note(&format!("the model will be written in monopass's own layout, which no other program reads: {why}"));
        }
        let carry_states = args.windows == super::Windows::Carried;
        let run = RunOptions {
            model: format!("{config:?}"),
            data: corpus.fingerprint(),
            start: fingerprint(&params),
            batch: args.batch,
            len: args.len,
            accumulate: args.accumulate,
            held_out: args.held_out,
            order: args.windows.into(),
            seed: args.seed,
            trainable: format!("{} {adapters:?}", args.trainable.as_deref().unwrap_or("all")),
            optimizer: format!("{adamw:?} {schedule:?} clip {}", args.clip),
        };
        let step = TrainStep {
            batch: args.batch,
            len: args.len,
            ignore: IGNORE,
            carry_states,
            trainable,
            adapters: adapters.clone(),
            adamw,
            max_grad_norm: (args.clip > 0.0).then_some(args.clip),
            block_rows: 0,
            phase: Phase::Whole,
        };
        let options = TrainerOptions { step, accumulate: args.accumulate, compile: args.passes.options() };
        Ok(Self { config, params, adapters, schedule, run, bytes_per_token: bytes_per_token(corpus), n_bytes, options })
    }

    pub(super) fn trainer(&self, engine: &Engine) -> Result<Trainer> {
        let (bar, progress) = kernels_bar();
        let trainer = block_on(Trainer::new(engine, self.config.clone(), self.options.clone(), self.params.clone(), Some(&progress)));
        bar.finish_and_clear();
        trainer.or_report()
    }

    /// What a step is, in a few lines.
    pub(super) fn described(&self, trainer: &Trainer, engine: &Engine) -> Result<String> {
        let n_params: usize = self.params.values().map(|tensor| tensor.elements().len()).sum();
        let model = format!("{} parameters in {} of {}", n_params, counted(self.config.n_layer as u64, "layer"), self.config.block.kind());
        let Some(plan) = trainer.program().plan() else {
            return Ok(format!("{model}; steps are interpreted on {}", engine.describe()));
        };
        let totals = plan.totals();
        let mut text = format!(
            "{model}\nstep: {} of {} in one submit; activations {} (at least {}), parameters and moments {}",
            counted(plan.cmds.len() as u64, "dispatch"),
            counted(plan.kernels.len() as u64, "kernel"),
            bytes(totals.slots_bytes),
            bytes(plan.live_bytes),
            bytes(totals.states_bytes + totals.params_bytes),
        );
        if let Some(recompute) = &plan.recompute {
            text += &format!(
                "\ncomputed again: {} of {}; activations {} with none of them, {} with all",
                recompute.segments.len(),
                counted(recompute.n_segments as u64, "segment"),
                bytes(recompute.kept_bytes),
                bytes(recompute.recomputed_bytes)
            );
        }
        Ok(text)
    }
}

/// Tokens of a tokenizer may be fewer than those of the model, as models fill their vocabularies up; bytes are tokens of no other model.
fn check_vocab(args: &Args, n_tokens: usize, vocab_size: usize) -> Result<()> {
    if args.tokenizer.is_some() && n_tokens < vocab_size {
        let found = format!("the model has a vocabulary of {n_tokens}, and the tokenizer one of {vocab_size}");
        return Err(Failure::new(found).help("give the tokenizer.json that stands beside the model").into());
    }
    if args.tokenizer.is_none() && n_tokens != vocab_size {
        let found = format!("the model has a vocabulary of {n_tokens}, and texts are read as bytes");
        return Err(Failure::new(found).help("give its tokenizer.json with --tokenizer, or start from a model of bytes").into());
    }
    Ok(())
}

/// Bytes of held-out text that a token stands for, on average; 1 where nothing is held out.
fn bytes_per_token(corpus: &Corpus) -> f64 {
    let n_targets = corpus.held_out().len().saturating_sub(1);
    #[expect(clippy::cast_precision_loss, reason = "texts of less than 2^53 bytes")]
    let [n_bytes, n_tokens] = [corpus.held_out_bytes(), n_targets].map(|n| n as f64);
    if n_targets > 0 { n_bytes / n_tokens } else { 1.0 }
}

/// The model's configuration and first parameters.
fn model(args: &Args, vocab_size: usize) -> Result<(LmConfig, Tensors)> {
    if let Some(path) = &args.model {
        let checkpoint = load_with(&MappedFiles::open(path)?, &args.checkpoint.options()).or_report()?;
        checkpoint.warnings.iter().for_each(|warning| note(&format!("warning: {warning}")));
        return Ok((checkpoint.config, checkpoint.params));
    }
    let block = BlockConfig::named(&args.block, DEFAULT_D_MODEL);
    let mut block = block.ok_or_else(|| Failure::new(format!("no block is called {:?}", args.block)))?;
    block.set(&args.config).or_report()?;
    let rows = args.vocab_rows.unwrap_or(vocab_size);
    if rows < vocab_size {
        return Err(Failure::new(format!("--vocab-rows is {rows}, and there are {vocab_size} tokens"))
            .help("give at least as many")
            .into());
    }
    let config = LmConfig { tie_embeddings: !args.untied, vocab_padding: rows - vocab_size, ..LmConfig::new(block, args.layers, rows) };
    config.sizes().or_report()?;
    let scheme = match args.init {
        Init::Official => init::Scheme::Official,
        Init::Predecessor => init::Scheme::Predecessor,
    };
    let params = init::lm_as(&config, args.seed, scheme).or_report()?;
    Ok((config, params))
}

fn trainable(args: &Args, config: &LmConfig) -> Result<Vec<TrainRows>> {
    let mode = match args.trainable.as_deref() {
        // Adapters alone, unless more is asked for.
        None if args.lora.is_some() => return Ok(Vec::new()),
        None | Some("all") => Trainable::All,
        Some("wsla") => Trainable::Wsla,
        Some(globs) => Trainable::Names(globs.split(',').map(str::to_owned).collect()),
    };
    config.trainable(&mode).or_report()
}

/// Adapters of the linear maps whose weights match.
fn adapters(args: &Args, config: &LmConfig) -> Result<Vec<Adapter>> {
    let Some(globs) = &args.lora else { return Ok(Vec::new()) };
    let names = config.trainable(&Trainable::Names(globs.split(',').map(str::to_owned).collect())).or_report()?;
    let params = config.parameters().or_report()?;
    let is_linear = |rows: &&TrainRows| {
        let role = params.iter().find(|param| param.name == rows.name).map(|param| param.role);
        matches!(role, Some(Role::InProj | Role::OutProj | Role::Head))
    };
    let adapter = |rows: &TrainRows| Adapter { weight: rows.name.clone(), rank: args.lora_rank, alpha: args.lora_alpha };
    let adapters: Vec<Adapter> = names.iter().filter(is_linear).map(adapter).collect();
    if adapters.is_empty() {
        return Err(Failure::new(format!("--lora {globs}: no linear map's weight matches")).help("try '*in_proj*,*out_proj*'").into());
    }
    Ok(adapters)
}

fn schedule(args: &Args) -> Result<Schedule> {
    let to = DecayTo { total_steps: args.steps.max(args.warmup.saturating_add(1)), fraction: args.min_lr };
    let decay = match args.schedule {
        ScheduleName::Constant => Decay::Constant,
        ScheduleName::Linear => Decay::Linear(to),
        ScheduleName::Cosine => Decay::Cosine(to),
    };
    let schedule = Schedule { peak_lr: args.lr, warmup_steps: args.warmup, decay };
    schedule.check().or_report()?;
    Ok(schedule)
}

/// A number that differs between parameters.
fn fingerprint(params: &Tensors) -> u64 {
    let bytes = |(name, tensor): (&String, &TensorData)| {
        let values = tensor.to_f32_vec().into_iter().flat_map(f32::to_le_bytes);
        name.clone().into_bytes().into_iter().chain(values)
    };
    fnv1a(params.iter().flat_map(bytes))
}
