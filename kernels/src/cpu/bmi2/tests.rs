//! Records in two parts, against the specification.

use super::*;
use crate::cpu::Level;

/// Words and length that a level reads from a record in two parts; 0xA5 is what its room held before.
fn read_split(
    level: Level,
    front: &[u8],
    rest: &[u8],
    masks: &Masks<'_>,
    len: usize,
) -> Result<Vec<u8>, usize> {
    let mut scratch = vec![0xA5; max_packed(len, masks.chunk_bytes) + SLACK_BYTES];
    let mut words = vec![0xA5; len];
    let body = Split { front, rest, scratch: &mut scratch };
    Backend::new(level).decode_split(&Window::identity(), 0, body, masks, &mut words).map(|()| words)
}

#[test]
fn any_bits_in_two_parts_give_the_words_or_the_missing_length_of_the_specification() {
    if !Level::Bmi2.is_available() {
        println!("skipped: no {} on this machine", Level::Bmi2);
        return;
    }
    let noise: Vec<u8> =
        (0..1000_u32).map(|i| i.wrapping_mul(i).wrapping_mul(40_503).to_le_bytes()[2]).collect();
    let group = Group { mask: 0xFF00_F00F_8000_7F80, bitval: 0x3F00_1002_8000_0100 };
    for chunk_bytes in [2, 4, 8] {
        for len in [1_usize, 7, 8, 63, 64, 65, 200, 774] {
            let groups = vec![group; len.div_ceil(GROUP_BYTES)];
            let masks = Masks { chunk_bytes, groups: &groups, deposits: None };
            let n_parts = len.div_ceil(chunk_bytes).div_ceil(8);
            for front_len in [n_parts, n_parts + 1, n_parts + len / 2] {
                let (front, rest) = noise.split_at(front_len);
                let read = |level, rest| read_split(level, front, rest, &masks, len);
                assert_eq!(read(Level::Bmi2, rest), read(Level::Scalar, rest));
                let needed = read(Level::Scalar, &[]).err().unwrap_or(0);
                for rest_len in [needed.saturating_sub(1), needed] {
                    let rest = &rest[..rest_len];
                    let expected = read(Level::Scalar, rest);
                    assert_eq!(expected.is_err(), rest_len < needed);
                    assert_eq!(read(Level::Bmi2, rest), expected);
                }
            }
        }
    }
}
