//! The cache: what it counts, what stays in it, and that no size of it changes a row.

use cusim::Order;
use tierpack_kernels::cuda::gather::CacheLayout;
use tierpack_shm::types::{Access, CodecId, Dtype};

use crate::make::{Random, geometry};
use crate::world::World;

fn world(codec: CodecId, rows: u64, columns: u64) -> World {
    World::new(geometry(Dtype::Bf16, rows, columns, Access::Rows).expect("a valid shape"), codec, 11, 1)
}

/// Bytes of a cache of that many sets, with lines of 512 bytes.
const fn sets(n: u64) -> u64 {
    n * (208 + 8 * 512)
}

#[test]
fn a_tiny_cache_and_batches_larger_than_it() {
    for codec in [CodecId::Planes4, CodecId::Planes222, CodecId::Ibp, CodecId::Raw] {
        let mut world = world(codec, 150, 100);
        let mut random = Random(5);
        for n_sets in [0, 1, 2] {
            world = world.cached(sets(n_sets), Some(500));
            assert_eq!(world.layout.n_lines(), 8 * n_sets);
            for order in Order::ALL {
                for _ in 0..4 {
                    let ids: Vec<u64> =
                        (0..300).map(|_| random.below(random.clone().below(150) + 1)).collect();
                    let outcome = world.gathers(&ids, order);
                    assert_eq!(outcome.status.hits + outcome.status.misses, 300);
                    assert!(outcome.status.inserts <= outcome.status.misses);
                    assert!(n_sets > 0 || outcome.counts() == [0, 300, 0, 0, 0]);
                }
            }
        }
    }
}

#[test]
fn counters_are_exact() {
    let world = world(CodecId::Planes3, 64, 100).cached(sets(600), Some(500));
    let ids: Vec<u64> = (0..64).collect();
    // One thread block of 16 teams at a time: no set is wanted by two of them in these rows.
    for (wanted, order) in [[0, 64, 64, 0, 0], [64, 0, 0, 0, 0], [64, 0, 0, 0, 0]].into_iter().zip(Order::ALL)
    {
        assert_eq!(world.gathers(&ids, order).counts(), wanted);
    }
    let again: Vec<u64> = ids.iter().chain(&ids).copied().collect();
    assert_eq!(world.gathers(&again, Order::Forward).counts(), [128, 0, 0, 0, 0]);
}

#[test]
fn one_row_many_times() {
    for order in Order::ALL {
        let world = world(CodecId::Ibp, 10, 300).cached(sets(4), Some(700));
        let outcome = world.gathers(&[7; 200], order);
        assert_eq!(outcome.status.hits + outcome.status.misses, 200);
        assert_eq!(outcome.status.inserts, 1, "one line holds it");
        assert_eq!(world.gathers(&[7; 200], order).status.hits, 200);
    }
}

#[test]
fn rows_longer_than_a_line_go_past_the_cache() {
    let world = world(CodecId::Raw, 20, 100).cached(sets(4), Some(64));
    let ids: Vec<u64> = (0..20).collect();
    for order in Order::ALL {
        assert_eq!(world.gathers(&ids, order).counts(), [0, 20, 0, 0, 20]);
    }
}

#[test]
fn rows_with_hits_stay_while_others_pass_by() {
    for order in Order::ALL {
        let world = world(CodecId::Planes4, 400, 100).cached(sets(8), Some(500));
        let hot: Vec<u64> = (0..24).collect();
        for _ in 0..4 {
            world.gathers(&hot, order);
        }
        let before = world.gathers(&hot, order).status.hits;
        assert!(before >= 20, "{before} of 24 hot rows are cached in 64 lines");
        for first in (30..400).step_by(40) {
            let passing: Vec<u64> = (first..(first + 40).min(400)).collect();
            world.gathers(&passing, order);
            world.gathers(&hot, order);
        }
        let after = world.gathers(&hot, order).status.hits;
        assert!(after + 4 >= before, "{after} of {before} hot rows are left");
    }
}

#[test]
fn kept_rows_stay_and_follow_their_updates() {
    for codec in [CodecId::Planes4, CodecId::Planes222, CodecId::Sparse, CodecId::Raw] {
        for order in Order::ALL {
            // Eight sets, with lines that hold a row of nothing but escapes.
            let mut world = world(codec, 300, 100).cached(sets(12), Some(700));
            assert_eq!(world.layout.n_lines(), 64);
            let kept: Vec<u64> = (100..120).collect();
            world.gathers(&kept[..5], order);
            world.keep(&kept, order);
            for _ in 0..3 {
                world.gathers(&(0..100).collect::<Vec<_>>(), order);
                world.gathers(&(120..300).collect::<Vec<_>>(), order);
            }
            assert_eq!(world.gathers(&kept, order).counts()[..2], [20, 0], "{codec} {order:?}");
            world.update(0, &[101, 115], 0);
            let after = world.gathers(&kept, order);
            assert_eq!(after.counts()[..2], [0, 20], "every row of the block is out of date");
            // Now the rows that other teams were writing then.
            world.gathers(&kept, order);
            for _ in 0..3 {
                world.gathers(&(120..300).collect::<Vec<_>>(), order);
            }
            assert_eq!(world.gathers(&kept, order).counts()[..2], [20, 0], "{codec} {order:?}");
        }
    }
}

#[test]
fn a_bad_id_does_not_spoil_a_fill() {
    let world = world(CodecId::Ibp, 30, 100).cached(sets(8), Some(500));
    let status = world.keep(&[3, 99, 4, u64::MAX], Order::Forward);
    assert_eq!((status.bad_position, status.inserts), (1, 2));
    assert_eq!(world.gathers(&[3, 4], Order::Forward).status.hits, 2);
}

#[test]
fn a_cache_without_room_for_a_set_is_none() {
    let world = world(CodecId::Ibp, 30, 100).cached(100, None);
    assert_eq!(world.layout, CacheLayout::NONE);
    assert_eq!(world.gathers(&[1, 2, 1], Order::Forward).counts(), [0, 3, 0, 0, 0]);
}
