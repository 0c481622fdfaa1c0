//! Greedy generation by a language model: the prompt in chunks of bounded length, then token by token.
//!
//! Each chunk and each token is one run, so one submit; the states stay where the model runs.

use crate::engine::{Engine, LoadOptions, Params, Program, Session};
use crate::error::Error;
use indexmap::IndexMap;
use monopass_blocks::params::Role;
use monopass_blocks::{Head, Io, LmConfig, LmGraph, model, names};
use monopass_ir::eval::Tensors;
use monopass_ir::{Elements, TensorData};
use monopass_lower::CompileOptions;
use monopass_runtime::{BuildProgress, Counters, RunOutput};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Tokens of a prompt that go through the model in one run, at most, unless told otherwise.
pub const DEFAULT_CHUNK_LEN: usize = 512;

/// How a generator works.
#[derive(Clone)]
pub struct GeneratorOptions<'a> {
    /// Passes of the compiler.
    pub compile: CompileOptions,
    /// Tokens of a prompt that go through the model in one run, at most; 0 counts as 1.
    pub chunk_len: usize,
    /// Told after each kernel that the driver compiled for the decode step.
    pub progress: Option<&'a (dyn Fn(BuildProgress) + Sync)>,
}

impl Default for GeneratorOptions<'_> {
    fn default() -> Self {
        Self { compile: CompileOptions::default(), chunk_len: DEFAULT_CHUNK_LEN, progress: None }
    }
}

impl std::fmt::Debug for GeneratorOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GeneratorOptions").field("compile", &self.compile).field("chunk_len", &self.chunk_len).finish_non_exhaustive()
    }
}

/// A model, ready to continue prompts. One sequence at a time.
#[derive(Debug)]
pub struct Generator {
    engine: Engine,
    config: LmConfig,
    params: Params,
    compile: CompileOptions,
    chunk_len: usize,
    initial: Session,
    session: Session,
    /// By the tokens of a run.
    programs: IndexMap<usize, Program>,
}

/// What a generation gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// The new tokens, without the prompt.
    pub tokens: Vec<u32>,
    /// Runs that the prompt took.
    pub n_prefill_runs: usize,
    /// What the prompt's runs did, summed.
    pub prefill: Counters,
    /// What the last decode step did; the same as all before it but the first.
    pub step: Counters,
}

impl Generator {
    /// Uploads a model's parameters and makes its decode step ready.
    ///
    /// # Errors
    /// A configuration that does not fit together; parameters that are missing or of another type; no memory left.
    pub async fn new(engine: &Engine, config: LmConfig, params: impl Into<Arc<Tensors>>) -> Result<Self, Error> {
        Self::with_options(engine, config, params, &GeneratorOptions::default()).await
    }

    /// As [`new`](Self::new), with options.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub async fn with_options(
        engine: &Engine,
        config: LmConfig,
        params: impl Into<Arc<Tensors>>,
        options: &GeneratorOptions<'_>,
    ) -> Result<Self, Error> {
        let params = params.into();
        let mut initial = engine.session();
        write_initial_states(&config, &params, &mut initial)?;
        let mut generator = Self {
            session: initial.fork()?,
            initial,
            params: engine.upload(params).await?,
            engine: engine.clone(),
            config,
            compile: options.compile.clone(),
            chunk_len: options.chunk_len.max(1),
            programs: IndexMap::new(),
        };
        generator.load(1, options.progress).await?;
        Ok(generator)
    }

    /// The program of a run of `len` tokens, if one was needed so far; that of one token always is.
    #[must_use]
    pub fn program(&self, len: usize) -> Option<&Program> {
        self.programs.get(&len)
    }

    /// The model.
    #[must_use]
    pub const fn config(&self) -> &LmConfig {
        &self.config
    }

    /// The states after what was generated last.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// Makes ready all programs that a prompt of this length needs, so that no compilation falls into its time.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub async fn prepare(&mut self, prompt_len: usize) -> Result<(), Error> {
        for len in [prompt_len.min(self.chunk_len), prompt_len % self.chunk_len] {
            if len > 0 {
                self.load(len, None).await?;
            }
        }
        Ok(())
    }

    /// Continues `prompt` by up to `n_tokens` tokens, each the likeliest one after those before it (the lowest of equals).
    /// `on_token` gets each as it comes, and may end the generation.
    ///
    /// Every call starts from the model's initial state.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`]; [`Error::UnknownToken`]; what a run can meet.
    pub async fn generate(
        &mut self,
        prompt: &[u32],
        n_tokens: usize,
        mut on_token: impl AsyncFnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generated, Error> {
        self.check(prompt)?;
        self.session.copy_from(&self.initial)?;
        let mut generated = Generated::default();
        let mut next = 0;
        for chunk in prompt.chunks(self.chunk_len) {
            let run = self.run(chunk).await?;
            generated.prefill += &run.counters;
            generated.n_prefill_runs += 1;
            next = next_token(&run)?;
        }
        while generated.tokens.len() < n_tokens {
            generated.tokens.push(next);
            let is_last = generated.tokens.len() == n_tokens;
            if on_token(next).await.is_break() || is_last {
                break;
            }
            let run = self.run(&[next]).await?;
            generated.step = run.counters;
            next = next_token(&run)?;
        }
        Ok(generated)
    }

    fn check(&self, prompt: &[u32]) -> Result<(), Error> {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let vocab_size = self.config.n_tokens();
        let is_unknown = |&(_, token): &(usize, &u32)| usize::try_from(*token).is_ok_and(|token| token >= vocab_size);
        match prompt.iter().enumerate().find(is_unknown) {
            Some((position, &token)) => Err(Error::UnknownToken { token, position, vocab_size }),
            None => Ok(()),
        }
    }

    async fn run(&mut self, tokens: &[u32]) -> Result<RunOutput, Error> {
        let program = self.load(tokens.len(), None).await?;
        let ids = TensorData::new([1, tokens.len()], Elements::U32(tokens.to_vec())).map_err(|_| Error::NoToken)?;
        program.run(&mut self.session, &[("ids", &ids)]).await
    }

    async fn load(&mut self, len: usize, progress: Option<&(dyn Fn(BuildProgress) + Sync)>) -> Result<Program, Error> {
        if let Some(program) = self.programs.get(&len) {
            return Ok(program.clone());
        }
        let graph = model::graph(&self.config, 1, len, LmGraph::new(Io::Stateful, Head::Next))?;
        let options = LoadOptions { compile: self.compile.clone(), dump: None, progress };
        let program = self.engine.load_with(&graph, &self.params, options).await?;
        self.programs.insert(len, program.clone());
        Ok(program)
    }
}

/// Where initial states are learned, a session does not start from zero.
fn write_initial_states(config: &LmConfig, params: &Tensors, session: &mut Session) -> Result<(), Error> {
    if !config.block.learns_initial_states() {
        return Ok(());
    }
    let learned = config.parameters()?.into_iter().filter(|param| param.role == Role::InitStates);
    for (layer, param) in learned.enumerate() {
        let Some(tensor) = params.get(&param.name) else { continue };
        let shape = [&[1], tensor.shape()].concat();
        let Ok(state) = TensorData::new(shape, tensor.elements().clone()) else { continue };
        session.write(&format!("{}ssm_state", names::state_prefix(layer)), &state)?;
    }
    Ok(())
}

fn next_token(run: &RunOutput) -> Result<u32, Error> {
    run.outputs.get("next").and_then(TensorData::as_u32).and_then(|next| next.first().copied()).ok_or(Error::NoToken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use monopass_blocks::{Mamba2Config, init};
    use pollster::block_on;

    fn config() -> LmConfig {
        let block = Mamba2Config { headdim: 4, d_state: 3, learnable_init_states: true, ..Mamba2Config::new(8) };
        LmConfig { tie_embeddings: false, ..LmConfig::new(block, 2, 11) }
    }

    /// Parameters large enough that tokens differ.
    fn params() -> Tensors {
        let grow = |(name, tensor): (String, TensorData)| {
            let values: Vec<f32> =
                tensor.to_f32_vec().iter().enumerate().map(|(i, x)| x * 20.0 + if i % 3 == 0 { 0.1 } else { 0.0 }).collect();
            let is_map = name.contains("embed") || name.contains("head") || name.contains("proj");
            let grown = TensorData::f32(tensor.shape(), values).unwrap();
            (name, if is_map { grown } else { tensor })
        };
        init::lm(&config(), 5).unwrap().into_iter().map(grow).collect()
    }

    fn generated(prompt: &[u32], n_tokens: usize, chunk_len: usize) -> Result<Generated, Error> {
        let options = GeneratorOptions { chunk_len, ..GeneratorOptions::default() };
        block_on(async {
            let mut generator = Generator::with_options(&Engine::cpu(), config(), params(), &options).await?;
            let first = generator.generate(prompt, n_tokens, async |_| ControlFlow::Continue(())).await?;
            let again = generator.generate(prompt, n_tokens, async |_| ControlFlow::Continue(())).await?;
            assert_eq!(first, again);
            Ok(first)
        })
    }

    #[test]
    fn chunks_of_the_prompt_do_not_change_the_tokens() {
        let prompt = [1, 7, 3, 10, 0, 2, 9];
        let whole = generated(&prompt, 9, 512).unwrap();
        assert!(whole.tokens.iter().any(|&token| token != whole.tokens[0]), "{whole:?}");
        for chunk_len in [1, 3, 7] {
            let split = generated(&prompt, 9, chunk_len).unwrap();
            assert_eq!((split.tokens, split.n_prefill_runs), (whole.tokens.clone(), 7usize.div_ceil(chunk_len)));
        }
        // What was generated continues as it did.
        let longer = [&prompt[..], &whole.tokens[..4]].concat();
        assert_eq!(generated(&longer, 5, 512).unwrap().tokens, whole.tokens[4..]);
    }

    #[test]
    fn rows_of_padding_are_no_tokens() {
        // Row 11 + i of the head is twice row i, so that a positive largest logit is always one of padding.
        let mut params = params();
        for name in ["backbone.embedding.weight", "lm_head.weight"] {
            let rows = params[name].to_f32_vec();
            let more: Vec<f32> = rows[..5 * 8].iter().map(|x| x * 2.0).collect();
            params.insert(name.to_owned(), TensorData::f32([16, 8], [rows, more].concat()).unwrap());
        }
        let tokens = |vocab_padding| {
            let config = LmConfig { vocab_size: 16, vocab_padding, ..config() };
            block_on(async {
                let mut generator = Generator::new(&Engine::cpu(), config, params.clone()).await?;
                let unknown = generator.generate(&[11], 1, async |_| ControlFlow::Continue(())).await;
                assert_eq!(matches!(unknown, Err(Error::UnknownToken { vocab_size: 11, .. })), vocab_padding == 5);
                let generated = generator.generate(&[1, 7, 3], 12, async |_| ControlFlow::Continue(())).await;
                Ok::<_, Error>(generated?.tokens)
            })
            .unwrap()
        };
        assert!(tokens(0).iter().any(|&token| token >= 11), "{:?}", tokens(0));
        assert!(tokens(5).iter().all(|&token| token < 11), "{:?}", tokens(5));
    }

    #[test]
    fn prompts_are_checked_and_the_callback_may_stop() {
        assert!(matches!(generated(&[], 1, 512), Err(Error::EmptyPrompt)));
        assert!(matches!(generated(&[1, 11], 1, 512), Err(Error::UnknownToken { token: 11, position: 1, .. })));
        assert!(generated(&[1], 0, 512).unwrap().tokens.is_empty());
        let mut n_seen = 0;
        let stopped = block_on(async {
            let mut generator = Generator::new(&Engine::cpu(), config(), params()).await?;
            generator
                .generate(&[4], 9, async |_| {
                    n_seen += 1;
                    if n_seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })
                .await
        });
        assert_eq!(stopped.unwrap().tokens.len(), 3);
    }
}
