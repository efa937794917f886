//! Refits at a scripted daemon, and other requests that mean a name whichever publication it has.

use tierpack_shm::message::{ErrorCode, Refusal};

use super::*;
use crate::fake_daemon::serve;

#[test]
fn a_refit_is_looked_at_until_it_is_done() {
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        let states = [RefitState::Queued, RefitState::Running, RefitState::Held, RefitState::Idle];
        for (state, blocks_left) in states.into_iter().zip([9, 5, 5, 0]) {
            let (id, request) = peer.asked();
            let Request::Refit { name, mode, .. } = request else { panic!("{request:?}") };
            let expected = if blocks_left == 9 { RefitMode::Force } else { RefitMode::Look };
            assert_eq!((&name[..], mode), ("t", expected));
            let mut drift = Drift::default();
            (drift.state, drift.blocks_left, drift.n_blocks, drift.refits) = (state, blocks_left, 9, 4);
            peer.reply(id, Ok(Reply::Drift(drift)));
        }
        peer.drain();
    });
    let client = Client::builder().socket(&path).connect().unwrap();
    let mut heard = Vec::new();
    let drift = client.refit("t", RefitMode::Force, |left, all| heard.push((left, all))).unwrap();
    assert_eq!((drift.state, drift.refits), (RefitState::Idle, 4));
    assert_eq!(heard, [(9, 9), (5, 9), (5, 9), (0, 9)]);
    drop(client);
    daemon.join().unwrap();
}

fn replaced() -> Refusal {
    Refusal::new(ErrorCode::Replaced, "replaced: open it again")
}

#[test]
fn a_tensor_that_is_replaced_meanwhile_is_refitted_under_its_new_publication() {
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        for answer in [Err(replaced()), Err(replaced()), Ok(Reply::Drift(Drift::default()))] {
            let (id, request) = peer.asked();
            assert!(matches!(request, Request::Refit { mode: RefitMode::Force, .. }), "{request:?}");
            peer.reply(id, answer);
        }
        peer.drain();
    });
    let client = Client::builder().socket(&path).connect().unwrap();
    assert_eq!(client.refit("t", RefitMode::Force, |_, _| {}).unwrap(), Drift::default());
    drop(client);
    daemon.join().unwrap();
}

#[test]
fn a_tensor_that_is_replaced_meanwhile_is_verified_from_its_start() {
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        let verified = |next_block| Reply::Verified { n_blocks: 2, next_block, raw_bytes: 8, damage: None };
        let turns = [(0, Ok(verified(1))), (1, Err(replaced())), (0, Ok(verified(1))), (1, Ok(verified(2)))];
        for (expected, answer) in turns {
            let (id, request) = peer.asked();
            let Request::Verify { first_block, .. } = request else { panic!("{request:?}") };
            assert_eq!(first_block, expected);
            peer.reply(id, answer);
        }
        peer.drain();
    });
    let client = Client::builder().socket(&path).connect().unwrap();
    assert_eq!(client.verify("t", |_, _| {}).unwrap(), 16);
    drop(client);
    daemon.join().unwrap();
}
