//! Hostile client pages: what a client writes decides how long memory is held, and nothing else.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use tierpack_shm::epoch::{self, EPOCH_BITS, Leases, MAX_EPOCH};
use tierpack_shm::layout::page;
use tierpack_shm::page::{ClientPage, Counter, NamespaceId};
use tierpack_shm::ring::Changed;
use tierpack_shm::sync::{AtomicU64, Ordering};
use tierpack_shm::types::{SlotIdx, index};

use crate::input::{Input, repeated};

const ID: NamespaceId = NamespaceId { instance: 9, namespace: 4 };

/// Words of a header that a client must find as the daemon wrote them.
const HEADER_BYTES: usize = 32;

/// Bytes in a page, by the descriptor as a client would write them; then the daemon's reads, and a client's.
///
/// Flags: bit 0, the page is full of the rest; else single words are written: two bytes of index, eight of value.
/// Then the epoch and the slot that the daemon asks about.
///
/// # Panics
/// Where something is wrong.
pub fn client_page(data: &[u8]) {
    let mut input = Input::new(data);
    let (flags, clock, slot) = (input.u8(), input.u64(), input.u32());
    let (daemon, fd) = ClientPage::create(ID).expect("a memory file of 24 KiB");
    let client = ClientPage::adopt(fd.as_fd(), ID).expect("the page as the daemon made it");
    let file = File::from(fd);
    let write = |at: u64, bytes: &[u8]| file.write_all_at(bytes, at).expect("a client may write its page");
    if flags & 1 != 0 {
        write(0, &repeated(input.rest(), flags, page::BYTES));
    } else {
        while !input.is_empty() {
            let word = u64::from(input.u16()) % (page::BYTES / 8);
            write(word * 8, &input.array::<8>());
        }
    }
    let mut bytes = vec![0; index(page::BYTES)];
    file.read_exact_at(&mut bytes, 0).expect("the page is there");
    let slot = SlotIdx::new(slot).unwrap_or(SlotIdx::EVERY);
    holds_as_it_says(&daemon, &bytes, clock, slot);
    counts_what_is_there(&daemon, &bytes);

    let fresh = ClientPage::create(ID).expect("a memory file of 24 KiB");
    let mut header = [0; HEADER_BYTES];
    File::from(fresh.1).read_exact_at(&mut header, 0).expect("the page is there");
    let adopted = ClientPage::adopt(file.as_fd(), ID);
    assert_eq!(adopted.is_ok(), bytes[..HEADER_BYTES] == header, "{adopted:?}");

    client.record_access(Changed { slot, block_idx: clock >> 24 });
    client.count(index(clock), Counter::Bytes, clock);
    assert_eq!(daemon.counts(), client.counts());
}

fn word(bytes: &[u8], at: u64) -> u64 {
    bytes[index(at)..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// A lease holds its slot, or every slot, from its epoch on, and once it is finished what was published by its second
/// word: read from the bytes, not with the code under test.
fn holds_as_it_says(daemon: &ClientPage, bytes: &[u8], clock: u64, slot: SlotIdx) {
    let words = || {
        let both = (0..page::N_LEASES)
            .map(|i| (word(bytes, page::LEASES_AT + i * 8), word(bytes, page::LAST_LOOKS_AT + i * 8)));
        both.filter(|&(word, _)| word != 0)
    };
    assert_eq!(daemon.leases_taken(), words().count());
    let epoch = AtomicU64::new(clock);
    let stamp = epoch::retire(&epoch);
    assert_eq!(stamp.is_some(), clock < MAX_EPOCH);
    assert_eq!(epoch.load(Ordering::Relaxed), clock.wrapping_add(1));
    let Some(stamp) = stamp else { return };
    let every = u64::from(SlotIdx::EVERY.get());
    for slot in [slot, SlotIdx::EVERY] {
        let asked = u64::from(slot.get());
        for published in [0, clock / 2, clock] {
            let expected = words().any(|(word, last_look)| {
                let (leased, is_finished) = (word & every, word >> (24 + EPOCH_BITS) != 0);
                word >> 24 & MAX_EPOCH <= clock
                    && (leased == asked || leased == every || asked == every)
                    && (!is_finished || published <= last_look)
            });
            assert_eq!(Leases::scan(daemon.lease_pairs()).hold(stamp, slot, published), expected);
        }
    }
}

fn counts_what_is_there(daemon: &ClientPage, bytes: &[u8]) {
    let sum = |counter: Counter| {
        let at = |shard| page::COUNTERS_AT + shard * page::SHARD_BYTES + counter as u64 * 8;
        (0..page::SHARDS).fold(0_u64, |sum, shard| sum.wrapping_add(word(bytes, at(shard))))
    };
    let counts = daemon.counts();
    let found = [
        counts.gets,
        counts.gathers,
        counts.rows,
        counts.bytes,
        counts.retries,
        counts.views,
        counts.misses,
        counts.device_gets,
        counts.device_bytes,
        counts.device_gathers,
        counts.device_hits,
        counts.device_misses,
        counts.device_inserts,
        counts.device_conflicts,
        counts.device_bypasses,
    ];
    let counters = [
        Counter::Gets,
        Counter::Gathers,
        Counter::Rows,
        Counter::Bytes,
        Counter::Retries,
        Counter::Views,
        Counter::Misses,
        Counter::DeviceGets,
        Counter::DeviceBytes,
        Counter::DeviceGathers,
        Counter::DeviceHits,
        Counter::DeviceMisses,
        Counter::DeviceInserts,
        Counter::DeviceConflicts,
        Counter::DeviceBypasses,
    ];
    assert_eq!(found, counters.map(sum));
    // Sums of sums wrap as well.
    let twice = counts.plus(counts);
    assert_eq!(twice.views, counts.views.wrapping_mul(2));
}
