//! GPU time by timestamps at the ends of the compute pass. On when [`crate::DeviceOptions::profile`] asks for it and the
//! adapter has timestamps; it costs next to nothing.

use crate::buffers::Buffer;
use crate::counters::Counters;
use crate::gpu::{Gpu, Recorder};

/// Bytes of the two timestamps.
pub(crate) const STAMP_BYTES: u64 = 16;

/// Two timestamps and the buffer they are resolved to.
#[derive(Debug)]
pub(crate) struct Stamps {
    set: wgpu::QuerySet,
    resolved: Buffer,
}

impl Stamps {
    pub(crate) fn new(gpu: &Gpu, tally: &mut Counters) -> Self {
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        Self { set: gpu.timestamps(tally, 2), resolved: gpu.buffer(tally, "timestamps", STAMP_BYTES, usage) }
    }

    /// What the compute pass is begun with.
    pub(crate) fn writes(&self) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites { query_set: &self.set, beginning_of_pass_write_index: Some(0), end_of_pass_write_index: Some(1) }
    }

    /// Sends the timestamps to the host, after the pass.
    pub(crate) fn send(&self, recorder: &mut Recorder, staging: &Buffer, offset: u64) {
        recorder.resolve(&self.set, 2, &self.resolved);
        recorder.copy((&self.resolved, 0), (staging, offset), STAMP_BYTES);
    }
}

/// Nanoseconds between the two timestamps in mapped bytes; `None` if the driver's clock stood still or ran back.
pub(crate) fn elapsed_ns(bytes: &[u8], period_ns: f32) -> Option<u64> {
    let begin = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let end = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
    let ticks = end.checked_sub(begin).filter(|&ticks| ticks > 0)?;
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive time, to a float's accuracy"
    )]
    let ns = (ticks as f64 * f64::from(period_ns)) as u64;
    Some(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_nanoseconds() {
        let stamps = |a: u64, b: u64| [a.to_le_bytes(), b.to_le_bytes()].concat();
        assert_eq!(elapsed_ns(&stamps(1000, 1500), 2.0), Some(1000));
        assert_eq!(elapsed_ns(&stamps(1500, 1000), 2.0), None);
        assert_eq!(elapsed_ns(&stamps(7, 7), 1.0), None);
        assert_eq!(elapsed_ns(&[0; 8], 1.0), None);
    }
}
