//! The one place through which device objects are created, commands recorded and errors caught, so that the counts can be
//! trusted: no other module holds a `wgpu::Device` or a `wgpu::CommandEncoder`.

use crate::buffers::{Buffer, Ledger, locked};
use crate::counters::{Counters, Memory};
use crate::error::{RuntimeError, Site};
use futures_channel::oneshot;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// A `wgpu::Device` with its queue, counters and errors.
#[derive(Debug)]
pub(crate) struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
    totals: Mutex<Counters>,
    ledger: Arc<Ledger>,
    faults: Arc<Faults>,
    next_id: AtomicU64,
}

/// Errors that reached no scope.
#[derive(Debug, Default)]
struct Faults {
    lost: Mutex<Option<String>>,
    stray: Mutex<Option<RuntimeError>>,
}

/// Answer of a mapping, once the device has it.
pub(crate) type Mapping = oneshot::Receiver<Result<(), wgpu::BufferAsyncError>>;

impl Gpu {
    pub(crate) fn new(device: wgpu::Device, queue: wgpu::Queue) -> Arc<Self> {
        let faults = Arc::new(Faults::default());
        let seen = Arc::clone(&faults);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            let error = Site::during("carry out an earlier command").error(&error);
            locked(&seen.stray).get_or_insert(error);
        }));
        let seen = Arc::clone(&faults);
        device.set_device_lost_callback(move |reason, message| {
            locked(&seen.lost).get_or_insert_with(|| format!("{reason:?}: {message}"));
        });
        Arc::new(Self { device, queue, totals: Mutex::default(), ledger: Arc::default(), faults, next_id: AtomicU64::new(1) })
    }

    /// A number that no other object of this device has.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn totals(&self) -> Counters {
        *locked(&self.totals)
    }

    pub(crate) fn memory(&self) -> Memory {
        self.ledger.read()
    }

    pub(crate) fn features(&self) -> wgpu::Features {
        self.device.features()
    }

    pub(crate) fn timestamp_period_ns(&self) -> f32 {
        self.queue.get_timestamp_period()
    }

    pub(crate) fn destroy(&self) {
        self.device.destroy();
        locked(&self.faults.lost).get_or_insert_with(|| "it was destroyed by the program".to_owned());
    }

    /// An error if the device is lost, or if something went wrong outside every scope since the last call.
    pub(crate) fn healthy(&self) -> Result<(), RuntimeError> {
        if let Some(reason) = locked(&self.faults.lost).clone() {
            return Err(RuntimeError::DeviceLost { reason });
        }
        locked(&self.faults.stray).take().map_or(Ok(()), Err)
    }

    fn count(&self, tally: &mut Counters, added: &Counters) {
        *tally += added;
        *locked(&self.totals) += added;
    }

    /// Does `work` inside error scopes of all three kinds.
    pub(crate) fn scoped<T>(&self, site: Site, work: impl FnOnce() -> T) -> (T, Caught) {
        let filters = [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation];
        let guards = filters.map(|filter| self.device.push_error_scope(filter));
        let result = work();
        let [internal, memory, validation] = guards;
        // Scopes are a stack: the last pushed is popped first.
        let found: Vec<ScopeFuture> = vec![Box::pin(validation.pop()), Box::pin(memory.pop()), Box::pin(internal.pop())];
        (result, Caught { site, found })
    }

    /// [`Self::scoped`] for synchronous callers. A browser tells only later what a scope caught; there errors go to
    /// [`Self::healthy`] instead, without their place.
    pub(crate) fn scoped_now<T>(&self, site: Site, work: impl FnOnce() -> T) -> Result<T, RuntimeError> {
        self.healthy()?;
        if cfg!(target_arch = "wasm32") {
            return Ok(work());
        }
        let (result, caught) = self.scoped(site, work);
        caught.check_now().map(|_| result)
    }

    /// Runs the device's callbacks. On native targets blocks until `submission` is done, or all of them; in a browser the
    /// event loop does this by itself.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn drive(&self, submission: Option<wgpu::SubmissionIndex>) -> Result<(), RuntimeError> {
        let poll = || self.device.poll(wgpu::PollType::Wait { submission_index: submission, timeout: None });
        // wgpu panics here, and only here, when the device is lost while it waits.
        let lost = |reason: String| RuntimeError::DeviceLost { reason };
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll)) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(lost(error.to_string())),
            Err(_) => Err(self.healthy().err().unwrap_or_else(|| lost("it failed while waiting".to_owned()))),
        }
    }

    #[cfg(target_arch = "wasm32")]
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "the native form has errors")]
    pub(crate) fn drive(&self, _submission: Option<wgpu::SubmissionIndex>) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// A buffer, zeroed. wgpu zeroes it on first use.
    pub(crate) fn buffer(&self, tally: &mut Counters, label: &str, size_bytes: u64, usage: wgpu::BufferUsages) -> Buffer {
        self.make_buffer(tally, label, size_bytes, usage, false)
    }

    /// A staging buffer that the host may write at once.
    pub(crate) fn staging(&self, tally: &mut Counters, label: &str, size_bytes: u64) -> Buffer {
        self.make_buffer(tally, label, size_bytes, wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC, true)
    }

    fn make_buffer(&self, tally: &mut Counters, label: &str, size: u64, usage: wgpu::BufferUsages, mapped_at_creation: bool) -> Buffer {
        self.count(tally, &Counters { buffers_created: 1, bytes_allocated: size, ..Counters::default() });
        Buffer::new(
            self.device.create_buffer(&wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation }),
            &self.ledger,
        )
    }

    pub(crate) fn bind_group(&self, tally: &mut Counters, descriptor: &wgpu::BindGroupDescriptor<'_>) -> wgpu::BindGroup {
        self.count(tally, &Counters { bind_groups_created: 1, ..Counters::default() });
        self.device.create_bind_group(descriptor)
    }

    pub(crate) fn bind_group_layout(&self, tally: &mut Counters, entries: &[wgpu::BindGroupLayoutEntry]) -> wgpu::BindGroupLayout {
        self.count(tally, &Counters { layouts_created: 1, ..Counters::default() });
        self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries })
    }

    pub(crate) fn pipeline_layout(&self, tally: &mut Counters, group: &wgpu::BindGroupLayout) -> wgpu::PipelineLayout {
        self.count(tally, &Counters { layouts_created: 1, ..Counters::default() });
        let bind_group_layouts = &[Some(group)];
        self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor { label: None, bind_group_layouts, immediate_size: 0 })
    }

    /// A pipeline with its module, made with the given run-time checks.
    pub(crate) fn pipeline(
        &self,
        tally: &mut Counters,
        label: &str,
        wgsl: &str,
        checks: wgpu::ShaderRuntimeChecks,
        layout: &wgpu::PipelineLayout,
    ) -> wgpu::ComputePipeline {
        self.count(tally, &Counters { modules_created: 1, pipelines_created: 1, ..Counters::default() });
        let descriptor = wgpu::ShaderModuleDescriptor { label: Some(label), source: wgpu::ShaderSource::Wgsl(wgsl.into()) };
        #[expect(unsafe_code, reason = "wgpu has no safe way to leave out the bounding of loops, which costs up to 17 times")]
        // SAFETY: the loops of a plan's kernels are counted, so that they end, and `checks` leaves bounds checks out only
        // where the compiler proved every index in range. The documentation of `Checks` hands this duty to those who write
        // plans by hand.
        let module = unsafe { self.device.create_shader_module_trusted(descriptor, checks) };
        self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(label),
            layout: Some(layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        })
    }

    pub(crate) fn timestamps(&self, tally: &mut Counters, count: u32) -> wgpu::QuerySet {
        self.count(tally, &Counters { query_sets_created: 1, ..Counters::default() });
        self.device.create_query_set(&wgpu::QuerySetDescriptor { label: None, ty: wgpu::QueryType::Timestamp, count })
    }

    /// Starts a command encoder.
    pub(crate) fn record(&self, label: &str) -> Recorder {
        let encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some(label) });
        Recorder { encoder, counted: Counters { encoders: 1, ..Counters::default() } }
    }

    /// Submits what was recorded.
    pub(crate) fn submit(&self, tally: &mut Counters, recorder: Recorder) -> wgpu::SubmissionIndex {
        let Recorder { encoder, mut counted } = recorder;
        counted.submits += 1;
        self.count(tally, &counted);
        self.queue.submit([encoder.finish()])
    }

    /// Writes `bytes` at `offset`, before the next submit; the last word is filled up with zeros.
    pub(crate) fn write(&self, tally: &mut Counters, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        self.count(tally, &Counters { bytes_uploaded: bytes.len() as u64, ..Counters::default() });
        let (whole, rest) = bytes.split_at(bytes.len() & !3);
        if !whole.is_empty() {
            self.queue.write_buffer(buffer.raw(), offset, whole);
        }
        if !rest.is_empty() {
            let mut word = [0; 4];
            word[..rest.len()].copy_from_slice(rest);
            self.queue.write_buffer(buffer.raw(), offset + whole.len() as u64, &word);
        }
    }

    /// Asks for a buffer on the host.
    pub(crate) fn map(&self, buffer: &Buffer, mode: wgpu::MapMode) -> Mapping {
        let (tell, answer) = oneshot::channel();
        buffer.raw().map_async(mode, .., move |result| {
            // Nobody listens any more if the run was dropped.
            drop(tell.send(result));
        });
        answer
    }

    /// Waits for a mapping.
    pub(crate) async fn mapped(&self, what: &str, answer: Mapping) -> Result<(), RuntimeError> {
        let failed = |reason: String| RuntimeError::MapFailed { what: what.to_owned(), reason };
        let result = match answer.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => failed(error.to_string()),
            Err(oneshot::Canceled) => failed("the device dropped the request".to_owned()),
        };
        // A lost device fails every mapping; say that instead.
        self.healthy()?;
        Err(result)
    }
}

/// A command encoder that counts.
#[derive(Debug)]
pub(crate) struct Recorder {
    encoder: wgpu::CommandEncoder,
    counted: Counters,
}

impl Recorder {
    /// Copies whole words; nothing if there are none.
    pub(crate) fn copy(&mut self, (src, src_offset): (&Buffer, u64), (dst, dst_offset): (&Buffer, u64), bytes: u64) {
        if bytes > 0 {
            self.counted.copies += 1;
            self.encoder.copy_buffer_to_buffer(src.raw(), src_offset, dst.raw(), dst_offset, bytes);
        }
    }

    /// Notes that bytes cross between host and device.
    pub(crate) fn crossing(&mut self, uploaded: u64, read_back: u64) {
        self.counted.bytes_uploaded += uploaded;
        self.counted.bytes_read_back += read_back;
    }

    pub(crate) fn clear(&mut self, buffer: &Buffer) {
        self.counted.copies += 1;
        self.encoder.clear_buffer(buffer.raw(), 0, None);
    }

    /// Zeros a part, whose place and size are whole words.
    pub(crate) fn clear_part(&mut self, buffer: &Buffer, offset: u64, bytes: u64) {
        if bytes > 0 {
            self.counted.copies += 1;
            self.encoder.clear_buffer(buffer.raw(), offset, Some(bytes));
        }
    }

    /// One compute pass.
    pub(crate) fn compute_pass(
        &mut self,
        label: &str,
        stamps: Option<wgpu::ComputePassTimestampWrites<'_>>,
        work: impl FnOnce(&mut ComputePass<'_>),
    ) {
        self.counted.passes += 1;
        let descriptor = wgpu::ComputePassDescriptor { label: Some(label), timestamp_writes: stamps };
        let raw = self.encoder.begin_compute_pass(&descriptor);
        let mut compute_pass = ComputePass { raw, dispatches: 0 };
        work(&mut compute_pass);
        self.counted.dispatches += compute_pass.dispatches;
    }

    pub(crate) fn resolve(&mut self, set: &wgpu::QuerySet, count: u32, (into, offset): (&Buffer, u64)) {
        self.encoder.resolve_query_set(set, 0..count, into.raw(), offset);
    }
}

/// A compute pass that counts.
#[derive(Debug)]
pub(crate) struct ComputePass<'e> {
    raw: wgpu::ComputePass<'e>,
    dispatches: u64,
}

impl ComputePass<'_> {
    pub(crate) fn set_pipeline(&mut self, pipeline: &wgpu::ComputePipeline) {
        self.raw.set_pipeline(pipeline);
    }

    pub(crate) fn dispatch(&mut self, group: &wgpu::BindGroup, [x, y, z]: [u32; 3]) {
        self.dispatches += 1;
        self.raw.set_bind_group(0, group, &[]);
        self.raw.dispatch_workgroups(x, y, z);
    }
}

#[cfg(not(target_arch = "wasm32"))]
type ScopeFuture = Pin<Box<dyn Future<Output = Option<wgpu::Error>> + Send>>;
#[cfg(target_arch = "wasm32")]
type ScopeFuture = Pin<Box<dyn Future<Output = Option<wgpu::Error>>>>;

/// What error scopes caught: known at once on native targets, later in a browser.
pub(crate) struct Caught {
    site: Site,
    found: Vec<ScopeFuture>,
}

impl std::fmt::Debug for Caught {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caught").field("site", &self.site).finish_non_exhaustive()
    }
}

impl Caught {
    /// The first error, waiting for it if need be.
    pub(crate) async fn check(self) -> Result<(), RuntimeError> {
        for scope in self.found {
            if let Some(error) = scope.await {
                return Err(self.site.error(&error));
            }
        }
        Ok(())
    }

    /// The first error if it is known already; what is not known yet is kept for [`Self::check`].
    pub(crate) fn check_now(mut self) -> Result<Option<Self>, RuntimeError> {
        let mut waiting = Vec::new();
        for mut scope in self.found {
            match scope.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Some(error)) => return Err(self.site.error(&error)),
                Poll::Ready(None) => {}
                Poll::Pending => waiting.push(scope),
            }
        }
        self.found = waiting;
        Ok(if self.found.is_empty() { None } else { Some(self) })
    }
}
