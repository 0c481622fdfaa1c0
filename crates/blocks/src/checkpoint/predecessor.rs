//! A block of the predecessor: a safetensors file with its nine names, and two more with ranks.

use super::CheckpointError;
use super::tensors::in_file;
use crate::config::{Mamba2Config, Naming};
use crate::params::{ParamInfo, Role};
use indexmap::IndexMap;
use monopass_ir::TensorData;

/// The parameters of a block that the predecessor saved, in the order of [`Mamba2Config::parameters`].
///
/// `config` has the predecessor's naming ([`Mamba2Config::seed`] or [`Mamba2Config::cmamba`] with the block's sizes); `file` is the
/// file's name for messages. With complex states `A_log` is converted: the predecessor called its columns the logarithm
/// of |A| and the angle of A, but took them for the real and imaginary part of the exponent; ours are the logarithm of
/// the decay rate and the angular rate.
///
/// # Errors
/// [`CheckpointError`]: a broken file, a tensor that is missing or of another shape, a configuration that does not fit
/// together, and a head whose state grows instead of decaying, which has no equivalent here.
pub fn load_predecessor(config: &Mamba2Config, file: &str, bytes: &[u8]) -> Result<IndexMap<String, TensorData>, CheckpointError> {
    if config.naming != Naming::Predecessor {
        let help = "start from Mamba2Config::seed or Mamba2Config::cmamba".to_owned();
        return Err(CheckpointError::Field { field: "naming".into(), problem: "is not the predecessor's".into(), help });
    }
    let stored = in_file(file, bytes)?;
    let read = |param: ParamInfo| {
        let tensor = stored.iter().find(|tensor| tensor.name == param.name);
        let tensor = tensor.ok_or_else(|| CheckpointError::MissingTensor {
            name: param.name.clone(),
            shape: param.shape.clone(),
            files: file.to_owned(),
            config: "the configuration",
        })?;
        if tensor.shape != param.shape {
            let (found, wanted) = (tensor.shape.clone(), param.shape);
            return Err(CheckpointError::WrongShape {
                name: param.name,
                file: file.to_owned(),
                found,
                wanted,
                config: "the configuration",
            });
        }
        let data = tensor.to_f32(bytes)?;
        let data = if config.complex && param.role == Role::ALog { converted(file, &data)? } else { data };
        Ok((param.name, data))
    };
    config.parameters("")?.into_iter().map(read).collect()
}

/// `(a0, a1)` as `(log(-a0), a1)`, `[H, 2]`.
fn converted(file: &str, a_log: &TensorData) -> Result<TensorData, CheckpointError> {
    let mut values = a_log.to_f32_vec();
    for (head, [a0, _]) in values.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        if *a0 >= 0.0 || a0.is_nan() {
            return Err(CheckpointError::GrowingState { file: file.to_owned(), head, rate: *a0 });
        }
        *a0 = (-*a0).ln();
    }
    TensorData::f32(a_log.shape(), values).map_err(|_| CheckpointError::MissingTensor {
        name: "A_log".into(),
        shape: a_log.shape().to_vec(),
        files: file.to_owned(),
        config: "the configuration",
    })
}
