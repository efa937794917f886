//! A daemon of the test's own, in a temporary folder.

use tempfile::TempDir;
use tierpack_client::Client;
use tierpack_daemon::{Config, Embedded};

/// A daemon that ends with the test; the folder goes last.
#[derive(Debug)]
pub(crate) struct Fixture {
    pub(crate) daemon: Option<Embedded>,
    pub(crate) config: Config,
    pub(crate) folder: TempDir,
}

impl Fixture {
    pub(crate) fn new(pool_bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::embedded(folder.path().join("control.sock"), pool_bytes).unwrap();
        let daemon = Some(Embedded::start(&config).unwrap());
        Self { daemon, config, folder }
    }

    pub(crate) fn client(&self) -> Client {
        Client::builder().socket(self.folder.path().join("control.sock")).connect().unwrap()
    }
}

/// Bytes that no two positions of a tensor share by accident.
pub(crate) fn pattern(len: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let words = (0..len.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(usize::try_from(len).unwrap()).collect()
}
