//! GPU time by timestamps: of a run at the ends of its compute pass, which costs next to nothing, or of each command, in a
//! pass each, which about doubles the time. On when [`crate::DeviceOptions::profile`] asks for it and the adapter can.

use crate::buffers::Buffer;
use crate::counters::Counters;
use crate::gpu::{Gpu, Recorder};
use crate::readback::DOWNLOAD;
use crate::run::RunOutput;

/// A run with the GPU time of each command; made by [`crate::Executable::profile`].
#[derive(Clone, Debug)]
pub struct CmdProfile {
    /// What the run gave.
    pub run: RunOutput,
    /// The commands, in order.
    pub cmds: Vec<CmdTime>,
}

/// GPU time of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmdTime {
    /// Id and label of its kernel.
    pub kernel: String,
    /// Block paths that it came from.
    pub scope: String,
    /// Nanoseconds; zero if the command had nothing to do, or took less than a tick of the clock.
    pub gpu_ns: u64,
    /// Floating-point operations, as planned.
    pub flops: u64,
    /// Bytes that it must move through device memory, as planned.
    pub bytes_moved: u64,
}

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
        recorder.resolve(&self.set, 2, (&self.resolved, 0));
        recorder.copy((&self.resolved, 0), (staging, offset), STAMP_BYTES);
    }
}

/// Two timestamps for each command.
#[derive(Debug)]
pub(crate) struct CmdStamps {
    /// With the number of commands in each: a query set has a largest size.
    sets: Vec<(wgpu::QuerySet, u32)>,
    resolved: Buffer,
    staging: Buffer,
}

/// Commands a query set; their timestamps fill a multiple of the alignment that resolving wants.
const CMDS_PER_SET: u32 = wgpu::QUERY_SET_MAX_QUERIES / 2;

impl CmdStamps {
    pub(crate) fn new(gpu: &Gpu, tally: &mut Counters, n_cmds: usize) -> Self {
        let n_cmds = u32::try_from(n_cmds).unwrap_or(u32::MAX);
        let firsts = (0..n_cmds).step_by(CMDS_PER_SET as usize);
        let sets = firsts.map(|first| CMDS_PER_SET.min(n_cmds - first)).map(|n| (gpu.timestamps(tally, 2 * n), n)).collect();
        let bytes = u64::from(n_cmds.max(1)) * STAMP_BYTES;
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let resolved = gpu.buffer(tally, "timestamps", bytes, usage);
        Self { sets, resolved, staging: gpu.buffer(tally, "timestamps", bytes, DOWNLOAD) }
    }

    /// What the compute pass of a command is begun with.
    pub(crate) fn writes(&self, cmd_idx: usize) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let cmd_idx = u32::try_from(cmd_idx).ok()?;
        let (query_set, _) = self.sets.get((cmd_idx / CMDS_PER_SET) as usize)?;
        let first = 2 * (cmd_idx % CMDS_PER_SET);
        Some(wgpu::ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        })
    }

    /// Sends the timestamps to the host, after the passes.
    pub(crate) fn send(&self, recorder: &mut Recorder) {
        let mut offset = 0;
        for (set, n_cmds) in &self.sets {
            recorder.resolve(set, 2 * n_cmds, (&self.resolved, offset));
            offset += u64::from(*n_cmds) * STAMP_BYTES;
        }
        recorder.copy((&self.resolved, 0), (&self.staging, 0), offset);
    }

    /// Where they arrive.
    pub(crate) fn staging(&self) -> &Buffer {
        &self.staging
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
