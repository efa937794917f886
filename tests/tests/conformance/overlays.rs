//! Rows over a decoded block, level over level.

use tierpack_shm::overlay;
use tierpack_shm::types::{Access, BlockWord, CodecId, Dtype, index};

use crate::make::Plan;
use crate::random::Random;
use crate::suite::agree;
use crate::target::{Case, Fault};

/// An overlay of these rows of a block; their bytes are random.
fn overlay_of(case: &Case, rows: &[u32], depth: u64, random: &mut Random) -> Vec<u8> {
    let row_bytes = case.geometry.row_bytes();
    let rows: Vec<_> = rows.iter().map(|&row| (row, random.bytes(index(row_bytes)))).collect();
    let covered = BlockWord::resident(77, 3, BlockWord::RAW, 9);
    let mut bytes = Vec::new();
    overlay::encode(
        covered,
        depth,
        row_bytes,
        rows.iter().map(|(row, bytes)| (*row, &bytes[..])),
        &mut bytes,
    );
    bytes
}

fn plan(dtype: Dtype, columns: u64) -> Plan {
    Plan { codec: CodecId::Ibp, dtype, access: Access::Rows, rows: 70, columns, seed: columns }
}

#[test]
fn rows_of_overlays_replace_those_below() {
    // Rows of whole units of 16 bytes, of other lengths, of less than one.
    for (dtype, columns) in
        [(Dtype::Bf16, 64), (Dtype::U8, 37), (Dtype::F32, 1), (Dtype::F64, 513), (Dtype::U8, 1)]
    {
        let mut case = plan(dtype, columns).case().expect("a case");
        let mut random = Random(columns);
        let bare = agree(&case).expect("a good case");
        for depth in 0..3 {
            let rows: Vec<u32> = (0..70).filter(|_| random.chance(30)).collect();
            let bytes = overlay_of(&case, &rows, depth, &mut random);
            case.overlays.push(vec![(0, bytes)]);
        }
        assert_ne!(agree(&case), Ok(bare));
    }
}

#[test]
fn overlays_of_many_blocks_are_one_launch() {
    let mut case = Plan { rows: 5000, ..plan(Dtype::F32, 100) }.case().expect("a case");
    assert!(case.blocks.len() > 4);
    let mut random = Random(1);
    let level = (0..).zip(case.blocks.iter().take(4)).map(|(block_idx, _)| {
        let rows: Vec<u32> = (0..8).filter(|_| random.chance(50)).collect();
        (block_idx, overlay_of(&case, &rows, 0, &mut random))
    });
    case.overlays = vec![level.collect()];
    assert!(agree(&case).is_ok());
}

#[test]
fn a_row_that_the_block_lacks_is_a_fault() {
    for row in [70, 71, 1 << 20, u32::MAX] {
        let mut case = plan(Dtype::Bf16, 64).case().expect("a case");
        let bytes = overlay_of(&case, &[3, row], 0, &mut Random(5));
        case.overlays = vec![vec![(0, bytes)]];
        assert_eq!(agree(&case), Err(Fault::Overlay), "row {row}");
    }
}
