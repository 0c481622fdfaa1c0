//! Reading buffers back, outside of a run.

use crate::buffers::{Buffer, copied_bytes, decode};
use crate::counters::Counters;
use crate::error::{RuntimeError, Site};
use crate::gpu::Gpu;
use monopass_ir::{TensorData, TensorType};

/// Usage of staging buffers that the host reads.
pub(crate) const DOWNLOAD: wgpu::BufferUsages = wgpu::BufferUsages::MAP_READ.union(wgpu::BufferUsages::COPY_DST);

/// Copies a tensor to the host and waits for it.
pub(crate) async fn read_tensor(gpu: &Gpu, what: &str, ty: &TensorType, from: &Buffer) -> Result<TensorData, RuntimeError> {
    gpu.healthy()?;
    let bytes = copied_bytes(ty);
    if bytes == 0 {
        return Ok(TensorData::zeros(ty));
    }
    let mut tally = Counters::default();
    let ((staging, submission), caught) = gpu.scoped(Site::during(format!("read {what}")), || {
        let staging = gpu.buffer(&mut tally, "read back", bytes, DOWNLOAD);
        let mut recorder = gpu.record("read back");
        recorder.copy((from, 0), (&staging, 0), bytes);
        recorder.crossing(0, bytes);
        let submission = gpu.submit(&mut tally, recorder);
        (staging, submission)
    });
    let answer = gpu.map(&staging, wgpu::MapMode::Read);
    caught.check().await?;
    gpu.drive(Some(submission))?;
    gpu.mapped(what, answer).await?;
    take(what, ty, &staging, 0)
}

/// A tensor out of a mapped staging buffer.
pub(crate) fn take(what: &str, ty: &TensorType, staging: &Buffer, offset: u64) -> Result<TensorData, RuntimeError> {
    let bytes = copied_bytes(ty);
    if bytes == 0 {
        return Ok(TensorData::zeros(ty));
    }
    let failed = |reason: String| RuntimeError::MapFailed { what: what.to_owned(), reason };
    let view = staging.raw().get_mapped_range(offset..offset + bytes).map_err(|error| failed(error.to_string()))?;
    decode(ty, &view).ok_or_else(|| failed("it is too short".to_owned()))
}
