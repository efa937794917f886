//! Ids, batches, misses, several tensors in a launch.

use cusim::Order;
use tierpack_shm::types::{Access, CodecId, Dtype, index};

use crate::make::geometry;
use crate::world::{World, gather_many, is_untouched};

fn world(codec: CodecId, rows: u64) -> World {
    World::new(geometry(Dtype::Bf16, rows, 100, Access::Rows).expect("a valid shape"), codec, 3, 1)
}

#[test]
fn a_bad_id_in_every_position_is_reported_and_the_others_are_right() {
    let world = world(CodecId::Planes4, 50).cached(100_000, None);
    for order in Order::ALL {
        for bad in 0..20_usize {
            for (id_bytes, id) in
                [(8, 50), (8, u64::MAX), (8, 1 << 32), (4, 50), (4, 0xFFFF_FFFF), (4, 1 << 31)]
            {
                let mut ids: Vec<u64> = (0..20).map(|i| i * 13 % 50).collect();
                ids[bad] = id;
                ids[(bad + 7).min(19)] = id;
                let outcome = world.gather_by(&ids, id_bytes, 0, 8, order);
                assert_eq!(outcome.status.bad_position, bad as u64);
                assert_eq!((outcome.status.status.flags, outcome.status.n_missed), (0, 0));
                for (row, &id) in outcome.rows.chunks(200).zip(&ids) {
                    assert!(if id < 50 { row == world.row(id) } else { is_untouched(row) });
                }
            }
        }
    }
}

#[test]
fn ids_of_32_bits_and_outputs_at_any_address() {
    let world = world(CodecId::Ibp, 50);
    let ids: Vec<u64> = (0..60).map(|i| i * 17 % 50).collect();
    for order in Order::ALL {
        for skew in [0, 1, 2, 4, 8, 13] {
            for id_bytes in [4, 8] {
                let outcome = world.gather_by(&ids, id_bytes, skew, 8, order);
                world.check(&ids, &outcome, order);
            }
        }
    }
}

#[test]
fn rows_beyond_2_to_the_32() {
    // Blocks of 2^18 rows of one byte; two of them are there.
    let rows = (1_u64 << 33) + 5;
    let geometry = geometry(Dtype::U8, rows, 1, Access::Rows).expect("a valid shape");
    let mut far = World::new(
        crate::make::geometry(Dtype::U8, 1 << 18, 1, Access::Rows).expect("valid"),
        CodecId::Ibp,
        9,
        1,
    );
    let last = geometry.n_blocks() - 1;
    let word = far.words[0];
    far.geometry = geometry;
    far.coders.clear();
    far.words = vec![tierpack_shm::types::BlockWord::from_bits(0); index(geometry.n_blocks())];
    // The tensor's block 2^14 has the bytes of the one that was made, as raw.
    let raw = tierpack_shm::types::BlockWord::RAW;
    let block = [&[0; 64][..], &far.truth].concat();
    let offset = far.put(&block);
    far.publish(1 << 14, offset, 0, raw);
    let ids = [(1 << 32) + 3, (1 << 32) + (1 << 18) - 1, 1 << 32, 3, rows - 1];
    assert_eq!((geometry.locate(1 << 32), last), ((1 << 14, 0), 1 << 15));
    assert!(word.is_resident());
    let far = far.cached(100_000, Some(32));
    for order in Order::ALL {
        for _ in 0..2 {
            let outcome = far.gather(&ids, order);
            assert_eq!(outcome.missed, [3, 4]);
            assert_eq!(outcome.rows[..3], [far.truth[3], far.truth[(1 << 18) - 1], far.truth[0]]);
        }
    }
}

#[test]
fn rows_that_are_not_there_are_listed_and_the_others_are_right() {
    // Blocks of 64 rows of 3000 bytes.
    let geometry = geometry(Dtype::Bf16, 200, 1500, Access::Rows).expect("a valid shape");
    let mut world = World::new(geometry, CodecId::Planes3, 4, 1).cached(1 << 20, None);
    let ids: Vec<u64> = (0..12).map(|i| i * 61 % 200).collect();
    world.gathers(&ids, Order::Forward);
    world.demote(1);
    let missing: Vec<u32> = (0..12).filter(|&i| (64..128).contains(&ids[i as usize])).collect();
    assert!(missing.len() > 2);
    for order in Order::ALL {
        for room in [0, 1, missing.len(), 64] {
            let outcome = world.gather_by(&ids, 8, 0, u32::try_from(room).expect("small"), order);
            assert_eq!(outcome.status.n_missed, missing.len() as u64);
            assert_eq!(outcome.missed.len(), room.min(missing.len()));
            assert!(outcome.missed.iter().all(|position| missing.contains(position)));
            for ((row, &id), position) in outcome.rows.chunks(3000).zip(&ids).zip(0..) {
                assert!(if missing.contains(&position) { is_untouched(row) } else { row == world.row(id) });
            }
        }
    }
    // Promoted, they are there, and can be gathered alone; a segment or a generation that the device lacks is as if they were not.
    world.store(1, 2);
    let rows = world.gather_only(&ids, &missing, Order::Reverse);
    for ((row, &id), position) in rows.chunks(3000).zip(&ids).zip(0..) {
        assert!(if missing.contains(&position) { row == world.row(id) } else { is_untouched(row) });
    }
    world.gathers(&ids, Order::Random);
    let segment = world.segments.len() - 1;
    world.cache = crate::device::Memory::filled(world.cache.len(), 0);
    let bytes = std::mem::replace(&mut world.segments[segment], crate::device::Memory::filled(0, 0));
    assert_eq!(world.gather(&ids, Order::Forward).missed, missing);
    world.segments[segment] = bytes;
    let coder = world.coders.remove(0);
    assert_eq!(world.gather(&ids, Order::Forward).status.n_missed, 12);
    world.coders.push(coder);
    world.gathers(&ids, Order::Forward);
}

#[test]
fn empty_batches_and_empty_tensors() {
    let full = world(CodecId::Sparse, 20);
    let outcome = full.gathers(&[], Order::Forward);
    assert_eq!(outcome.counts(), [0; 5]);
    let empty = World::new(geometry(Dtype::F32, 5, 0, Access::Rows).expect("valid"), CodecId::Ibp, 1, 1);
    let outcome = empty.gather(&[0, 4, 5, 9], Order::Forward);
    assert_eq!((outcome.status.bad_position, outcome.status.n_missed), (2, 0));
    let none = World::new(geometry(Dtype::F32, 0, 9, Access::Rows).expect("valid"), CodecId::Ibp, 1, 1);
    assert_eq!(none.gather(&[0], Order::Forward).status.bad_position, 0);
}

#[test]
fn several_tensors_in_one_launch() {
    let shapes =
        [(Dtype::Bf16, 64), (Dtype::F32, 1500), (Dtype::U8, 33), (Dtype::F64, 300), (Dtype::Bf16, 128)];
    let codecs = [CodecId::Planes4, CodecId::IbpWindow, CodecId::Raw, CodecId::Planes222, CodecId::Sparse];
    let worlds: Vec<World> = shapes
        .into_iter()
        .zip(codecs)
        .map(|((dtype, columns), codec)| {
            let geometry = geometry(dtype, 30, columns, Access::Rows).expect("a valid shape");
            World::new(geometry, codec, columns, 1).cached(40_000, None)
        })
        .collect();
    let ids: Vec<Vec<u64>> = (0..5).map(|t| (0..7 * t).map(|i| i * 11 % 30).collect()).collect();
    let gathers: Vec<(&World, &[u64])> =
        worlds.iter().zip(&ids).map(|(world, ids)| (world, &ids[..])).collect();
    for order in Order::ALL {
        for _ in 0..2 {
            for (outcome, (world, ids)) in gather_many(&gathers, 8, 0, 4, order).iter().zip(&gathers) {
                world.check(ids, outcome, order);
                assert_eq!(outcome.status.hits + outcome.status.misses, ids.len() as u64);
            }
        }
    }
}
