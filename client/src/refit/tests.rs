//! Refits at a scripted daemon.

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
