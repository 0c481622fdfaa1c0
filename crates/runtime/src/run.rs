//! One execution of a plan: inputs in, one compute pass, outputs out, in one encoder and one submit.
//!
//! An executable has two sets of staging buffers, so the next run can be submitted before the last was waited for. A set's
//! upload buffer is mapped for writing whenever the set is not in flight, so a run takes nothing from the driver.

use crate::buffers::{Buffer, copied_bytes, encode, locked};
use crate::counters::Counters;
use crate::error::{RuntimeError, Site};
use crate::executor::{Executable, Inner};
use crate::gpu::{Caught, ComputePass, Gpu, Mapping, Recorder};
use crate::profile::{CmdProfile, CmdStamps, CmdTime, STAMP_BYTES, Stamps, elapsed_ns};
use crate::readback::{DOWNLOAD, take};
use crate::state::Session;
use crate::upload::stage;
use indexmap::IndexMap;
use monopass_ir::TensorData;
use std::sync::Arc;

/// A run that was submitted.
///
/// Dropping it does not stop the run: states change as if it had been waited for; its outputs are lost.
#[derive(Debug)]
#[must_use = "outputs and errors come out of `wait`"]
pub struct Pending {
    exec: Arc<Inner>,
    frame: Option<Frame>,
    submission: wgpu::SubmissionIndex,
    caught: Option<Caught>,
    counters: Counters,
    is_stamped: bool,
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct RunOutput {
    /// Outputs by name, in the order of the plan.
    pub outputs: IndexMap<String, TensorData>,
    /// What the run recorded and created.
    pub counters: Counters,
    /// Nanoseconds of the compute pass on the GPU, if the device measures them ([`crate::DeviceOptions::profile`]).
    pub gpu_ns: Option<u64>,
}

impl Executable {
    /// Records and submits a run, and returns while the device works. A second run may be submitted before the first was
    /// waited for; the states that it reads are those that the first one leaves.
    ///
    /// # Errors
    /// [`RuntimeError::WrongInput`], [`RuntimeError::WrongState`], [`RuntimeError::OtherDevice`] and
    /// [`RuntimeError::Busy`] (two runs are in flight) before any GPU work; [`RuntimeError::Validation`];
    /// [`RuntimeError::OutOfMemory`] on the first run of a session; [`RuntimeError::DeviceLost`]. The states are then as
    /// they were.
    pub fn submit(&self, session: &mut Session, inputs: &[(&str, &TensorData)]) -> Result<Pending, RuntimeError> {
        let exec = &self.0;
        let mut start = exec.start(session, inputs)?;
        let gpu = &exec.gpu;
        let (submission, caught) = gpu.scoped(Site::during(format!("run `{}`", exec.plan.name)), || {
            let mut recorder = gpu.record(&exec.plan.name);
            exec.copy_in(&mut recorder, &start.frame);
            let stamps = start.frame.stamps.as_ref().map(Stamps::writes);
            recorder.compute_pass(&exec.plan.name, stamps, |compute_pass| exec.dispatch_all(compute_pass, session, start.binding_idx));
            exec.copy_out(&mut recorder, &start.frame, true);
            gpu.submit(&mut start.counters, recorder)
        });
        exec.finish(session, start, submission, caught, true)
    }

    /// Submits a run and waits for it.
    ///
    /// # Errors
    /// Those of [`Self::submit`] and [`Pending::wait`].
    pub async fn run(&self, session: &mut Session, inputs: &[(&str, &TensorData)]) -> Result<RunOutput, RuntimeError> {
        self.submit(session, inputs)?.wait().await
    }

    /// [`Self::run`] with an encoder, a pass and a submit for each command, so that an error names the command at fault. Slow.
    ///
    /// # Errors
    /// Those of [`Self::run`]. States that commands before the one at fault update in place have changed then.
    pub async fn run_checked(&self, session: &mut Session, inputs: &[(&str, &TensorData)]) -> Result<RunOutput, RuntimeError> {
        let exec = &self.0;
        let mut start = exec.start(session, inputs)?;
        let checked = exec.submit_each(session, &mut start).await;
        let (submission, caught) = match checked {
            Ok(done) => done,
            Err(error) => {
                start.frame.ask_back(&exec.gpu);
                exec.give_up(start.frame);
                return Err(error);
            }
        };
        exec.finish(session, start, submission, caught, false)?.wait().await
    }

    /// [`Self::run`] with a pass for each command and its GPU time.
    ///
    /// # Errors
    /// [`RuntimeError::NoTimestamps`] if the device does not measure time; those of [`Self::run`].
    pub async fn profile(&self, session: &mut Session, inputs: &[(&str, &TensorData)]) -> Result<CmdProfile, RuntimeError> {
        let exec = &self.0;
        if !exec.device.has_timestamps() {
            return Err(RuntimeError::NoTimestamps { adapter: exec.device.info().name.clone() });
        }
        let mut start = exec.start(session, inputs)?;
        let gpu = &exec.gpu;
        let ((stamps, submission), caught) = gpu.scoped(Site::during(format!("profile `{}`", exec.plan.name)), || {
            let stamps = CmdStamps::new(gpu, &mut start.counters, exec.cmds.len());
            let mut recorder = gpu.record(&exec.plan.name);
            exec.copy_in(&mut recorder, &start.frame);
            for cmd_idx in 0..exec.cmds.len() {
                let work = |compute_pass: &mut ComputePass<'_>| exec.dispatch(compute_pass, session, start.binding_idx, cmd_idx, &mut None);
                recorder.compute_pass(&exec.plan.name, stamps.writes(cmd_idx), work);
            }
            exec.copy_out(&mut recorder, &start.frame, false);
            stamps.send(&mut recorder);
            let submission = gpu.submit(&mut start.counters, recorder);
            (stamps, submission)
        });
        let answer = gpu.map(stamps.staging(), wgpu::MapMode::Read);
        let run = exec.finish(session, start, submission, caught, false)?.wait().await?;
        gpu.mapped("timestamps", answer).await?;
        Ok(CmdProfile { run, cmds: exec.cmd_times(&stamps)? })
    }
}

impl Pending {
    /// Waits for the run and reads its outputs.
    ///
    /// # Errors
    /// [`RuntimeError::Validation`], [`RuntimeError::OutOfMemory`] or [`RuntimeError::DeviceLost`] if the run went wrong;
    /// [`RuntimeError::MapFailed`].
    pub async fn wait(mut self) -> Result<RunOutput, RuntimeError> {
        if let Some(caught) = self.caught.take() {
            caught.check().await?;
        }
        let exec = Arc::clone(&self.exec);
        exec.gpu.drive(Some(self.submission.clone()))?;
        let Some(frame) = self.frame.as_mut() else { return Err(RuntimeError::Busy { plan: exec.plan.name.clone() }) };
        while let Some(answer) = frame.answers.pop() {
            exec.gpu.mapped("staging of a run", answer).await?;
        }
        exec.gpu.healthy()?;
        let outputs = exec.outputs.iter().zip(std::iter::repeat(&frame.download));
        let outputs = outputs.map(|(io, staging)| {
            let what = format!("output `{}`", io.name);
            let data = match staging {
                Some(staging) => take(&what, &io.ty, staging, io.staged_at)?,
                None => TensorData::zeros(&io.ty),
            };
            Ok((io.name.clone(), data))
        });
        let outputs = outputs.collect::<Result<IndexMap<_, _>, RuntimeError>>()?;
        let gpu_ns = if self.is_stamped { frame.elapsed_ns(&exec.gpu) } else { None };
        Ok(RunOutput { outputs, counters: self.counters, gpu_ns })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            if frame.answers.is_empty() {
                frame.close();
            }
            self.exec.give_up(frame);
        }
    }
}

/// A run that is being recorded.
struct Start {
    frame: Frame,
    binding_idx: usize,
    counters: Counters,
}

impl Inner {
    /// Checks, binds, and fills the upload buffer.
    fn start(self: &Arc<Self>, session: &mut Session, inputs: &[(&str, &TensorData)]) -> Result<Start, RuntimeError> {
        self.gpu.healthy()?;
        let ordered = self.ordered_inputs(inputs)?;
        self.check_session(session)?;
        let mut counters = Counters::default();
        let binding_idx = session.bind(&mut counters, self)?;
        let frame = self.take_frame()?;
        if let Err(error) = self.fill(&frame, &ordered) {
            self.give_up(frame);
            return Err(error);
        }
        Ok(Start { frame, binding_idx, counters })
    }

    /// The inputs in the order of the plan.
    fn ordered_inputs<'d>(&self, given: &[(&str, &'d TensorData)]) -> Result<Vec<&'d TensorData>, RuntimeError> {
        let wrong = |name: &str, problem: String| {
            let wanted: Vec<String> = self.inputs.iter().map(|io| format!("`{}` {}", io.name, io.ty)).collect();
            let help =
                if wanted.is_empty() { "the plan takes no inputs".to_owned() } else { format!("the plan takes {}", wanted.join(", ")) };
            RuntimeError::WrongInput { name: name.to_owned(), problem, help }
        };
        for (idx, (name, _)) in given.iter().enumerate() {
            if !self.inputs.iter().any(|io| io.name == *name) {
                return Err(wrong(name, "is unknown".to_owned()));
            }
            if given[..idx].iter().any(|(other, _)| other == name) {
                return Err(wrong(name, "is given twice".to_owned()));
            }
        }
        let find = |io: &crate::executor::Io| {
            let found = given.iter().find(|(name, _)| *name == io.name);
            let (_, data) = found.ok_or_else(|| wrong(&io.name, "is missing".to_owned()))?;
            let ty = data.ty();
            if ty == io.ty { Ok(*data) } else { Err(wrong(&io.name, format!("is {ty}"))) }
        };
        self.inputs.iter().map(find).collect()
    }

    fn fill(&self, frame: &Frame, inputs: &[&TensorData]) -> Result<(), RuntimeError> {
        let Some(upload) = &frame.upload else { return Ok(()) };
        for (io, data) in self.inputs.iter().zip(inputs) {
            stage(upload, io.staged_at, &encode(data))?;
        }
        Ok(())
    }

    fn copy_in(&self, recorder: &mut Recorder, frame: &Frame) {
        let Some(upload) = &frame.upload else { return };
        upload.raw().unmap();
        for io in &self.inputs {
            let bytes = copied_bytes(&io.ty);
            recorder.copy((upload, io.staged_at), (&io.buffer, 0), bytes);
            recorder.crossing(bytes, 0);
        }
    }

    fn copy_out(&self, recorder: &mut Recorder, frame: &Frame, is_stamped: bool) {
        let Some(download) = &frame.download else { return };
        for io in &self.outputs {
            let bytes = copied_bytes(&io.ty);
            recorder.copy((&io.buffer, 0), (download, io.staged_at), bytes);
            recorder.crossing(0, bytes);
        }
        if let Some(stamps) = frame.stamps.as_ref().filter(|_| is_stamped) {
            stamps.send(recorder, download, frame.stamps_at);
        }
    }

    fn dispatch_all(&self, compute_pass: &mut ComputePass<'_>, session: &Session, binding_idx: usize) {
        let mut last_kernel = None;
        for cmd_idx in 0..self.cmds.len() {
            self.dispatch(compute_pass, session, binding_idx, cmd_idx, &mut last_kernel);
        }
    }

    /// Records a command, unless it has nothing to do because a size is zero.
    fn dispatch(
        &self,
        compute_pass: &mut ComputePass<'_>,
        session: &Session,
        binding_idx: usize,
        cmd_idx: usize,
        last_kernel: &mut Option<usize>,
    ) {
        let cmd = &self.cmds[cmd_idx];
        if cmd.workgroups.contains(&0) {
            return;
        }
        let Some(group) = cmd.fixed.as_ref().or_else(|| session.group(binding_idx, self, cmd_idx)) else { return };
        if *last_kernel != Some(cmd.kernel_idx) {
            compute_pass.set_pipeline(&cmd.pipeline.raw);
            *last_kernel = Some(cmd.kernel_idx);
        }
        compute_pass.dispatch(group, cmd.workgroups);
    }

    async fn submit_each(&self, session: &Session, start: &mut Start) -> Result<(wgpu::SubmissionIndex, Caught), RuntimeError> {
        let gpu = &self.gpu;
        let (frame, counters) = (&start.frame, &mut start.counters);
        let mut step = |site: Site, work: &dyn Fn(&mut Recorder)| {
            gpu.scoped(site, || {
                let mut recorder = gpu.record(&self.plan.name);
                work(&mut recorder);
                gpu.submit(counters, recorder)
            })
        };
        let (_, caught) = step(Site::during("copy the inputs"), &|recorder| self.copy_in(recorder, frame));
        caught.check().await?;
        for cmd_idx in 0..self.cmds.len() {
            let kernel = Some(self.kernel_name(self.cmds[cmd_idx].kernel_idx));
            let cmd = Some(self.cmd_name(cmd_idx));
            let (submission, caught) = step(Site { during: "run a command".to_owned(), kernel, cmd }, &|recorder| {
                recorder.compute_pass(&self.plan.name, None, |compute_pass| {
                    self.dispatch(compute_pass, session, start.binding_idx, cmd_idx, &mut None);
                });
            });
            caught.check().await?;
            gpu.drive(Some(submission))?;
        }
        Ok(step(Site::during("copy the outputs"), &|recorder| self.copy_out(recorder, frame, false)))
    }

    fn cmd_times(&self, stamps: &CmdStamps) -> Result<Vec<CmdTime>, RuntimeError> {
        let view = stamps.staging().raw().get_mapped_range(..);
        let view = view.map_err(|error| RuntimeError::MapFailed { what: "timestamps".to_owned(), reason: error.to_string() })?;
        let period_ns = self.gpu.timestamp_period_ns();
        let times = self.plan.cmds.iter().zip(view.chunks_exact(16)).map(|(cmd, bytes)| CmdTime {
            kernel: self.kernel_name(cmd.kernel.0 as usize),
            scope: cmd.scope.clone(),
            gpu_ns: elapsed_ns(bytes, period_ns).unwrap_or(0),
            flops: cmd.flops,
            bytes_moved: cmd.bytes_moved,
        });
        Ok(times.collect())
    }

    /// After the submit: asks for the staging buffers back, and lets the states take turns unless the device refused the run.
    fn finish(
        self: &Arc<Self>,
        session: &mut Session,
        start: Start,
        submission: wgpu::SubmissionIndex,
        caught: Caught,
        is_stamped: bool,
    ) -> Result<Pending, RuntimeError> {
        let Start { mut frame, binding_idx, counters } = start;
        frame.ask_back(&self.gpu);
        match caught.check_now().and_then(|caught| self.gpu.healthy().map(|()| caught)) {
            Ok(caught) => {
                session.take_turns(binding_idx, self);
                Ok(Pending { exec: Arc::clone(self), frame: Some(frame), submission, caught, counters, is_stamped })
            }
            Err(error) => {
                self.give_up(frame);
                Err(error)
            }
        }
    }

    /// A set of staging buffers that is not in flight.
    fn take_frame(&self) -> Result<Frame, RuntimeError> {
        let busy = || RuntimeError::Busy { plan: self.plan.name.clone() };
        let mut frame = {
            let mut frames = locked(&self.frames);
            let idx = frames.iter().position(|frame| frame.answers.is_empty()).or_else(|| frames.len().checked_sub(1)).ok_or_else(busy)?;
            frames.swap_remove(idx)
        };
        match frame.reclaim(&self.gpu) {
            Ok(true) => Ok(frame),
            Ok(false) => {
                self.give_up(frame);
                Err(busy())
            }
            Err(error) => {
                self.give_up(frame);
                Err(error)
            }
        }
    }

    /// Puts a set back, in whatever state; the next run that takes it waits for it if it must.
    fn give_up(&self, frame: Frame) {
        locked(&self.frames).push(frame);
    }
}

/// Staging of one run.
#[derive(Debug)]
pub(crate) struct Frame {
    upload: Option<Buffer>,
    download: Option<Buffer>,
    stamps: Option<Stamps>,
    stamps_at: u64,
    /// Mappings that were asked for; none while the set rests.
    answers: Vec<Mapping>,
}

impl Frame {
    pub(crate) fn new(gpu: &Gpu, tally: &mut Counters, upload_bytes: u64, download_bytes: u64, has_stamps: bool) -> Self {
        let stamps = has_stamps.then(|| Stamps::new(gpu, tally));
        let upload = (upload_bytes > 0).then(|| gpu.staging(tally, "inputs", upload_bytes));
        let bytes = download_bytes + if has_stamps { STAMP_BYTES } else { 0 };
        let download = (bytes > 0).then(|| gpu.buffer(tally, "outputs", bytes, DOWNLOAD));
        Self { upload, download, stamps, stamps_at: download_bytes, answers: Vec::new() }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.upload.iter().chain(&self.download).map(Buffer::size_bytes).sum()
    }

    fn ask_back(&mut self, gpu: &Gpu) {
        let upload = self.upload.iter().map(|buffer| gpu.map(buffer, wgpu::MapMode::Write));
        let download = self.download.iter().map(|buffer| gpu.map(buffer, wgpu::MapMode::Read));
        self.answers.extend(upload.chain(download));
    }

    /// Makes a set fit for the next run after one that nobody waited for. False if the device still works on it, which
    /// cannot be where this may block.
    fn reclaim(&mut self, gpu: &Gpu) -> Result<bool, RuntimeError> {
        if self.answers.is_empty() {
            return Ok(true);
        }
        gpu.drive(None)?;
        while let Some(answer) = self.answers.last_mut() {
            match answer.try_recv() {
                Ok(None) => return Ok(false),
                Ok(Some(Ok(()))) => drop(self.answers.pop()),
                Ok(Some(Err(_))) | Err(_) => {
                    self.answers.pop();
                    gpu.healthy()?;
                    return Err(RuntimeError::MapFailed { what: "staging of a run".to_owned(), reason: "the device refused".to_owned() });
                }
            }
        }
        self.close();
        Ok(true)
    }

    /// After the outputs were read.
    fn close(&self) {
        if let Some(download) = &self.download {
            download.raw().unmap();
        }
    }

    fn elapsed_ns(&self, gpu: &Gpu) -> Option<u64> {
        let (download, _) = self.download.as_ref().zip(self.stamps.as_ref())?;
        let view = download.raw().get_mapped_range(self.stamps_at..self.stamps_at + STAMP_BYTES).ok()?;
        elapsed_ns(&view, gpu.timestamp_period_ns())
    }
}
