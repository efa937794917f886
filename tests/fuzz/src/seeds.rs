//! The inputs that fuzzing starts from: a few per target, each for a part of the code that chance finds late.
//!
//! The program `seeds` writes them to `corpus`, and a test compares.
//! Inputs that a fuzzer found may stand next to them.

use tierpack_kernels::Coder;
use tierpack_kernels::codec::{Encoding, encode_block};
use tierpack_kernels::fit::{Piece, fit};
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::message::{
    Blob, ClientMessage, DaemonMessage, ErrorCode, Hello, HelloReply, PROTOCOL_VERSION, PutBegin, Refusal,
    Reply, Request, SegmentId, encode,
};
use tierpack_shm::page::NamespaceId;
use tierpack_shm::segment::SegmentKind;
use tierpack_shm::types::{Access, CodecChoice, CodecId, Dtype, index};

use crate::input::LARGE;

/// A name, and the bytes.
pub type Seed = (&'static str, Vec<u8>);

/// The seeds of one target; none for another name.
///
/// # Panics
/// Never: the tensors and messages are valid.
pub fn of(target: &str) -> Vec<Seed> {
    match target {
        "decode" => [of_decode(), of_decode_planes()].concat(),
        "round_trip" => of_round_trip(),
        "block_header" => of_block_header(),
        "message" => of_message(),
        "client_page" => of_client_page(),
        _ => Vec::new(),
    }
}

/// As `Input::tensor` reads it; `form` is access and rank.
fn tensor(dtype: Dtype, form: u8, columns: u32, rows: u32) -> Vec<u8> {
    let at = Dtype::ALL.iter().position(|&known| known == dtype).and_then(|at| u8::try_from(at).ok());
    [&[at.unwrap_or(0), form][..], &columns.to_le_bytes(), &rows.to_le_bytes()].concat()
}

/// As `parts::metadata` reads them.
fn metadata(form: u8, strides: [u16; 2], pattern: &[u8]) -> Vec<u8> {
    let len = u16::try_from(pattern.len()).unwrap_or(0);
    let numbers = [strides[0], strides[1], len].map(u16::to_le_bytes).concat();
    [&[form, 0][..], &1_u32.to_le_bytes(), &numbers, pattern].concat()
}

/// As [`metadata`], of `planes`: the codec by its place among them, bit 0 and bit 3 of the form, the dropped bits.
fn planes(codec: u8, form: u8, strides: [u16; 2], pattern: &[u8], dropped: [u8; 2]) -> Vec<u8> {
    [metadata(codec << 6 | form, strides, pattern), dropped.to_vec()].concat()
}

/// Exponents as those of weights are, and some that stray; signs and mantissas that change.
fn weights(n: u32, exponent_bits: u32, word_bytes: usize) -> Vec<u8> {
    let low_bits = 8 * u32::try_from(word_bytes).unwrap_or(8) - 1 - exponent_bits;
    let word = |i: u32| {
        let spread = i.wrapping_mul(0x9E37_79B1) >> 8;
        let exponent = if i % 37 == 5 { i } else { 11 - spread.trailing_zeros().min(10) };
        let exponent = u64::from(exponent) & ((1 << exponent_bits) - 1);
        let sign = u64::from(i & 1) << (exponent_bits + low_bits);
        sign | exponent << low_bits | u64::from(spread) & ((1 << low_bits.min(20)) - 1)
    };
    (0..n).flat_map(|i| word(i).to_le_bytes().into_iter().take(word_bytes)).collect()
}

/// Small integers in 32 bits, which have invariant bits.
fn small(n: u32) -> Vec<u8> {
    (0..n).flat_map(|i| (i * 7 % 61).to_le_bytes()).collect()
}

const MASK: [u8; 8] = [0xC0, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0];

fn of_decode() -> Vec<Seed> {
    let case = |flags: u8, tensor: Vec<u8>, metadata: Vec<u8>, overflow_len: u16, body: &[u8]| {
        [&[flags][..], &tensor, &[0], &metadata, &overflow_len.to_le_bytes(), &[0x55], body].concat()
    };
    let ibp = metadata(0b0010, [400, 40], &MASK);
    let columns = metadata(0b1101, [600, 60], &[0xF0, 0x0F, 0xFF]);
    let bases = metadata(0b10_0101, [300, 90], &[0xF0, 0, 0xFF, 1, 2]);
    vec![
        ("rows_of_u32", case(0b0111, tensor(Dtype::U32, 0, 24, 30), ibp.clone(), 64, &small(40))),
        ("overflow", case(0b1011, tensor(Dtype::F32, 0, 1500, 2), ibp.clone(), 3000, &[3, 1, 9, 0x40])),
        ("mixed_heads", case(0b1111, tensor(Dtype::F64, 0, 1030, 1), columns.clone(), 900, &small(30))),
        ("bases_of_bf16", case(0b0111, tensor(Dtype::Bf16, 0, 700, 9), bases.clone(), 500, &small(20))),
        ("whole_of_c64", case(0b1011, tensor(Dtype::C64, 1, 40, 50), bases, 700, &small(25))),
        ("packed_f6", case(0b0111, tensor(Dtype::F6E2m3, 0, 1028, 6), columns, 100, &[7, 6, 5])),
        ("pieces", case(0b1111, tensor(Dtype::U8, LARGE | 1, 130 << 10, 1), ibp, 999, &[0xC1, 2, 3])),
        ("fitted", fitted_case(CodecId::Ibp, Dtype::U32, &small(480))),
    ]
}

/// Codecs `planes`: every kind of word, with and without bases, dropped bits and repaired records.
fn of_decode_planes() -> Vec<Seed> {
    let case = |flags: u8, tensor: Vec<u8>, metadata: Vec<u8>, overflow_len: u16, body: &[u8]| {
        [&[flags][..], &tensor, &[0], &metadata, &overflow_len.to_le_bytes(), &[0x55], body].concat()
    };
    let table: Vec<u8> = (112..128).rev().collect();
    let five: Vec<u8> = (0..16).rev().collect();
    let wide = [0xFF, 3, 0xFE, 3, 0xFD, 3];
    let floats = weights(90, 8, 2);
    let given = |codec, form, dropped| planes(codec, form, [1500, 160], &table, dropped);
    vec![
        ("planes4_bf16", case(0b1011, tensor(Dtype::Bf16, 0, 100, 30), given(1, 8, [0; 2]), 800, &floats)),
        ("planes4_list", case(0b0111, tensor(Dtype::F32, 1, 100, 20), given(1, 0, [0; 2]), 90, &small(30))),
        ("planes4_short", case(0b1011, tensor(Dtype::F32, 0, 333, 5), given(1, 1, [1, 16]), 99, &[0xF3; 9])),
        (
            "planes3_bf16",
            case(0b1111, tensor(Dtype::Bf16, 0, 100, 40), given(2, 8, [0; 2]), 2000, &small(25)),
        ),
        ("planes3_front", case(0b0111, tensor(Dtype::F32, 0, 1100, 2), given(2, 0, [0; 2]), 50, &small(40))),
        (
            "planes222_bf16",
            case(0b0111, tensor(Dtype::Bf16, 1, 100, 40), given(3, 8, [0; 2]), 999, &small(25)),
        ),
        ("planes222_short", case(0b1111, tensor(Dtype::F32, 0, 100, 20), given(3, 1, [1, 16]), 700, &[0xFF])),
        (
            "planes3_f16",
            case(
                0b1011,
                tensor(Dtype::F16, 0, 100, 30),
                planes(2, 0, [1800, 0], &five, [0; 2]),
                700,
                &[0xFF, 3],
            ),
        ),
        (
            "planes222_f64",
            case(0b1111, tensor(Dtype::F64, 0, 33, 30), planes(3, 9, [0, 240], &wide, [9, 13]), 500, &floats),
        ),
        (
            "planes4_f8_e5m2",
            case(0b1011, tensor(Dtype::F8E5m2, 0, 99, 50), planes(1, 8, [0; 2], &five, [0; 2]), 500, &[7]),
        ),
        (
            "planes222_f8_e4m3",
            case(
                0b0111,
                tensor(Dtype::F8E4m3, 1, 99, 50),
                planes(3, 1, [0; 2], &five, [1, 2]),
                700,
                &small(25),
            ),
        ),
        ("fitted_planes4", fitted_case(CodecId::Planes4, Dtype::Bf16, &weights(480, 8, 2))),
        ("fitted_planes3", fitted_case(CodecId::Planes3, Dtype::F32, &weights(480, 8, 4))),
        ("fitted_planes222", fitted_case(CodecId::Planes222, Dtype::F16, &weights(480, 5, 2))),
    ]
}

/// Metadata and a block of the encoder, which nothing repairs.
fn fitted_case(codec: CodecId, dtype: Dtype, raw: &[u8]) -> Vec<u8> {
    let geometry = Geometry::new(dtype, &[30, 16], Access::Rows, None).expect("a valid shape");
    let fitted =
        fit(codec, &geometry, &[(Piece::block(&geometry, 0), raw)]).expect("a fit of a whole tensor");
    let metadata = fitted.metadata.expect("these words shrink");
    let coder = Coder::new(&metadata, &geometry).expect("metadata of this tensor");
    let mut block = Vec::new();
    encode_block(Encoding::Coded(&coder), &geometry, 0, raw, &mut block).expect("a block");
    let metadata = metadata.to_bytes();
    let len = u16::try_from(metadata.len()).unwrap_or(0).to_le_bytes();
    [&[0][..], &tensor(dtype, 0, 16, 30), &[0], &len, &metadata, &block].concat()
}

fn of_round_trip() -> Vec<Seed> {
    let case = |mode: u8, tensor: Vec<u8>, noise: u8, rest: &[&[u8]]| {
        [&[mode][..], &tensor, &[noise], &rest.concat()].concat()
    };
    let window = metadata(0b10_1011, [500, 80], &[0xF0, 0x3F, 0, 9]);
    let of = |codec, form| planes(codec, form, [700, 150], &[9, 8, 10, 7, 11, 6], [1, 4]);
    let floats: Vec<u8> = (0..64_u16).flat_map(|i| (0x3F80 + i * 3).to_le_bytes()).collect();
    vec![
        ("raw", case(0, tensor(Dtype::I64, 0, 5, 7), 1, &[&[1, 2, 3]])),
        ("fit_ibp", case(1, tensor(Dtype::U32, 0, 16, 40), 3, &[&small(64)])),
        ("fit_window", case(2, tensor(Dtype::Bf16, 0, 64, 20), 1, &[&floats])),
        ("choose", case(3, tensor(Dtype::F32, 1, 33, 11), 0, &[&floats])),
        ("given_columns", case(4, tensor(Dtype::F16, 0, 1100, 5), 0x0F, &[&window, &floats])),
        ("given_whole", case(5, tensor(Dtype::F32, 1, 56, 60), 1, &[&window, &small(20)])),
        ("given_f4", case(6, tensor(Dtype::F4, 4, 2050, 5), 0x11, &[&metadata(3, [90, 9], &MASK), &[0x12]])),
        ("given_pieces", case(7, tensor(Dtype::F4, LARGE | 1, 130 << 10, 1), 0, &[&window, &floats])),
        ("fit_planes4", case(13, tensor(Dtype::Bf16, 0, 100, 12), 0, &[&weights(300, 8, 2)])),
        ("fit_planes3", case(14, tensor(Dtype::F16, 1, 100, 12), 1, &[&weights(300, 5, 2)])),
        ("fit_planes222", case(15, tensor(Dtype::F32, 0, 60, 10), 0, &[&weights(150, 8, 4)])),
        ("given_planes4", case(4, tensor(Dtype::Bf16, 0, 1100, 4), 1, &[&of(1, 8), &weights(200, 8, 2)])),
        ("given_planes3", case(5, tensor(Dtype::F32, 1, 100, 20), 1, &[&of(2, 0), &weights(99, 8, 4)])),
        ("given_planes222", case(6, tensor(Dtype::F64, 0, 100, 11), 1, &[&of(3, 9), &weights(99, 11, 8)])),
        ("given_f8", case(7, tensor(Dtype::F8E5m2, 0, 99, 40), 0, &[&of(1, 0), &weights(200, 5, 1)])),
        ("odd_rows", case(2, tensor(Dtype::F8E4m3, 0, 37, 50), 7, &[&small(10)])),
    ]
}

fn of_block_header() -> Vec<Seed> {
    let block = |codec, dtype, shape: &[u64], access, words: Vec<u8>| {
        let geometry = Geometry::new(dtype, shape, access, None).expect("a valid shape");
        let raw: Vec<u8> = words.into_iter().take(index(geometry.raw_bytes())).collect();
        let mut bytes = Vec::new();
        let metadata = fit(codec, &geometry, &[(Piece::block(&geometry, 0), &raw)]).expect("a fit").metadata;
        let coder = metadata.map(|metadata| Coder::new(&metadata, &geometry).expect("of this tensor"));
        let encoding = coder.as_ref().map_or(Encoding::Raw, Encoding::Coded);
        encode_block(encoding, &geometry, 0, &raw, &mut bytes).expect("a block");
        bytes
    };
    let case = |flags: u8, bytes: &[u8]| [&[flags], bytes].concat();
    let raw = block(CodecId::Raw, Dtype::Bf16, &[5, 3], Access::Rows, small(4096));
    let rows = block(CodecId::Ibp, Dtype::U32, &[30, 16], Access::Rows, small(4096));
    let whole = block(CodecId::Ibp, Dtype::U32, &[3, 700], Access::Whole, small(4096));
    let floats = || weights(2000, 8, 2);
    let four = block(CodecId::Planes4, Dtype::Bf16, &[9, 100], Access::Rows, floats());
    let three = block(CodecId::Planes3, Dtype::Bf16, &[15, 100], Access::Whole, floats());
    let tiers = block(CodecId::Planes222, Dtype::Bf16, &[9, 100], Access::Rows, floats());
    vec![
        ("raw", case(0, &raw)),
        ("rows", case(0, &rows)),
        ("whole", case(0, &whole)),
        ("planes4", case(0, &four)),
        ("planes3", case(0, &three)),
        ("planes222", case(0, &tiers)),
        ("planes4_corrected", case(0xF, &four[..64])),
        ("planes3_corrected", case(0xF, &three[..64])),
        ("raw_corrected", case(0xF, &raw[..64])),
        ("rows_corrected", case(0xF, &rows[..64])),
        ("whole_corrected", case(0xD, &whole[..64])),
        ("zeros_corrected", case(0xF, &[0; 64])),
        ("cut", case(0, &raw[..63])),
    ]
}

fn of_message() -> Vec<Seed> {
    fn case<T: serde::Serialize>(message: &T) -> Vec<u8> {
        let bytes = encode(message).expect("a short message");
        [&[0], &bytes[4..]].concat()
    }
    let request = |request| case(&ClientMessage::Request { id: 3, deadline_ms: 500, request });
    let reply = |result| case(&DaemonMessage::Reply { id: 3, result });
    let text = |text: &str| text.to_owned();
    let (protocol, layout) = (PROTOCOL_VERSION, 1);
    let segment = SegmentId { kind: SegmentKind::Directory, index: 0, serial: 77 };
    let begin = PutBegin {
        namespace: text("default"),
        name: text("model.embed"),
        dtype: Dtype::Bf16,
        shape: vec![300, 128],
        access: Access::Whole,
        row_elems: Some(128),
        codec: CodecChoice::Only(CodecId::IbpWindow),
        overwrite: true,
        file_metadata: Some(Blob::Descriptor { len: 99 }),
        transaction: None,
    };
    let hello = Hello { protocol, layout, features: 0, software: text("tierpack 0.1.0") };
    let refusal = || Refusal::new(ErrorCode::Busy, "try again");
    let attached = Reply::Attached {
        id: NamespaceId { instance: 9, namespace: 4 },
        header_len: 1 << 20,
        header: segment,
    };
    vec![
        ("hello", case(&hello)),
        ("hello_refused", case(&HelloReply::Refused { protocol, layout, refusal: refusal() })),
        ("put_begin", request(Request::PutBegin(begin))),
        (
            "put_chunk",
            request(Request::PutChunk { transfer: 1, first_block: 2, data: Blob::Inline(vec![7; 40]) }),
        ),
        ("put_sample", request(Request::PutSample { transfer: 1, data: Blob::Inline(vec![7; 40]) })),
        (
            "transaction_claim",
            request(Request::TransactionClaim { transaction: 1, names: vec!["a".into(), "b".into()] }),
        ),
        ("list", request(Request::List { namespace: None, after: Some((text("a"), text("b"))) })),
        ("unmapped", case(&ClientMessage::Unmapped { namespace: 4, segments: vec![segment; 3] })),
        ("detach", case(&ClientMessage::Detach { namespace: 4 })),
        ("goodbye", case(&ClientMessage::Goodbye)),
        ("detached", case(&DaemonMessage::Detached { namespace: 4 })),
        ("attached", reply(Ok(attached))),
        ("refused", reply(Err(refusal()))),
        ("segments", case(&DaemonMessage::Segments { namespace: 4, segments: vec![(segment, 1 << 26)] })),
        ("checksum_of_the_sender", [&[1][..], &encode(&hello).expect("a short message")].concat()),
    ]
}

fn of_client_page() -> Vec<Seed> {
    let case = |flags: u8, clock: u64, slot: u32, rest: &[u8]| {
        [&[flags][..], &clock.to_le_bytes(), &slot.to_le_bytes(), rest].concat()
    };
    let write = |word: u16, value: u64| [&word.to_le_bytes()[..], &value.to_le_bytes()].concat();
    // Words 0 to 3 are the header, 8 to 135 the counters, 136 to 1159 the leases, 1160 to 2183 their second words,
    // 2312 the head of the ring.
    let lease = |word: u16, epoch: u64, slot: u64| write(word, epoch << 24 | slot);
    vec![
        ("untouched", case(0, 7, 3, &[])),
        ("leases", case(0, 7, 3, &[lease(136, 7, 3), lease(1159, 8, 3), lease(500, 6, 4)].concat())),
        ("finished", case(0, 7, 3, &[lease(136, 1 << 39 | 2, 3), write(1160, 5)].concat())),
        ("every_slot", case(0, (1 << 39) - 2, 5, &lease(200, 1, 0xFF_FFFF))),
        ("end_of_the_clock", case(0, u64::MAX, u32::MAX, &lease(136, (1 << 39) - 1, 3))),
        ("counters", case(0, 7, 3, &[write(8, u64::MAX), write(16, 2), write(135, u64::MAX)].concat())),
        ("header", case(0, 7, 3, &[write(0, 0), write(1, 2), write(2, 8), write(3, 5)].concat())),
        ("ring", case(0, 7, 3, &write(2312, u64::MAX))),
        ("full", case(1, 9, 0xFF_FFFF, &[0xFF; 16])),
    ]
}
