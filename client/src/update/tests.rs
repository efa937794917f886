//! How updates are cut, and what becomes of them at a scripted daemon.

use std::sync::mpsc;
use std::time::Duration;

use tierpack_shm::message::{Blob, Refusal};
use tierpack_shm::types::{Access, BlockWord, CodecId, Dtype};

use super::*;
use crate::fake_daemon::Peer;
use crate::fake_tensor::FakeTensor;

/// All requests of an update of `n_rows` rows of `geometry`.
fn cuts(geometry: &Geometry, n_rows: usize) -> Vec<Cut> {
    let mut all: Vec<Cut> = Vec::new();
    let mut at = Position::default();
    while at.row < n_rows {
        let cut = Cut::new(geometry, n_rows, at);
        at = cut.next;
        all.push(cut);
    }
    all
}

#[test]
fn requests_cover_every_byte_once_and_none_is_too_long() {
    let shapes = [&[1000, 3][..], &[9000, 5000], &[3, 300_000], &[2, 40 << 20], &[1, 131_072], &[1]];
    for shape in shapes {
        for access in [Access::Rows, Access::Whole] {
            let geometry = Geometry::new(Dtype::U8, shape, access, None).unwrap();
            let n_rows = index(geometry.n_rows());
            let (mut end, mut n_pieces) = (0, 0);
            for cut in cuts(&geometry, n_rows) {
                let len = cut.values.end - cut.values.start;
                assert!(cut.n_pieces > 0 && len + 8 * cut.n_pieces <= MAX_CHUNK_BYTES, "{shape:?}");
                assert_eq!(cut.values.start, end, "{shape:?}");
                (end, n_pieces) = (cut.values.end, n_pieces + cut.n_pieces);
            }
            assert_eq!(end, geometry.raw_bytes());
            assert_eq!(n_pieces, geometry.n_rows() * geometry.pieces_per_row());
            // What does not come last has no room for another piece.
            let all = cuts(&geometry, n_rows);
            let longest = geometry.block(0).row_bytes + NUMBER_BYTES;
            for cut in all.iter().rev().skip(1) {
                let len = cut.values.end - cut.values.start + NUMBER_BYTES * cut.n_pieces;
                assert!(len + longest > MAX_CHUNK_BYTES, "{shape:?}: {len} bytes");
            }
        }
    }
}

/// The pieces of a chunk, by number; the test keeps it within the message.
fn pieces(geometry: &Geometry, cut: &Cut, rows: &[u64], values: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut fill = |offset, buf: &mut [u8]| {
        buf.copy_from_slice(&values[index(offset)..][..buf.len()]);
        Ok(())
    };
    let chunk = cut.chunk(geometry, rows, &mut fill).unwrap();
    let Blob::Inline(bytes) = &chunk.blob else { panic!("{} bytes in a message", values.len()) };
    let (numbers, mut rest) = bytes.split_at(index(8 * cut.n_pieces));
    let numbers = numbers.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number));
    let split = numbers.map(|number| {
        let len = if geometry.pieces_per_row() == 1 {
            geometry.row_bytes()
        } else {
            geometry.block(number).raw_bytes
        };
        let (piece, left) = rest.split_at(index(len));
        rest = left;
        (number, piece.to_vec())
    });
    split.collect()
}

#[test]
fn a_piece_is_numbered_by_its_row_and_its_place_in_it() {
    let short = Geometry::new(Dtype::U16, &[100, 3], Access::Rows, None).unwrap();
    let values: Vec<u8> = (0..12).collect();
    let cut = Cut::new(&short, 2, Position::default());
    let found = pieces(&short, &cut, &[99, 7], &values);
    assert_eq!(found, [(99, (0..6).collect()), (7, (6..12).collect())]);

    let long = Geometry::new(Dtype::U8, &[5, 262_150], Access::Rows, None).unwrap();
    let values = vec![9; 2 * 262_150];
    let last = Position { row: 1, piece: 2, pieces_per_row: 3 };
    let cut = Cut::new(&long, 2, last);
    assert_eq!(pieces(&long, &cut, &[0, 4], &values), [(14, vec![9; 6])]);
    assert_eq!(cut.next, Position { row: 2, piece: 0, pieces_per_row: 3 });
}

/// The next request, which must be an update: its id and what it says.
fn update(peer: &Peer) -> (u64, Update) {
    match peer.asked() {
        (id, Request::Update(update)) => (id, update),
        (_, other) => panic!("{other:?}"),
    }
}

#[test]
fn a_busy_daemon_is_offered_the_update_again() {
    let tensor = FakeTensor::open(Dtype::U8, &[4, 2], CodecId::Raw, |peer, _, answer| {
        for round in 0..3 {
            let (id, update) = update(&peer);
            assert_eq!((update.slot, update.n_pieces, &update.name[..]), (answer.slot, 2, "t"));
            let data = [[3, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]].concat();
            assert_eq!(update.data, Blob::Inline([data, vec![5, 6, 7, 8]].concat()));
            let busy = Err(Refusal::new(ErrorCode::Busy, "try again"));
            peer.reply(id, if round < 2 { busy } else { Ok(Reply::Updated { revision: 41 }) });
        }
        peer.drain();
    });
    assert_eq!(tensor.handle.update(&[3, 1], &[5, 6, 7, 8]).unwrap(), 41);
    tensor.close();
}

#[test]
fn a_replaced_tensor_is_opened_again_and_updated_there() {
    let tensor = FakeTensor::open(Dtype::U8, &[4, 2], CodecId::Raw, |peer, _, mut answer| {
        let (id, _) = update(&peer);
        peer.reply(id, Err(Refusal::new(ErrorCode::Replaced, "another put")));
        let (id, request) = peer.asked();
        assert!(matches!(request, Request::Open { .. }), "{request:?}");
        answer.slot.publication += 1;
        peer.reply(id, Ok(answer.opened()));
        let (id, update) = update(&peer);
        assert_eq!(update.slot, answer.slot);
        peer.reply(id, Ok(Reply::Updated { revision: 1 }));
        peer.drain();
    });
    assert_eq!(tensor.handle.update(&[0_u8], &[1, 2]).unwrap(), 1);
    tensor.close();
}

#[test]
fn what_is_wrong_with_a_call_is_found_before_anything_is_sent() {
    let (sender, asked) = mpsc::channel();
    let tensor = FakeTensor::open(Dtype::U8, &[4, 2], CodecId::Raw, move |peer, words, _| {
        let (id, update) = update(&peer);
        sender.send(update.n_pieces).unwrap();
        peer.reply(id, Ok(Reply::Updated { revision: words.count_update() }));
        peer.drain();
    });
    let handle = &tensor.handle;
    let error = handle.update(&[0, 3, -1, 9], &[0; 8]).unwrap_err();
    assert!(matches!(error, Error::RowOutOfRange { position: 2, row: -1, n_rows: 4 }), "{error}");
    for len in [0, 7, 9] {
        let error = handle.update(&[0, 1, 2, 3], &vec![0; len]).unwrap_err();
        assert!(matches!(error, Error::BufferLength { needed: 8, .. }), "{error}");
    }
    assert_eq!((handle.update::<u64>(&[], &[]).unwrap(), handle.revision().unwrap()), (0, 0));
    assert!(asked.try_recv().is_err(), "something was sent");
    assert_eq!((handle.update(&[1], &[1, 1]).unwrap(), handle.revision().unwrap()), (1, 1));
    assert_eq!(asked.recv().unwrap(), 1);
    tensor.close();
}

#[test]
fn a_long_update_travels_beside_its_messages() {
    let rows: Vec<u64> = (0..40).collect();
    let tensor = FakeTensor::open(Dtype::U8, &[40, 1 << 20], CodecId::Raw, |peer, _, _| {
        let mut n_pieces = 0;
        for revision in 1..=3 {
            let (id, update) = update(&peer);
            assert!(matches!(update.data, Blob::Descriptor { len } if len <= MAX_CHUNK_BYTES));
            n_pieces += update.n_pieces;
            peer.reply(id, Ok(Reply::Updated { revision }));
        }
        assert_eq!(n_pieces, 40 * 8);
        peer.drain();
    });
    assert_eq!(tensor.handle.update(&rows, &vec![7; 40 << 20]).unwrap(), 3);
    tensor.close();
}

#[test]
fn a_view_asks_for_overlays_to_be_put_away() {
    let (word, folded) = mpsc::channel::<BlockWord>();
    let mut tensor = FakeTensor::open(Dtype::U8, &[4, 2], CodecId::Raw, move |peer, words, _| {
        // Another publication comes between at first: the view is for the name.
        let refusal = Refusal::new(ErrorCode::Replaced, "replaced: open it again");
        for answer in [Err(refusal), Ok(Reply::Done)] {
            let (id, request) = peer.asked();
            assert!(matches!(request, Request::Fold { .. }), "{request:?}");
            if answer.is_ok() {
                words.store(0, folded.recv().unwrap());
            }
            peer.reply(id, answer);
        }
        peer.drain();
    });
    tensor.put(&[0; 8], None);
    tensor.cover(0, 0, &[(1, vec![7, 8])]);
    let raw = [0, 0, 7, 8, 0, 0, 0, 0];
    word.send(tensor.block(0, &raw, None)).unwrap();
    assert_eq!(tensor.handle.view().unwrap().block(0).unwrap(), raw);
    tensor.close();
}

#[test]
fn a_view_of_what_is_updated_again_and_again_ends_at_the_deadline() {
    let builder = Client::builder().deadline(Duration::from_millis(300));
    let mut tensor = FakeTensor::open_with(builder, (Dtype::U8, &[4, 2], CodecId::Raw), |peer, _, _| {
        let mut folds = 0_u32;
        while let Some((id, request)) = peer.asked_or_closed() {
            assert!(matches!(request, Request::Fold { .. }), "{request:?}");
            std::thread::sleep(Duration::from_millis(20));
            peer.reply_if_there(id, Reply::Done);
            folds += 1;
        }
        assert!(folds > 1, "{folds}");
    });
    tensor.put(&[0; 8], None);
    tensor.cover(0, 0, &[(1, vec![7, 8])]);
    let result = tensor.handle.view();
    assert!(matches!(result, Err(Error::Deadline { .. })), "{result:?}");
    tensor.close();
}

#[test]
fn a_view_of_an_encoded_block_says_its_codec_whatever_the_tensor_was() {
    let raw: Vec<u8> = [0x80, 0x3F].repeat(512 * 256);
    let mut tensor = FakeTensor::silent(Dtype::Bf16, &[512, 256], CodecId::Raw);
    let coder = tensor.generation(3, 8, CodecId::Planes4, &raw);
    tensor.put(&raw, Some((3, &coder)));
    let result = tensor.handle.view();
    assert!(matches!(result, Err(Error::Encoded { codec: CodecId::Planes4 })), "{result:?}");
    tensor.put(&raw, None);
    assert_eq!(tensor.handle.view().unwrap().block(0).unwrap(), &raw[..256 << 10]);
    tensor.close();
}
