//! Generations and overlays as a reader sees them: every way to read returns the same bytes.

use tierpack_shm::types::{CodecId, Dtype};

use super::*;
use crate::error::Error;
use crate::fake_tensor::FakeTensor;

const ROWS: u64 = 512;
/// 512 rows of 1 KiB: two blocks.
const SHAPE: [u64; 2] = [ROWS, 512];

/// Words with a few exponents, so that every codec shortens them.
fn weights(seed: u16) -> Vec<u8> {
    let n = index(SHAPE[0] * SHAPE[1]);
    let word = |n: usize| {
        let n = u16::try_from(n % 65_521).unwrap();
        0x3F00 ^ (n.wrapping_mul(seed) & 0x00FF) ^ (n & 0x8000)
    };
    (0..n).flat_map(|n| word(n).to_le_bytes()).collect()
}

/// Reads by every entry point, few rows and many.
fn check(tensor: &FakeTensor, expected: &[u8]) {
    let handle = &tensor.handle;
    assert!(handle.get().unwrap().as_bytes() == expected, "get");
    let row_bytes = index(handle.row_bytes());
    let n_rows = handle.n_rows();
    for rows in [vec![0], vec![n_rows - 1, 1], (0..2 * n_rows).map(|n| n * 7 % n_rows).collect()] {
        let wanted: Vec<u8> =
            rows.iter().flat_map(|&row| &expected[index(row) * row_bytes..][..row_bytes]).copied().collect();
        assert!(handle.gather(&rows).unwrap().as_bytes() == wanted, "gather {} rows", rows.len());
        let mut out = vec![0xA5; wanted.len()];
        handle.gather_into(&rows, &mut out).unwrap();
        assert!(out == wanted, "gather_into {} rows", rows.len());
    }
}

fn set_row(raw: &mut [u8], row: usize, value: &[u8]) {
    raw[row * value.len()..][..value.len()].copy_from_slice(value);
}

#[test]
fn blocks_of_several_generations_are_read_side_by_side() {
    let raw = weights(3);
    let mut tensor = FakeTensor::silent(Dtype::Bf16, &SHAPE, CodecId::Planes4);
    let first = tensor.generation(0, 1, CodecId::Planes4, &raw);
    tensor.put(&raw, Some((0, &first)));
    check(&tensor, &raw);
    // A refit under way: one block by the new metadata, one by the old.
    let second = tensor.generation(15, 2, CodecId::Ibp, &raw);
    let range = tensor.range(1);
    let word = tensor.block(1, &raw[range], Some((15, &second)));
    tensor.words.store(1, word);
    check(&tensor, &raw);
    tensor.close();
}

/// Number and codec of the coder that is kept for generation `number` at index 4, which is not rebuilt.
fn kept(tensor: &FakeTensor, number: u32) -> (u32, CodecId) {
    let opened = tensor.handle.opened();
    let coder = opened.coders.get(4, number, || panic!("generation {number} is made anew")).unwrap();
    (coder.generation(), coder.codec())
}

#[test]
fn an_index_that_is_used_again_means_the_new_generation() {
    let raw = weights(5);
    let mut tensor = FakeTensor::silent(Dtype::Bf16, &SHAPE, CodecId::Planes4);
    let codecs = [CodecId::Planes4, CodecId::Ibp, CodecId::Planes3, CodecId::IbpWindow];
    for (number, codec) in (1..).zip(codecs.into_iter().cycle().take(9)) {
        let coder = tensor.generation(4, number, codec, &raw);
        tensor.put(&raw, Some((4, &coder)));
        check(&tensor, &raw);
        assert_eq!(kept(&tensor, number), (number, codec));
    }
    tensor.close();
}

#[test]
fn a_word_that_names_no_metadata_is_corrupt() {
    let raw = weights(5);
    let mut tensor = FakeTensor::silent(Dtype::Bf16, &SHAPE, CodecId::Planes4);
    let coder = tensor.generation(0, 1, CodecId::Planes4, &raw);
    tensor.put(&raw, Some((0, &coder)));
    let word = tensor.words.load(0);
    for idx in [1, 15, 16, 255] {
        tensor.words.store(0, BlockWord::resident(word.offset(), idx, 0, 9));
        assert!(matches!(tensor.handle.get(), Err(Error::Corrupt { .. })), "index {idx}");
        assert!(matches!(tensor.handle.gather(&[0]), Err(Error::Corrupt { .. })), "index {idx}");
    }
    tensor.close();
}

#[test]
fn a_refit_may_make_a_raw_tensor_another_and_the_other_way_round() {
    for opened_as in [CodecId::Raw, CodecId::Planes4] {
        let raw = weights(7);
        let mut tensor = FakeTensor::silent(Dtype::Bf16, &SHAPE, opened_as);
        let coder = tensor.generation(0, 1, CodecId::Planes4, &raw);
        tensor.put(&raw, None);
        check(&tensor, &raw);
        let range = tensor.range(1);
        let word = tensor.block(1, &raw[range], Some((0, &coder)));
        tensor.words.store(1, word);
        check(&tensor, &raw);
        tensor.put(&raw, Some((0, &coder)));
        check(&tensor, &raw);
        tensor.put(&raw, None);
        check(&tensor, &raw);
        tensor.close();
    }
}

#[test]
fn overlays_are_seen_by_every_read_of_every_codec() {
    for codec in [CodecId::Raw, CodecId::Planes4, CodecId::Ibp] {
        let mut raw = weights(11);
        let mut tensor = FakeTensor::silent(Dtype::Bf16, &SHAPE, codec);
        if codec == CodecId::Raw {
            tensor.put(&raw, None);
        } else {
            let coder = tensor.generation(0, 1, codec, &raw);
            tensor.put(&raw, Some((0, &coder)));
        }
        for depth in 0..8 {
            let value = vec![0x40 + u8::try_from(depth).unwrap(); 1024];
            let rows = [0, u32::try_from(depth).unwrap() + 1, 255];
            tensor.cover(1, depth, &rows.map(|row| (row, value.clone())));
            rows.iter().for_each(|&row| set_row(&mut raw, 256 + index(row.into()), &value));
            check(&tensor, &raw);
        }
        tensor.close();
    }
}

#[test]
fn pieces_of_long_rows_have_overlays_of_their_own() {
    // Two rows of two full pieces and a short one.
    let (elems, row_bytes) = (300_000_u64, 300_000);
    let mut raw: Vec<u8> = (0..=255).cycle().take(2 * row_bytes).collect();
    let mut tensor = FakeTensor::silent(Dtype::U8, &[2, elems], CodecId::Raw);
    assert_eq!(tensor.geometry.pieces_per_row(), 3);
    tensor.put(&raw, None);
    for (depth, block_idx) in [(0, 5), (0, 1), (1, 5)] {
        let range = tensor.range(block_idx);
        let value = vec![200 + u8::try_from(depth).unwrap(); range.len()];
        raw[range].copy_from_slice(&value);
        tensor.cover(block_idx, depth, &[(0, value)]);
        check(&tensor, &raw);
    }
    tensor.close();
}

#[test]
fn a_chain_that_contradicts_itself_is_corrupt_for_every_read() {
    let mut tensor = FakeTensor::silent(Dtype::Bf16, &SHAPE, CodecId::Raw);
    tensor.put(&weights(1), None);
    tensor.cover(0, 1, &[(0, vec![1; 1024])]);
    let handle = &tensor.handle;
    assert!(matches!(handle.get(), Err(Error::Corrupt { .. })));
    assert!(matches!(handle.gather(&[5]), Err(Error::Corrupt { .. })));
    assert!(matches!(handle.view(), Err(Error::Corrupt { .. })));
    // Rows of other blocks are not concerned.
    assert_eq!(handle.gather(&[300]).unwrap().as_bytes().len(), 1024);
    tensor.close();
}
