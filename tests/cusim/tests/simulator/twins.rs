//! The CPU twins of intrinsics and of the wrappers in `common.cuh`, against plain loops.

use cusim::{Order, Shape};

use crate::harness::{Arg, run};

const WARP: Shape = Shape::linear(1, 32);

fn hash(lane: u32) -> u32 {
    lane.wrapping_mul(2_654_435_761)
}

fn collectives_of(lane: u32) -> [u32; 19] {
    let lanes = 0..32_u32;
    let pick = |inside: bool, other: u32| hash(if inside { other } else { lane });
    let crossed = lane ^ 9;
    [
        hash(lane * 7 % 32),
        pick(lane % 8 >= 3, lane.wrapping_sub(3)),
        pick(lane % 16 + 5 < 16, lane + 5),
        pick(crossed < (lane & 16) + 16, crossed),
        lanes.clone().map(|l| (hash(l) >> 16 & 1) << l).sum(),
        1,
        0,
        lanes.clone().filter(|l| l % 5 == lane % 5).map(|l| 1 << l).sum(),
        0, // all lanes agree: the mask, which is -1, and 1
        0, // lane 31 differs
        lanes.clone().map(hash).fold(0, u32::wrapping_add),
        lanes.clone().map(|l| hash(l) + 1).min().unwrap_or_default(),
        lanes.clone().map(hash).max().unwrap_or_default(),
        0xFFFF,
        0xFFFF_FF00,
        lanes.map(hash).fold(0, |a, b| a ^ b),
        hash(3),
        3,
        9,
    ]
}

#[test]
fn every_collective_gives_what_its_definition_says() {
    for order in Order::ALL {
        let mut out = [0; 32 * 20];
        run("twin_collectives", WARP, &mut [Arg::Words(&mut out)], order).expect("legal");
        for (lane, got) in (0..).zip(out.chunks(20)) {
            assert_eq!(got[..19], collectives_of(lane), "lane {lane} in order {order:?}");
        }
    }
}

#[test]
fn copies_of_16_8_and_4_bytes_land_at_their_wait() {
    for order in Order::ALL {
        let mut from: Vec<u32> = (0..256).map(|i| i * 3 + 1).collect();
        let source = from.clone();
        let mut out = vec![0; 512];
        let mut args = [Arg::Words(&mut from), Arg::Words(&mut out)];
        run("twin_copies", WARP.shared(1024), &mut args, order).expect("legal");
        for (lane, got) in out.chunks(16).enumerate() {
            let words = &source[lane * 8..][..7];
            let (poison, unwritten) = (0xCDCD_CDCD, 0xA5A5_A5A5);
            assert_eq!(got[..4], words[..4]);
            assert_eq!(got[4..8], [poison, poison, poison, unwritten]);
            assert_eq!(got[8..15], *words);
            assert_eq!(got[15], unwritten);
        }
    }
}

#[test]
fn loads_and_flags() {
    let (mut from, mut flag, mut out) = (vec![1, 2, 4, 24], [0], [0; 2]);
    let mut args = [Arg::Words(&mut from), Arg::Words(&mut flag), Arg::Words(&mut out)];
    run("twin_loads", Shape::linear(1, 1), &mut args, Order::Forward).expect("legal");
    assert_eq!((out, flag), ([31, 7], [7]));
}

#[test]
fn atomics_of_32_and_64_bits() {
    for order in Order::ALL {
        let mut words = [u32::MAX, 0, 5, 0, u32::MAX, 3, 0, 0];
        let mut wide = [u64::MAX, 0];
        let mut args = [Arg::Words(&mut words), Arg::Wide(&mut wide)];
        run("twin_atomics", WARP, &mut args, order).expect("legal");
        assert_eq!(words[..6], [100, 131, 5 + 496, u32::MAX, 0, 3]);
        assert!((1..=32).contains(&words[6]) && words[7] == words[6], "{words:?}");
        assert_eq!(wide, [1 << 40, (1 << 40) + 31]);
    }
}

#[test]
fn bits_and_bytes() {
    let (a, b) = (0x9E37_79B9_u32, 0x7F4A_7C15_u32);
    let (mut from, mut out) = (vec![a, b], [0; 12]);
    run(
        "twin_scalars",
        Shape::linear(1, 1),
        &mut [Arg::Words(&mut from), Arg::Words(&mut out)],
        Order::Forward,
    )
    .expect("legal");
    let joined = u64::from(b) << 32 | u64::from(a);
    let low = |value: u64| u32::try_from(value & u64::from(u32::MAX)).expect("masked");
    let bytes = joined.to_le_bytes();
    let expected = [
        a.count_ones(),
        a.count_ones() + b.count_ones(),
        (a >> 9).leading_zeros(),
        u64::from(a >> 9).leading_zeros(),
        (a << 5).trailing_zeros() + 1,
        (u64::from(a) << 37).trailing_zeros() + 1,
        a.reverse_bits(),
        low(joined >> 11),
        low((joined << 11) >> 32),
        u32::from_le_bytes([bytes[0], bytes[4], bytes[1], bytes[5]]),
        low((u64::from(a) * u64::from(b)) >> 32),
        32 << 8,
    ];
    assert_eq!(out, expected);
}
