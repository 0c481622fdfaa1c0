//! Walking strided tensors in contiguous runs, and sharing work between threads.
//!
//! Results never depend on the number of threads: each output element is computed by one task, in one order.

use crate::error::EvalError;
use std::ops::Range;

/// Output elements a task is worth at least, for ops that do little with each.
pub(crate) const GRAIN: usize = 8192;

/// Vectors above this many elements are tried before they are taken, so that a lack of memory is an error.
const LARGE: usize = 1 << 24;

/// A vector of `n` zeros.
pub(crate) fn zeroed<T: Clone + Default>(n: usize) -> Result<Vec<T>, EvalError> {
    if n > LARGE && Vec::<T>::new().try_reserve_exact(n).is_err() {
        return Err(EvalError::new(format!("no memory for {n} elements of {} bytes", size_of::<T>()))
            .help("use a smaller batch or a shorter length"));
    }
    Ok(vec![T::default(); n])
}

/// Calls `body` with each chunk of `out` and the position of its first element, on several threads where there are some.
pub(crate) fn for_chunks<T: Send>(out: &mut [T], chunk: usize, body: impl Fn(usize, &mut [T]) + Send + Sync) {
    let chunk = chunk.max(1);
    #[cfg(feature = "parallel")]
    if out.len() > chunk {
        use rayon::prelude::*;
        out.par_chunks_mut(chunk).enumerate().for_each(|(i, part)| body(i * chunk, part));
        return;
    }
    for (i, part) in out.chunks_mut(chunk).enumerate() {
        body(i * chunk, part);
    }
}

/// As [`for_chunks`] over two outputs, cut into equally many chunks; `body` gets the number of the chunk. An empty left
/// one has empty chunks, as many as the right one.
pub(crate) fn for_chunk_pairs<T: Send>(
    lhs: (&mut [T], usize),
    rhs: (&mut [T], usize),
    body: impl Fn(usize, &mut [T], &mut [T]) + Send + Sync,
) {
    let (lhs, lhs_chunk) = lhs;
    let (rhs, rhs_chunk) = rhs;
    if lhs.is_empty() {
        return for_chunks(rhs, rhs_chunk, |start, part| body(start / rhs_chunk, &mut [], part));
    }
    #[cfg(feature = "parallel")]
    {
        use rayon::prelude::*;
        let parts = lhs.par_chunks_mut(lhs_chunk.max(1)).zip(rhs.par_chunks_mut(rhs_chunk.max(1)));
        parts.enumerate().for_each(|(i, (lhs, rhs))| body(i, lhs, rhs));
    }
    #[cfg(not(feature = "parallel"))]
    for (i, (lhs, rhs)) in lhs.chunks_mut(lhs_chunk.max(1)).zip(rhs.chunks_mut(rhs_chunk.max(1))).enumerate() {
        body(i, lhs, rhs);
    }
}

/// Threads that [`for_chunks`] can use.
pub(crate) fn n_threads() -> usize {
    #[cfg(feature = "parallel")]
    return rayon::current_num_threads().max(1);
    #[cfg(not(feature = "parallel"))]
    1
}

/// Strides of an operand of `shape` read as if broadcast to `to`: 0 along repeated axes.
pub(crate) fn broadcast_strides(shape: &[usize], to: &[usize]) -> Vec<usize> {
    let mut strides = vec![0; to.len()];
    let mut stride = 1;
    for (axis, &size) in shape.iter().enumerate().rev() {
        if let Some(place) = (axis + to.len()).checked_sub(shape.len())
            && size != 1
        {
            strides[place] = stride;
        }
        stride *= size;
    }
    strides
}

/// Nested loops over a dense output, with the place of `N` strided operands; neighboring axes are merged where all
/// strides allow, so that same-shape operands give one long run and a broadcast row gives runs of its length.
#[derive(Clone, Debug)]
pub(crate) struct Loops<const N: usize> {
    outer: Vec<(usize, [usize; N])>,
    run: (usize, [usize; N]),
}

impl<const N: usize> Loops<N> {
    /// Loops over `shape`; each operand's strides belong to its axes.
    pub(crate) fn new(shape: &[usize], strides: [&[usize]; N]) -> Self {
        let mut outer: Vec<(usize, [usize; N])> = Vec::with_capacity(shape.len());
        for (axis, &size) in shape.iter().enumerate().filter(|&(_, &size)| size != 1) {
            let steps = strides.map(|of| of[axis]);
            match outer.last_mut() {
                Some(last) if (0..N).all(|i| last.1[i] == steps[i].saturating_mul(size)) => *last = (last.0 * size, steps),
                _ => outer.push((size, steps)),
            }
        }
        let run = outer.pop().unwrap_or((1, [1; N]));
        Self { outer, run }
    }

    /// Steps of the operands within a run.
    pub(crate) const fn steps(&self) -> [usize; N] {
        self.run.1
    }

    /// Length of a run.
    pub(crate) const fn run_len(&self) -> usize {
        self.run.0
    }

    /// Calls `body` for each run of the output positions `range`: the part of the range, counted from its start, and the
    /// operands' positions at the run's first element.
    pub(crate) fn for_runs(&self, range: Range<usize>, mut body: impl FnMut(Range<usize>, [usize; N])) {
        if range.is_empty() {
            return;
        }
        let (len, steps) = self.run;
        let (mut within, mut row) = (range.start % len, range.start / len);
        let mut idx = vec![0; self.outer.len()];
        let mut places = [0; N];
        for (i, (size, strides)) in idx.iter_mut().zip(&self.outer).rev() {
            *i = row % size;
            row /= size;
            (0..N).for_each(|op| places[op] += *i * strides[op]);
        }
        let mut done = 0;
        while done < range.len() {
            let n = (len - within).min(range.len() - done);
            let first: [usize; N] = std::array::from_fn(|op| places[op] + within * steps[op]);
            body(done..done + n, first);
            done += n;
            within = 0;
            self.advance(&mut idx, &mut places);
        }
    }

    fn advance(&self, idx: &mut [usize], places: &mut [usize; N]) {
        for (i, (size, strides)) in idx.iter_mut().zip(&self.outer).rev() {
            *i += 1;
            if *i < *size {
                (0..N).for_each(|op| places[op] += strides[op]);
                return;
            }
            (0..N).for_each(|op| places[op] -= (*size - 1) * strides[op]);
            *i = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::dense_strides;

    #[test]
    fn same_shapes_make_one_run_and_rows_stay_rows() {
        let dense = dense_strides(&[3, 5, 7]);
        let same = Loops::new(&[3, 5, 7], [&dense, &dense]);
        assert!(same.outer.is_empty() && same.run == (105, [1, 1]));
        let row = Loops::new(&[3, 5, 7], [&dense, &broadcast_strides(&[7], &[3, 5, 7])]);
        assert_eq!((row.outer, row.run), (vec![(15, [7, 0])], (7, [1, 1])));
        let column = Loops::new(&[3, 5, 7], [&dense, &broadcast_strides(&[3, 1, 1], &[3, 5, 7])]);
        assert_eq!((column.outer, column.run), (vec![(3, [35, 1])], (35, [1, 0])));
    }

    #[test]
    fn any_range_visits_the_same_places() {
        let shape = [3, 4, 5];
        let loops = Loops::new(&shape, [&[1, 3, 12]]);
        let mut whole = vec![0; 60];
        loops.for_runs(0..60, |part, [first]| part.clone().for_each(|i| whole[i] = first + (i - part.start) * 12));
        let naive: Vec<usize> = (0..60).map(|i| i / 20 + (i / 5 % 4) * 3 + (i % 5) * 12).collect();
        assert_eq!(whole, naive);
        let mut cut = Vec::new();
        for start in (0..60).step_by(7) {
            loops.for_runs(start..(start + 7).min(60), |part, [first]| cut.extend(part.clone().map(|i| first + (i - part.start) * 12)));
        }
        assert_eq!(cut, naive);
    }
}
