//! Guards storage of weights: what they are rounded to, and that a graph for stored weights computes with exactly those.

use indexmap::IndexMap;
use monopass_ir::error::BuildErrors;
use monopass_ir::eval::{Interpreter, Tensors};
use monopass_ir::storage::{ParamStorage, Q8_0_BLOCK, StorageError};
use monopass_ir::{DType, Elements, Graph, GraphBuilder, Storage, StoredTensor, TensorData, TensorType};
use std::ops::Range;

/// Numbers of both signs that no narrow type has exactly.
fn numbers(n: usize) -> Vec<f32> {
    (0u16..).take(n).map(|i| (f32::from(i % 97) - 48.0) * 0.013 * (1.0 + f32::from(i % 7))).collect()
}

fn matrix(rows: usize, cols: usize) -> TensorData {
    let ty = TensorType::new(DType::F32, [rows, cols]);
    TensorData::f32([rows, cols], numbers(rows * cols)).unwrap_or_else(|_| TensorData::zeros(&ty))
}

#[test]
fn each_storage_keeps_its_precision() {
    let tensor = matrix(5, 64);
    let exact = tensor.as_f32().unwrap();
    for storage in Storage::ALL {
        let stored = StoredTensor::quantize(tensor.clone(), storage).unwrap();
        assert_eq!((stored.storage(), stored.shape(), stored.first_not_finite()), (storage, &[5, 64][..], None));
        let n_bytes = stored.elements().ty().size_bytes() + stored.scale().map_or(0, |scale| scale.ty().size_bytes());
        assert_eq!(stored.size_bytes(), n_bytes);
        let widened = stored.clone().into_f32();
        let run = if storage == Storage::Q8_0 { Q8_0_BLOCK } else { 64 };
        for (xs, ys) in exact.chunks(run).zip(widened.as_f32().unwrap().chunks(run)) {
            let largest = xs.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            for (x, y) in xs.iter().zip(ys) {
                let bound = match storage {
                    Storage::F32 => 0.0,
                    Storage::F16 => x.abs() * 4.9e-4,
                    Storage::Bf16 => x.abs() * 3.95e-3,
                    Storage::Int8 | Storage::Q8_0 => largest / 127.0 * 0.51,
                };
                assert!((x - y).abs() <= bound, "{storage}: {x} became {y}");
            }
        }
        // What is stored once is stored again without loss.
        assert_eq!(StoredTensor::quantize(widened.clone(), storage).unwrap().into_f32(), widened, "{storage}");
        assert_eq!(storage.name().parse::<Storage>(), Ok(storage));
    }
}

#[test]
fn rows_of_zeros_and_large_numbers() {
    let zeros = TensorData::f32([2, 32], vec![0.0; 64]).unwrap();
    for storage in Storage::ALL {
        assert_eq!(StoredTensor::quantize(zeros.clone(), storage).unwrap().into_f32(), zeros);
    }
    let large = TensorData::f32([1, 32], [vec![1.0; 31], vec![1e9]].concat()).unwrap();
    let stored = |storage| StoredTensor::quantize(large.clone(), storage);
    let error = stored(Storage::F16).unwrap_err();
    assert_eq!(error.to_string(), "element 31 is 1000000000, which f16 does not have\n  help: store it as bf16 or f32");
    assert!(matches!(stored(Storage::Q8_0), Err(StorageError::Range { index: 0, .. })));
    assert!(stored(Storage::Bf16).is_ok() && stored(Storage::Int8).is_ok());
    let nan = TensorData::f32([1, 32], [vec![1.0; 3], vec![f32::NAN], vec![0.0; 28]].concat()).unwrap();
    assert!(matches!(StoredTensor::quantize(nan.clone(), Storage::Int8), Err(StorageError::Range { index: 3, .. })));
    assert_eq!(StoredTensor::quantize(nan, Storage::F16).unwrap().first_not_finite(), Some(3));
}

#[test]
fn what_does_not_fit_is_refused() {
    let vector = TensorData::f32([32], vec![0.0; 32]).unwrap();
    assert!(matches!(StoredTensor::quantize(vector, Storage::Int8), Err(StorageError::Shape { .. })));
    assert!(matches!(StoredTensor::quantize(matrix(2, 33), Storage::Q8_0), Err(StorageError::Shape { .. })));
    let elements = TensorData::new([2, 3], Elements::I8(vec![1; 6])).unwrap();
    let error = StoredTensor::new(Storage::Int8, elements.clone(), None).unwrap_err().to_string();
    assert_eq!(error, "scales of a tensor stored as int8 with shape [2, 3] are absent, not f32[2, 1]");
    assert!(StoredTensor::new(Storage::F16, elements, None).is_err());
    assert!("int4".parse::<Storage>().unwrap_err().to_string().contains("f32, f16, bf16, int8 and q8_0"));
}

/// A table read by its rows and multiplied as a head, a matrix that is transposed in the graph, and one that is an output.
fn graph() -> Result<Graph, BuildErrors> {
    let g = GraphBuilder::new("stored");
    let ids = g.input("ids", DType::U32, [3, 2]);
    let table = g.param("table", DType::F32, [11, 64]);
    let other = g.param("other", DType::F32, [64, 7]);
    let plain = g.param("plain", DType::F32, [9, 64]);
    let x = table.gather(ids);
    g.output("logits", x.matmul(table, false, true));
    g.output("other", x.matmul(other, false, false));
    g.output("twice", plain * 2.0);
    g.output("column", table.slice_axis(1, 3, 4));
    g.finish()
}

fn run(graph: &Graph, params: &Tensors) -> Result<Tensors, Box<dyn std::error::Error>> {
    let ids = TensorData::new([3, 2], Elements::U32(vec![0, 10, 3, 4, 7, 8]))?;
    let inputs = [("ids".to_owned(), ids)].into_iter().collect();
    Ok(Interpreter::new(graph)?.run(&inputs, params, &mut Tensors::new())?)
}

#[test]
fn a_graph_for_stored_weights_computes_with_them() {
    let graph = graph().unwrap();
    let weights = [("table", matrix(11, 64)), ("other", matrix(64, 7)), ("plain", matrix(9, 64))];
    for (storage, max_bytes) in Storage::ALL.into_iter().flat_map(|storage| [(storage, u64::MAX), (storage, 500), (storage, 1)]) {
        let (mut layout, mut params, mut widened) = (IndexMap::new(), Tensors::new(), Tensors::new());
        for (name, tensor) in &weights {
            let own = if storage.fits(tensor.shape()) { storage } else { Storage::F32 };
            let stored = StoredTensor::quantize(tensor.clone(), own).unwrap();
            let how = ParamStorage::within(own, tensor.shape(), max_bytes);
            let n_rows: usize = how.parts().iter().map(Range::len).sum();
            assert!(if how.parts().is_empty() { max_bytes > 1 } else { n_rows == tensor.shape()[0] }, "{how:?}");
            params.extend(how.buffers(name, stored.clone()).unwrap());
            widened.insert((*name).to_owned(), stored.into_f32());
            layout.insert((*name).to_owned(), how);
        }
        let rewritten = graph.with_storage(&layout).unwrap();
        monopass_ir::verify::verify(&rewritten).unwrap();
        let wanted: Vec<String> = rewritten.params().map(|(name, _)| name.to_owned()).collect();
        assert!(wanted.iter().all(|name| params.contains_key(name)) && wanted.len() == params.len(), "{storage} {max_bytes}: {wanted:?}");
        let (found, expected) = (run(&rewritten, &params).unwrap(), run(&graph, &widened).unwrap());
        for (name, expected) in &expected {
            let (found, expected) = (found[name].as_f32().unwrap(), expected.as_f32().unwrap());
            for (x, y) in found.iter().zip(expected) {
                // A scale of a row is applied to the sum, and sums of parts of a matrix are the same sums.
                assert!((x - y).abs() <= 2e-5 * (1.0 + y.abs()), "{storage} {max_bytes} {name}: {x} for {y}");
            }
        }
    }
}

#[test]
fn no_part_is_larger_than_asked() {
    for (rows, row_bytes) in [(5u64, 400u64), (7, 4), (1000, 12), (1 << 20, 256), (13, 260)] {
        for max_bytes in [1, 4, 11, 399, 400, 401, 1040, 1 << 20, 134_217_728] {
            let shape = [usize::try_from(rows).unwrap(), usize::try_from(row_bytes / 4).unwrap()];
            let how = ParamStorage::within(Storage::F32, &shape, max_bytes);
            assert_eq!(how.parts().is_empty(), rows * row_bytes <= max_bytes, "{shape:?} {max_bytes}");
            let mut next = 0;
            for part in how.parts() {
                assert!(
                    part.start == next && (part.len() == 1 || part.len() as u64 * row_bytes <= max_bytes),
                    "{shape:?} {max_bytes} {part:?}"
                );
                next = part.end;
            }
            assert!(how.parts().is_empty() || next == shape[0]);
        }
    }
    let how = ParamStorage::within(Storage::F32, &[9, 4], 64);
    let other = StoredTensor::from(matrix(5, 4));
    assert!(matches!(how.buffers("w", other), Err(StorageError::Rows { .. })));
}

#[test]
fn a_layout_of_another_shape_is_refused() {
    let how = IndexMap::from([("plain".to_owned(), ParamStorage::within(Storage::F32, &[8, 64], 600))]);
    assert!(matches!(graph().unwrap().with_storage(&how), Err(StorageError::Shape { .. })));
}

/// Ties go to the even neighbor, infinities and NaN stay what they are, and what becomes infinite is named.
#[test]
fn sixteen_bits_are_the_nearest() {
    let stored = |values: &[f32], storage| StoredTensor::quantize(TensorData::f32([values.len()], values).unwrap(), storage);
    let widened = |values: &[f32], storage| stored(values, storage).unwrap().into_f32().to_f32_vec();
    let values = [1.0 + 0.5f32.powi(11), 1.0 + 3.0 * 0.5f32.powi(11), -65_519.0, 1e-9, f32::INFINITY];
    assert_eq!(widened(&values, Storage::F16), [1.0, 1.0 + 0.5f32.powi(9), -65_504.0, 0.0, f32::INFINITY]);
    let values = [1.0 + 0.5f32.powi(8), 1.0 + 3.0 * 0.5f32.powi(8)];
    assert_eq!(widened(&values, Storage::Bf16), [1.0, 1.0 + 0.5f32.powi(6)]);
    assert!(stored(&[1e38], Storage::Bf16).is_ok());
    assert!(matches!(stored(&[1.0, 65_520.0], Storage::F16), Err(StorageError::Range { index: 1, .. })));
    assert!(matches!(stored(&[f32::MAX], Storage::Bf16), Err(StorageError::Range { index: 0, .. })));
    assert!(stored(&[f32::MAX, f32::NAN], Storage::F32).is_ok());
    assert!(stored(&[f32::NAN, f32::NEG_INFINITY], Storage::F16).is_ok());
}

#[test]
fn weights_that_train_are_whole() {
    let g = GraphBuilder::new("train");
    let w = g.param("w", DType::F32, [2, 2]);
    g.update("w", w * 0.5);
    g.output("y", w.exp());
    let graph = g.finish().unwrap();
    let how = |storage| IndexMap::from([("w".to_owned(), ParamStorage::whole(storage))]);
    assert_eq!(graph.with_storage(&how(Storage::F32)).unwrap().n_nodes(), graph.n_nodes());
    let error = graph.with_storage(&how(Storage::Bf16)).unwrap_err().to_string();
    assert!(error.starts_with("param \"w\" is updated by the graph and stored as bf16"), "{error}");
}
