//! A peer that leases a whole namespace, closes its connection without a goodbye, and lives on.

use std::os::fd::AsFd;
use std::path::Path;

use anyhow::Result;
use tierpack_shm::page::ClientPage;
use tierpack_shm::sync::Ordering;
use tierpack_tests::peer::Peer;

use crate::{say, until_closed};

/// A lease of every tensor since the first epoch.
const EVERYTHING: u64 = 1 << 24 | 0xFF_FFFF;

pub(crate) fn run(socket: &Path) -> Result<()> {
    let mut peer = Peer::greeted(socket);
    let (id, page, ..) = peer.attach("default");
    let page = ClientPage::adopt(page.as_fd(), id)?;
    page.leases()[0].store(EVERYTHING, Ordering::Release);
    peer.hang_up();
    say("hung up")?;
    until_closed()
}
