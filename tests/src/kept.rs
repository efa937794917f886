//! A daemon with one tensor that must survive whatever a test does to it.

use tierpack_client::Dtype;

use crate::Daemon;
use crate::leaks::Baseline;

/// Name and bytes of the tensor.
const KEPT: (&str, [u8; 100]) = ("kept", [7; 100]);

/// A daemon of `program` with the tensor, and what it has then.
///
/// # Panics
/// When it does not start.
pub fn daemon_with_kept(program: &str, pool_size: &str) -> (Daemon, Baseline) {
    let daemon = Daemon::start(program, &["--pool-size", pool_size, "--lock", "off"]);
    daemon.client().put(KEPT.0, Dtype::U8, &[100], &KEPT.1).expect("room");
    let before = Baseline::take(&daemon, 0);
    (daemon, before)
}

/// The daemon lives, has lost nothing, and serves.
///
/// # Panics
/// When not.
pub fn check_kept(daemon: &mut Daemon, before: &Baseline) {
    let kept = daemon.client().get(KEPT.0).expect("a normal client is served");
    assert_eq!(kept.as_bytes(), KEPT.1);
    drop(kept);
    before.returns(daemon);
}
