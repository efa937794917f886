//! A warm cache while the tensor changes: never an old row.

use cusim::Order;
use tierpack_kernels::cuda::abi::Status;
use tierpack_kernels::{Coder, fit};
use tierpack_shm::types::{Access, BlockWord, CodecId, Dtype, index};

use crate::make::{self, Random, geometry};
use crate::world::{World, is_untouched, raw_flag};

/// 200 rows of 3000 bytes in blocks of 64.
fn world(codec: CodecId, sequence: u32) -> World {
    let geometry = geometry(Dtype::Bf16, 200, 1500, Access::Rows).expect("a valid shape");
    World::new(geometry, codec, 21, sequence).cached(400_000, None)
}

const IDS: [u64; 12] = [0, 1, 63, 64, 65, 100, 127, 128, 150, 192, 199, 1];

/// Another coder for the same tensor, fitted to a later block.
fn another(world: &World, codec: CodecId, generation: u32) -> Coder {
    let piece = fit::Piece::block(&world.geometry, 1);
    let fit = fit::fit(codec, &world.geometry, &[(piece, &world.truth[piece.in_tensor()])]).expect("a fit");
    let metadata = fit.metadata.expect("metadata").with_generation(generation);
    Coder::new(&metadata, &world.geometry).expect("a coder")
}

#[test]
fn overlays_up_to_eight_deep() {
    for codec in [CodecId::Planes4, CodecId::Ibp, CodecId::Raw] {
        for order in Order::ALL {
            let mut world = world(codec, 1);
            world.gathers(&IDS, order);
            for depth in 0..8_u32 {
                world.update(1, &[depth, depth + 1, 36, 63], depth.into());
                let status = world.gathers(&IDS, order).status;
                assert_eq!(status.hits + status.misses, 12);
                world.gathers(&IDS, order);
                world.gathers(&(64..80).chain([100, 127]).collect::<Vec<_>>(), order);
            }
            // Folded: the block is stored again.
            world.store(1, 2);
            world.gathers(&IDS, order);
            // A ninth overlay is damage; what it holds is still found.
            for depth in 0..9_u32 {
                world.update(1, &[depth], u64::from(depth).min(7));
            }
            let outcome = world.gather(&[0, 72, 100, 64], order);
            assert_eq!((outcome.status.status.flags, outcome.status.status.first), (Status::OVERLAY, 2));
            assert!(is_untouched(&outcome.rows[6000..9000]));
            assert_eq!(outcome.rows[3000..6000], *world.row(72));
        }
    }
}

#[test]
fn every_store_is_a_miss_and_then_a_hit() {
    for order in Order::ALL {
        let mut world = world(CodecId::Planes3, 1);
        world.gathers(&IDS, order);
        world.gathers(&IDS, order);
        assert_eq!(world.gathers(&IDS, order).counts()[..2], [12, 0]);
        let in_block_1 = IDS.iter().filter(|&&id| (64..128).contains(&id)).count() as u64;
        // The same bytes at another place, a refit under another index, the first index used again.
        let coder = another(&world, CodecId::Ibp, 8);
        world.add_coder(3, coder);
        let coder = another(&world, CodecId::Planes222, 9);
        for step in 0..4 {
            match step {
                0 => world.store(1, 2),
                1 => world.store(1, 3),
                2 => {
                    (0..4).for_each(|block| world.store(block, 3));
                    world.gathers(&IDS, order);
                    world.add_coder(2, coder.clone());
                    world.store(1, 2);
                }
                _ => {
                    world.demote(1);
                    assert_eq!(world.gather(&IDS, order).status.n_missed, in_block_1);
                    world.store(1, 2);
                }
            }
            let outcome = world.gathers(&IDS, order);
            assert!(outcome.status.misses >= in_block_1, "step {step}");
            world.gathers(&IDS, order);
            assert_eq!(world.gathers(&IDS, order).counts()[..2], [12, 0], "step {step}");
        }
    }
}

#[test]
fn an_extent_that_another_block_takes_over_with_the_same_word() {
    for order in Order::ALL {
        let mut world = world(CodecId::Planes4, 1);
        world.gathers(&IDS, order);
        world.gathers(&IDS, order);
        // Block 1 moves, and block 0 gets its extent, index and even sequence: only the row tells them apart.
        let word = world.words[1];
        world.store(1, 2);
        let block = world.encoded(0, 2);
        let segment = index(word.offset() >> 20);
        world.segments[segment] = crate::device::Memory::of(&block);
        let flags = raw_flag(&block);
        world.words[0] = BlockWord::resident(word.offset(), word.generation_idx(), flags, word.sequence());
        assert_eq!(world.words[0], word);
        for _ in 0..3 {
            world.gathers(&IDS, order);
        }
    }
}

#[test]
fn sequences_that_start_near_their_end() {
    for order in Order::ALL {
        let mut world = world(CodecId::Planes4, (1 << 18) - 3);
        for step in 0..6_u32 {
            assert_eq!(world.words[1].sequence(), ((1 << 18) - 3 + step) % (1 << 18));
            world.gathers(&IDS, order);
            world.gathers(&IDS, order);
            if step % 2 == 0 {
                world.update(1, &[0, 1, 36], 0);
            } else {
                world.store(1, 2);
            }
            world.gathers(&IDS, order);
        }
    }
}

#[test]
fn a_sweep_keeps_a_sequence_that_came_round_from_reviving_a_row() {
    for order in Order::ALL {
        let row_0 = |swept: bool| {
            let mut world = world(CodecId::Raw, 5);
            world.gathers(&IDS, order);
            let word = world.words[0];
            world.store(0, 2);
            world.gathers(&IDS[3..], order);
            if swept {
                world.sweep(order);
            }
            // 2^18 stores later: the same extent, other bytes, the same word.
            let old = world.row(0).to_vec();
            world.update(0, &[0], 0);
            let block = world.encoded(0, 2);
            world.segments[index(word.offset() >> 20)] = crate::device::Memory::of(&block);
            world.words[0] = word;
            let outcome = world.gather(&[0, 64, 199], order);
            assert_eq!(outcome.rows[3000..6000], *world.row(64));
            assert!(
                !swept || outcome.status.hits == 2,
                "what is not out of date is left: {:?}",
                outcome.status
            );
            (outcome.rows[..3000] == old, outcome.rows[..3000] == *world.row(0))
        };
        assert_eq!(row_0(false), (true, false), "without a sweep the tag is the old one");
        assert_eq!(row_0(true), (false, true));
    }
}

#[test]
fn a_storm_of_changes_beside_gathers() {
    for (codec, seed) in
        [(CodecId::Planes4, 1), (CodecId::Planes222, 2), (CodecId::Sparse, 3), (CodecId::Ibp, 4)]
    {
        let mut world = world(codec, (1 << 18) - 20).cached(80_000, None);
        let mut random = Random(seed);
        let mut depth = [0; 4];
        let other = another(&world, CodecId::IbpWindow, 8);
        world.add_coder(3, other);
        for step in 0..120 {
            let block = random.below(4);
            let rows = world.geometry.block(block).rows;
            match random.below(4) {
                0 if depth[index(block)] < 8 => {
                    let mut changed: Vec<u32> =
                        (0..5).map(|_| u32::try_from(random.below(rows)).expect("few rows")).collect();
                    changed.sort_unstable();
                    changed.dedup();
                    world.update(block, &changed, depth[index(block)]);
                    depth[index(block)] += 1;
                }
                1 => {
                    world.store(block, if random.below(2) == 0 { 2 } else { 3 });
                    depth[index(block)] = 0;
                }
                _ => {}
            }
            let ids: Vec<u64> = (0..20).map(|_| random.below(200)).collect();
            world.gathers(&ids, Order::ALL[step % 3]);
        }
    }
}

#[test]
fn tensors_for_these_tests_have_rests_and_escapes() {
    let world = world(CodecId::Planes4, 1);
    let overflow =
        |world: &World| u32::from_le_bytes(*world.encoded(1, 2)[32..].first_chunk().expect("a header"));
    assert!(world.words.iter().any(|word| !word.is_raw()));
    let raw = make::raw(&world.geometry, CodecId::Ibp, &mut Random(21));
    assert_eq!(raw.len() as u64, world.geometry.raw_bytes());
    assert!(overflow(&world) > 0 || world.words[1].is_raw());
}
