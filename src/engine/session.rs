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
                check_type(states, name, &data.ty())?;
                states.insert(name.to_owned(), data.clone());
            }
        }
        Ok(())
    }

    /// Makes a state of zeros if it is not there.
    ///
    /// # Errors
    /// A state that is there with another type; no memory left.
    pub fn make(&mut self, name: &str, ty: &TensorType) -> Result<(), Error> {
        match self {
            Self::Gpu(session) => session.make(name, ty)?,
            Self::Cpu(states) if states.contains_key(name) => check_type(states, name, ty)?,
            Self::Cpu(states) => {
                states.insert(name.to_owned(), TensorData::zeros(ty));
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
                other.iter().try_for_each(|(name, data)| check_type(states, name, &data.ty()))?;
                states.values_mut().for_each(clear);
                states.extend(other.iter().map(|(name, data)| (name.clone(), data.clone())));
            }
            (Self::Gpu(_), Self::Cpu(_)) | (Self::Cpu(_), Self::Gpu(_)) => return Err(Error::OtherExecutor { what: "other session" }),
        }
        Ok(())
    }

    /// Takes over the states of row `from` of another session of the same engine as those of row `to`; states that the other does not
    /// have become zero in that row. The first axis of every state counts the rows; on a device all are copied there in one submit.
    ///
    /// # Errors
    /// A row that is not there, or has another type in the other session; a session of another engine. Nothing is copied then.
    pub fn copy_row(&mut self, to: usize, other: &Self, from: usize) -> Result<(), Error> {
        match (self, other) {
            (Self::Gpu(session), Self::Gpu(other)) => session.copy_row(to, other, from)?,
            (Self::Cpu(states), Self::Cpu(other)) => *states = with_row(states, to, other, from)?,
            (Self::Gpu(_), Self::Cpu(_)) | (Self::Cpu(_), Self::Gpu(_)) => return Err(Error::OtherExecutor { what: "other session" }),
        }
        Ok(())
    }

    /// Bytes of the states, on a device with the second buffer of those that take turns.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Gpu(session) => session.bytes(),
            Self::Cpu(states) => states.values().map(|state| state.ty().size_bytes()).sum(),
        }
    }
}

/// The states with one row replaced.
fn with_row(states: &Tensors, to: usize, other: &Tensors, from: usize) -> Result<Tensors, Error> {
    if let Some(name) = other.keys().find(|name| !states.contains_key(*name)) {
        return Err(wrong(name, "is not in this session".to_owned(), "run a program with it, or write it, first"));
    }
    let replaced = |(name, state): (&String, &TensorData)| {
        let one_row = |ty: &TensorType, row: usize| match ty.shape.split_first() {
            Some((&n_rows, rest)) if row < n_rows => Ok(TensorType::new(ty.dtype, [&[1], rest].concat())),
            _ => Err(wrong(name, format!("is {ty}, which has no row {row}"), "rows are counted from 0 along the first axis")),
        };
        let ty = one_row(&state.ty(), to)?;
        let source = match other.get(name) {
            Some(source) if one_row(&source.ty(), from)? == ty => source.rows(&(from..from + 1)),
            Some(source) => {
                let problem = format!("is {} in one session and {} in the other", state.ty(), source.ty());
                return Err(wrong(name, problem, "copy rows between sessions of one model"));
            }
            None => Some(TensorData::zeros(&ty)),
        };
        let mut state = state.clone();
        let put = source.and_then(|source| state.put_rows(to, &source));
        put.ok_or_else(|| wrong(name, format!("is {ty} a row, and not filled"), "report this defect"))?;
        Ok((name.clone(), state))
    };
    states.iter().map(replaced).collect()
}

fn wrong(name: &str, problem: String, help: &'static str) -> Error {
    Error::State { name: name.to_owned(), problem, help }
}

fn clear(state: &mut TensorData) {
    *state = TensorData::zeros(&state.ty());
}

fn check_type(states: &Tensors, name: &str, wanted: &TensorType) -> Result<(), Error> {
    match states.get(name).map(TensorData::ty) {
        Some(ty) if ty != *wanted => Err(Error::State {
            name: name.to_owned(),
            problem: format!("is {ty} in this session and {wanted} here"),
            help: "use a session of its own for a graph with other states",
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monopass_ir::Elements;

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

    #[test]
    fn rows_are_copied_between_batches() {
        let rows = |n: usize, first: u32| TensorData::new([n, 2], Elements::U32((first..).take(2 * n).collect())).unwrap();
        let (mut batch, mut single) = (Session::cpu(), Session::cpu());
        batch.write("a", &rows(3, 0)).unwrap();
        batch.write("b", &rows(3, 100)).unwrap();
        single.write("a", &rows(1, 50)).unwrap();
        batch.copy_row(1, &single, 0).unwrap();
        let read = |name: &str| pollster::block_on(batch.read(name)).unwrap().as_u32().map(<[u32]>::to_vec).unwrap();
        assert_eq!((read("a"), read("b")), (vec![0, 1, 50, 51, 4, 5], vec![100, 101, 0, 0, 104, 105]));
        assert!(batch.copy_row(3, &single, 0).unwrap_err().to_string().contains("u32[3, 2], which has no row 3"));
        assert!(batch.copy_row(0, &single, 1).unwrap_err().to_string().contains("u32[1, 2], which has no row 1"));
        assert!(single.copy_row(0, &batch, 0).unwrap_err().to_string().contains("`b` is not in this session"));
        single.write("b", &tensor(&[1.0])).unwrap();
        assert!(batch.copy_row(0, &single, 0).unwrap_err().to_string().contains("is u32[3, 2] in one session and f32[1] in the other"));
    }
}
