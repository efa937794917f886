//! Damaged bytes, words and overlays: a flag or some output, never an access outside of what the host gave.
//!
//! A sanitizer sees what leaves a segment; the harness sees what is written next to output and miss list.

use cusim::Order;
use tierpack_shm::types::{Access, BlockWord, CodecId, Dtype, index};

use crate::make::{Random, geometry};
use crate::world::World;

#[test]
fn damaged_blocks_and_overlays() {
    for (&codec, seed) in CodecId::ALL.iter().zip(0..) {
        for (columns, access) in [(100, Access::Rows), (1500, Access::Rows), (300, Access::Whole)] {
            let geometry = geometry(Dtype::Bf16, 60, columns, access).expect("a valid shape");
            let mut random = Random(seed);
            for round in 0..12 {
                let mut world = World::new(geometry, codec, 5, 1).cached(60_000, None);
                if round % 3 == 0 {
                    world.update(0, &[1, 2, 3, 20], 0);
                    world.update(0, &[2, 5], 1);
                }
                for segment in &mut world.segments {
                    let len = segment.len() as u64;
                    // Heads, lengths and list, or anything.
                    let within = if round % 2 == 0 { len.min(300) } else { len };
                    for _ in 0..1 + random.below(40) {
                        segment.write(index(random.below(within)), &[random.next().to_le_bytes()[0]]);
                    }
                }
                let ids: Vec<u64> = (0..40).map(|i| i * 7 % 60).collect();
                for order in Order::ALL {
                    let outcome = world.gather(&ids, order);
                    let status = outcome.status;
                    assert_eq!(status.bad_position, u64::MAX);
                    assert!(
                        status.status.flags < 8
                            && (status.status.flags == 0) == (status.status.first == u32::MAX)
                    );
                    assert!(status.hits + status.misses + status.n_missed <= 40);
                }
            }
        }
    }
}

#[test]
fn damaged_words() {
    let geometry = geometry(Dtype::F32, 300, 300, Access::Rows).expect("a valid shape");
    let mut random = Random(8);
    for codec in [CodecId::Planes4, CodecId::Ibp, CodecId::Raw] {
        let mut world = World::new(geometry, codec, 5, 1).cached(60_000, None);
        let good = world.words.clone();
        let ids: Vec<u64> = (0..40).map(|i| i * 29 % 300).collect();
        for round in 0..60 {
            for (word, good) in world.words.iter_mut().zip(&good) {
                let bits = match round % 4 {
                    0 => random.next() | BlockWord::RESIDENT,
                    1 => good.bits() ^ (1 << random.below(64)),
                    2 => good.bits() | random.below(1 << 20),
                    _ => good.bits() ^ BlockWord::RAW ^ (BlockWord::OVERLAY * random.below(2)),
                };
                *word = BlockWord::from_bits(bits);
            }
            let outcome = world.gather(&ids, Order::ALL[round % 3]);
            assert!(outcome.status.hits + outcome.status.misses + outcome.status.n_missed <= 40);
        }
        world.words.clone_from(&good);
        world.cache = crate::device::Memory::filled(world.cache.len(), 0);
        world.gathers(&ids, Order::Forward);
    }
}

#[test]
fn segments_that_end_early() {
    let geometry = geometry(Dtype::Bf16, 64, 1500, Access::Rows).expect("a valid shape");
    for codec in [CodecId::Planes4, CodecId::Planes222, CodecId::Raw] {
        let whole = World::new(geometry, codec, 5, 1);
        let bytes = whole.segments[0].read();
        for share in [0, 64, 128, bytes.len() / 2 / 64 * 64, bytes.len() - 64] {
            let mut world = World::new(geometry, codec, 5, 1).cached(60_000, None);
            world.segments[0] = crate::device::Memory::of(&bytes[..share]);
            let outcome = world.gather(&[0, 63, 30], Order::Forward);
            assert_eq!(outcome.status.bad_position, u64::MAX);
            assert!(outcome.status.n_missed == 3 || outcome.status.status.flags != 0 || share > 64);
        }
    }
}
