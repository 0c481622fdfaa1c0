//! States that live between runs, on a device or in host memory.

use crate::error::Error;
use monopass_ir::eval::Tensors;
use monopass_ir::{TensorData, TensorType};
use monopass_runtime::Device;

/// The states of one sequence, or of one batch of them. A state that was never written is zero.
#[derive(Debug)]
pub enum Session {
    /// On a device.
    Gpu(monopass_runtime::Session),
    /// In host memory.
    Cpu(Tensors),
}

impl Session {
    pub(super) fn on(device: &Device) -> Self {
        Self::Gpu(monopass_runtime::Session::new(device))
    }

    pub(super) fn cpu() -> Self {
        Self::Cpu(Tensors::new())
    }

    /// Names of the states there are; they come with the first run or write.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Gpu(session) => session.names().collect(),
            Self::Cpu(states) => states.keys().map(String::as_str).collect(),
        }
    }

    /// Type of a state.
    #[must_use]
    pub fn ty(&self, name: &str) -> Option<TensorType> {
        match self {
            Self::Gpu(session) => session.ty(name).cloned(),
            Self::Cpu(states) => states.get(name).map(TensorData::ty),
        }
    }

    /// A state, as all runs submitted so far leave it.
    ///
    /// # Errors
    /// An unknown state; what a read-back can meet.
    pub async fn read(&self, name: &str) -> Result<TensorData, Error> {
        match self {
            Self::Gpu(session) => Ok(session.read(name).await?),
            Self::Cpu(states) => states.get(name).cloned().ok_or_else(|| Error::State {
                name: name.to_owned(),
                problem: "is not in this session".to_owned(),
                help: "run a program with it, or write it, first",
            }),
        }
    }

    /// Sets a state, for runs after this; makes it if it is not there.
    ///
    /// # Errors
    /// A state that is there with another type; no memory left.
    pub fn write(&mut self, name: &str, data: &TensorData) -> Result<(), Error> {
        match self {
            Self::Gpu(session) => session.write(name, data)?,
            Self::Cpu(states) => {
                check_type(states, name, data)?;
                states.insert(name.to_owned(), data.clone());
            }
        }
        Ok(())
    }

    /// Sets all states to zero.
    ///
    /// # Errors
    /// A lost device.
    pub fn reset(&mut self) -> Result<(), Error> {
        match self {
            Self::Gpu(session) => session.reset()?,
            Self::Cpu(states) => states.values_mut().for_each(clear),
        }
        Ok(())
    }

    /// Another session with the same states: what one does later does not touch the other.
    ///
    /// # Errors
    /// No memory left on the device; a lost device.
    pub fn fork(&self) -> Result<Self, Error> {
        Ok(match self {
            Self::Gpu(session) => Self::Gpu(session.fork()?),
            Self::Cpu(states) => Self::Cpu(states.clone()),
        })
    }

    /// Takes over the states of another session of the same engine; states that it does not have become zero.
    ///
    /// # Errors
    /// A state that has another type there, or a session of another engine; nothing is copied then.
    pub fn copy_from(&mut self, other: &Self) -> Result<(), Error> {
        match (self, other) {
            (Self::Gpu(session), Self::Gpu(other)) => session.copy_from(other)?,
            (Self::Cpu(states), Self::Cpu(other)) => {
                other.iter().try_for_each(|(name, data)| check_type(states, name, data))?;
                states.values_mut().for_each(clear);
                states.extend(other.iter().map(|(name, data)| (name.clone(), data.clone())));
            }
            (Self::Gpu(_), Self::Cpu(_)) | (Self::Cpu(_), Self::Gpu(_)) => return Err(Error::OtherExecutor { what: "other session" }),
        }
        Ok(())
    }
}

fn clear(state: &mut TensorData) {
    *state = TensorData::zeros(&state.ty());
}

fn check_type(states: &Tensors, name: &str, data: &TensorData) -> Result<(), Error> {
    match states.get(name).map(TensorData::ty) {
        Some(ty) if ty != data.ty() => Err(Error::State {
            name: name.to_owned(),
            problem: format!("is {ty} in this session and {} here", data.ty()),
            help: "use a session of its own for a graph with other states",
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> TensorData {
        TensorData::f32([values.len()], values).unwrap()
    }

    #[test]
    fn host_states_behave_as_those_of_a_device() {
        let mut session = Session::cpu();
        session.write("a", &tensor(&[1.0, 2.0])).unwrap();
        assert!(session.write("a", &tensor(&[1.0])).unwrap_err().to_string().contains("is f32[2] in this session and f32[1] here"));
        let fork = session.fork().unwrap();
        session.write("b", &tensor(&[3.0])).unwrap();
        session.copy_from(&fork).unwrap();
        let read = |session: &Session, name: &str| pollster::block_on(session.read(name)).unwrap();
        assert_eq!((read(&session, "a"), read(&session, "b")), (tensor(&[1.0, 2.0]), tensor(&[0.0])));
        session.reset().unwrap();
        assert_eq!((read(&session, "a"), read(&fork, "a")), (tensor(&[0.0, 0.0]), tensor(&[1.0, 2.0])));
        assert!(pollster::block_on(session.read("c")).is_err());
    }
}
