//! Movement and index ops.

use super::*;

fn counting(shape: &[usize]) -> TensorData {
    let n: usize = shape.iter().product();
    TensorData::i32(shape, (0..n).map(|i| i32::try_from(i).unwrap()).collect::<Vec<_>>()).unwrap()
}

fn ints(shape: &[usize], elements: &[i32]) -> TensorData {
    TensorData::i32(shape, elements).unwrap()
}

#[test]
fn permute_slice_and_broadcast_move_elements() -> Fallible<()> {
    let x = counting(&[2, 3, 2]);
    let permuted = apply([&x], |[x]| x.permute(vec![2, 0, 1]))?;
    assert_eq!(permuted, ints(&[2, 2, 3], &[0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]));
    let square = counting(&[2, 2]);
    assert_eq!(apply([&square], |[x]| x.permute(vec![1, 0]))?, ints(&[2, 2], &[0, 2, 1, 3]));
    assert_eq!(apply([&x], |[x]| x.slice(vec![0, 1, 1], vec![2, 3, 2]))?, ints(&[2, 2, 1], &[3, 5, 9, 11]));
    assert_eq!(apply([&x], |[x]| x.slice(vec![1, 0, 0], vec![2, 3, 2]))?, ints(&[1, 3, 2], &[6, 7, 8, 9, 10, 11]));
    assert_eq!(apply([&x], |[x]| x.slice(vec![2, 0, 0], vec![2, 3, 2]))?, ints(&[0, 3, 2], &[]));
    let row = counting(&[2, 1]);
    assert_eq!(apply([&row], |[x]| x.broadcast(vec![2, 2, 3]))?, ints(&[2, 2, 3], &[0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]));
    assert_eq!(apply([&x], |[x]| x.reshape(vec![3, 4]))?.elements(), x.elements());
    Ok(())
}

#[test]
fn large_permutes_are_cut_without_seams() -> Fallible<()> {
    let x = counting(&[3, 61, 79]);
    let got = apply([&x], |[x]| x.permute(vec![2, 0, 1]))?;
    let want: Vec<i32> = (0..79).flat_map(|c| (0..3).flat_map(move |a| (0..61).map(move |b| (a * 61 + b) * 79 + c))).collect();
    assert_eq!(got, ints(&[79, 3, 61], &want));
    Ok(())
}

#[test]
fn pad_fills_and_concat_joins() -> Fallible<()> {
    let x = counting(&[2, 2]);
    assert_eq!(apply([&x], |[x]| x.pad(vec![0, 1], vec![1, 0], -7.9))?, ints(&[3, 3], &[-7, 0, 1, -7, 2, 3, -7, -7, -7]));
    let flags = bools(&[1], &[false]);
    assert_eq!(apply([&flags], |[x]| x.pad(vec![1], vec![0], 1.0))?, bools(&[2], &[true, false]));
    assert_eq!(apply([&f32s(&[0, 2], &[])], |[x]| x.pad(vec![1, 0], vec![0, 0], 0.5))?, f32s(&[1, 2], &[0.5, 0.5]));
    let (y, empty) = (ints(&[2, 1], &[8, 9]), ints(&[2, 0], &[]));
    let joined = apply_in(Precision::F32, [&x, &empty, &y], |builder, parts| vec![builder.concat(&parts, 1_usize)]);
    assert_eq!(joined?[0], ints(&[2, 3], &[0, 1, 8, 2, 3, 9]));
    Ok(())
}

#[test]
fn iota_counts_along_its_axis() -> Fallible<()> {
    let got = apply_in(Precision::F32, [], |builder, []| {
        vec![
            builder.iota(vec![2, 3], 1_usize, DType::I32),
            builder.iota(vec![2, 2], 0_usize, DType::F32),
            builder.iota(vec![0, 2], 1_usize, DType::U32),
        ]
    })?;
    assert_eq!(got[0], ints(&[2, 3], &[0, 1, 2, 0, 1, 2]));
    assert_eq!(got[1], f32s(&[2, 2], &[0.0, 0.0, 1.0, 1.0]));
    assert_eq!(got[2].elements(), &Elements::U32(vec![]));
    Ok(())
}

#[test]
fn gather_reads_rows_and_names_a_wrong_index() -> Fallible<()> {
    let table = counting(&[4, 3]);
    let ids = ints(&[3, 1], &[3, 0, 3]);
    assert_eq!(apply([&table, &ids], |[t, i]| t.gather(i))?, ints(&[3, 1, 3], &[9, 10, 11, 0, 1, 2, 9, 10, 11]));
    let ids = TensorData::new([0], Elements::U32(vec![]))?;
    assert_eq!(apply([&table, &ids], |[t, i]| t.gather(i))?, ints(&[0, 3], &[]));
    let error = apply([&table, &ints(&[2, 2], &[0, 1, 4, 0])], |[t, i]| t.gather(i)).unwrap_err().to_string();
    assert!(error.contains("index 4 at [1, 0] of ids is outside 0..4") && error.contains("at %2"), "{error}");
    let error = apply([&table, &ints(&[1], &[-1])], |[t, i]| t.gather(i)).unwrap_err().to_string();
    assert!(error.contains("index -1 at [0]"), "{error}");
    Ok(())
}

#[test]
fn scatter_add_sums_rows_in_order_and_names_a_wrong_index() -> Fallible<()> {
    let updates = f32s(&[3, 2], &[1.0, 2.0, 10.0, 20.0, 100.0, 200.0]);
    let sum = |ids: &TensorData, rows: usize| apply([&updates, ids], move |[x, i]| x.scatter_add(i, rows));
    assert_eq!(sum(&ints(&[3], &[2, 0, 2]), 4)?, f32s(&[4, 2], &[10.0, 20.0, 0.0, 0.0, 101.0, 202.0, 0.0, 0.0]));
    let ids = TensorData::new([3, 2], Elements::U32(vec![0, 1, 1, 1, 0, 0]))?;
    assert_eq!(sum(&ids, 2)?, f32s(&[2], &[301.0, 32.0]));
    let no_ids = TensorData::new([0], Elements::U32(vec![]))?;
    assert_eq!(apply([&noisy(&[0, 2], 1), &no_ids], |[x, i]| x.scatter_add(i, 2usize))?, f32s(&[2, 2], &[0.0; 4]));
    assert_eq!(apply([&noisy(&[0, 2], 1), &no_ids], |[x, i]| x.scatter_add(i, 0usize))?, f32s(&[0, 2], &[]));
    // In f32 the order of the terms shows: 1e8 swallows what is added to it, and not what was added before.
    let large = f32s(&[4], &[3.0, 3.0, 1e8, -1e8]);
    assert_eq!(apply([&large, &ints(&[4], &[0; 4])], |[x, i]| x.scatter_add(i, 1usize))?, f32s(&[1], &[8.0]));
    let error = sum(&ints(&[3], &[0, 4, 0]), 4).unwrap_err().to_string();
    assert!(error.contains("scatter_add: index 4 at [1] of ids is outside 0..4"), "{error}");
    let error = sum(&ints(&[2], &[0, 1]), 4).unwrap_err().to_string();
    assert!(error.contains("updates f32[3, 2] do not begin with the axes of ids i32[2]"), "{error}");
    let error = sum(&ints(&[3], &[0, 0, 0]), 0).unwrap_err().to_string();
    assert!(error.contains("no rows for ids i32[3]"), "{error}");
    Ok(())
}
