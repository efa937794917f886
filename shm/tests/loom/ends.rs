//! A client that dies at any point of a read: its leases count until the kernel says that it is gone.

use loom::sync::Arc;
use loom::thread;
use tierpack_shm::sync::{AtomicU64, Ordering};

use crate::explore::{RACE, breaks, holds};
use crate::shared::{Rules, Shared, WRONG_BYTES, is_held_by, raw, slot};

const HELD: &str = "a dead client holds memory";

/// The last thing that the client does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DiesAfter {
    Lease,
    Word,
    FirstRead,
    SecondRead,
    End,
}

/// When the daemon stops counting the leases of the client's page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageLeaves {
    /// When the kernel reports that the client's end of the socket is closed.
    AtHangUp,
    /// When the daemon has had enough of the session.
    WhenTheDaemonEndsTheSession,
}

struct World {
    shared: Shared,
    /// What the kernel says: set when the client has run its last instruction.
    hung_up: AtomicU64,
}

fn read_until(shared: &Shared, rules: &Rules, last: DiesAfter) {
    shared.begin(rules, 0);
    if last == DiesAfter::Lease {
        return;
    }
    let word = shared.load(rules);
    for step in [DiesAfter::FirstRead, DiesAfter::SecondRead] {
        if last < step {
            return;
        }
        assert_eq!(shared.read(word), [u64::from(word.sequence()); 2], "{WRONG_BYTES}");
    }
    if last == DiesAfter::End {
        shared.end(rules, 0);
    }
}

/// A client reads and dies while the daemon stores the block and overwrites what it retired.
fn die_while_reading(rules: Rules, last: DiesAfter, leaves: PageLeaves) {
    let daemon = Arc::new(World { shared: Shared::new(), hung_up: AtomicU64::new(0) });
    let client = Arc::clone(&daemon);
    let dying = thread::spawn(move || {
        read_until(&client.shared, &rules, last);
        client.hung_up.store(1, Ordering::Release);
    });
    let shared = &daemon.shared;
    let stamp = shared.publish(&rules, [raw(0, 0), raw(1, 1)], [1, 1]);
    let gone = match leaves {
        PageLeaves::AtHangUp => daemon.hung_up.load(Ordering::Acquire) != 0,
        PageLeaves::WhenTheDaemonEndsTheSession => true,
    };
    // Lease 0 is on the dying client's page, lease 1 on another's.
    let pages = if gone { &shared.leases[1..] } else { &shared.leases[..] };
    if !is_held_by(&rules, stamp, slot(), pages) {
        shared.extents[0].set([77, 78]);
    }
    dying.join().expect("the client ends");
    // From here on the kernel has told: the page leaves the scan, whatever its word says.
    assert_eq!(daemon.hung_up.load(Ordering::Acquire), 1);
    assert!(!is_held_by(&rules, stamp, slot(), &shared.leases[1..]), "{HELD}");
}

#[test]
fn a_client_may_die_at_any_point_of_a_read() {
    let points =
        [DiesAfter::Lease, DiesAfter::Word, DiesAfter::FirstRead, DiesAfter::SecondRead, DiesAfter::End];
    for (n, last) in points.into_iter().enumerate() {
        holds(&format!("dying client, point {n}"), move || {
            die_while_reading(Rules::SPEC, last, PageLeaves::AtHangUp);
        });
    }
}

#[test]
fn dropping_a_page_before_the_hang_up_is_found() {
    breaks("page dropped before the hang-up", &[RACE, WRONG_BYTES], || {
        die_while_reading(Rules::SPEC, DiesAfter::End, PageLeaves::WhenTheDaemonEndsTheSession);
    });
}
