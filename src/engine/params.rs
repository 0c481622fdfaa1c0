//! Parameters where programs read them: on a device as they are stored, in host memory as f32.

use crate::error::Error;
use indexmap::IndexMap;
use monopass_ir::error::EvalError;
use monopass_ir::eval::Tensors;
use monopass_ir::storage::{ParamStorage, StoredTensor};
use monopass_ir::{DType, TensorData};
use monopass_runtime::{Device, Upload, Weights};
use std::sync::Arc;

/// The parameters of a model where the engine's programs read them; cheap to clone.
///
/// On a device they may be stored in 16 or 8 bits, and in several buffers where one would be larger than it can bind; the graphs
/// that are loaded with them are written in f32 all the same.
#[derive(Clone, Debug)]
pub struct Params(pub(super) Place);

#[derive(Clone, Debug)]
pub(super) enum Place {
    Gpu { weights: Weights, storage: Arc<IndexMap<String, ParamStorage>> },
    Cpu(Arc<Tensors>),
}

impl Params {
    pub(super) const fn in_host_memory(tensors: Arc<Tensors>) -> Self {
        Self(Place::Cpu(tensors))
    }

    /// Bytes on the device, or in host memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Place::Gpu { weights, .. } => weights.bytes(),
            Place::Cpu(tensors) => tensors.values().map(|tensor| tensor.ty().size_bytes()).sum(),
        }
    }

    /// A parameter as computations see it, read back.
    ///
    /// # Errors
    /// A name that was not uploaded; what a read-back can meet.
    pub async fn read(&self, name: &str) -> Result<TensorData, Error> {
        let missing =
            || EvalError { message: format!("param {name:?} is missing"), help: Some("upload it under exactly this name".to_owned()) };
        match &self.0 {
            Place::Cpu(tensors) => Ok(tensors.get(name).cloned().ok_or_else(missing)?),
            Place::Gpu { weights, storage } => {
                let Some(how) = storage.get(name) else { return Ok(weights.read(name).await?) };
                let mut parts = Vec::new();
                for (name, scale) in how.names(name) {
                    let scale = if let Some(scale) = scale { Some(weights.read(&scale).await?) } else { None };
                    parts.push(StoredTensor::new(how.storage(), weights.read(&name).await?, scale)?.into_f32());
                }
                Ok(StoredTensor::joined(parts)?)
            }
        }
    }

    /// How a parameter is stored on the device; `None` if it is not there, or in host memory.
    #[must_use]
    pub fn storage(&self, name: &str) -> Option<&ParamStorage> {
        match &self.0 {
            Place::Gpu { storage, .. } => storage.get(name),
            Place::Cpu(_) => None,
        }
    }
}

/// An upload in progress, see [`Engine::uploader`](super::Engine::uploader).
#[derive(Debug)]
pub struct Uploader<'e>(Destination<'e>);

#[derive(Debug)]
enum Destination<'e> {
    Gpu { device: &'e Device, upload: Box<Upload<'e>>, storage: IndexMap<String, ParamStorage> },
    Cpu(Tensors),
}

impl<'e> Uploader<'e> {
    pub(super) fn new(device: Option<&'e Device>) -> Self {
        Self(match device {
            Some(device) => Destination::Gpu { device, upload: Box::new(Upload::new(device)), storage: IndexMap::new() },
            None => Destination::Cpu(Tensors::new()),
        })
    }

    /// Takes a parameter. A name given twice keeps the last.
    ///
    /// # Errors
    /// A row larger than a binding of the device; no memory left there; a lost device.
    pub async fn put(&mut self, name: &str, tensor: StoredTensor) -> Result<(), Error> {
        match &mut self.0 {
            Destination::Gpu { device, upload, storage } => {
                let max_bytes = device.target().max_binding_bytes;
                let how = ParamStorage::within(tensor.storage(), tensor.shape(), max_bytes);
                for (name, data) in how.buffers(name, tensor)? {
                    upload.put(name, &data).await?;
                }
                storage.insert(name.to_owned(), how);
            }
            Destination::Cpu(tensors) => {
                tensors.insert(name.to_owned(), tensor.into_f32());
            }
        }
        Ok(())
    }

    /// Takes a tensor as it is; one of integers, too.
    pub(super) async fn put_tensor(&mut self, name: &str, tensor: &TensorData) -> Result<(), Error> {
        if let Destination::Gpu { device, upload, storage } = &mut self.0 {
            let (ty, max_bytes) = (tensor.ty(), device.target().max_binding_bytes);
            if !(ty.dtype == DType::F32 && ty.size_bytes() > max_bytes) {
                upload.put(name, tensor).await?;
                storage.shift_remove(name);
                return Ok(());
            }
        }
        self.put(name, StoredTensor::from(tensor.clone())).await
    }

    /// The parameters, once all of them are there.
    ///
    /// # Errors
    /// No memory left on the device; a lost device.
    pub async fn finish(self) -> Result<Params, Error> {
        Ok(Params(match self.0 {
            Destination::Gpu { upload, storage, .. } => Place::Gpu { weights: upload.finish().await?, storage: Arc::new(storage) },
            Destination::Cpu(tensors) => Place::Cpu(Arc::new(tensors)),
        }))
    }
}
