//! Threads of a daemon that panic: each goes on and says so, or ends the daemon with a message.

use tierpack_shm::faults::Point;
use tierpack_tests::{Daemon, eventually};

use super::{PROGRAM, Plan, RAW, ROWS, Runs, SERVE, plan, put};

const PANIC: &str = "a test ends this thread";

/// Arms the point; a client removes a tensor and goes, which every one of these threads has something to do for.
fn panicked(point: Point) -> Daemon {
    let daemon = Daemon::with_faults(PROGRAM, &SERVE);
    put(&daemon.client(), "a", (1, 1), RAW, ROWS).expect("room");
    daemon.arm(point, &format!("1*panic({PANIC})"));
    let client = tierpack_client::Client::builder().socket(daemon.socket()).connect();
    if point == Point::FreerTurn {
        client.expect("it serves").remove("a").expect("it is there");
    }
    daemon
}

fn log_has(daemon: &Daemon, text: &str) {
    eventually(text, || daemon.log().contains(text).then_some(()));
}

fn check(point: Point) -> String {
    let mut daemon = panicked(point);
    match point {
        Point::StatsTurn => {
            log_has(&daemon, PANIC);
            let health = daemon.stats().health;
            assert_eq!(health.state, "degraded");
            assert!(health.reasons.iter().any(|text| text.contains("panicked 1 times")), "{health:?}");
            put(&daemon.client(), "b", (2, 1), RAW, ROWS).expect("it serves");
            "goes on, and the stats say so".to_owned()
        }
        Point::CloserTurn | Point::FreerTurn => {
            assert!(daemon.process().wait().code().is_some_and(|code| code > 0));
            let work = if point == Point::CloserTurn { "closes descriptors" } else { "frees segments" };
            let text = format!("thread that {work} panicked");
            assert!(daemon.log().contains(&text), "{}", daemon.log());
            "ends the daemon".to_owned()
        }
        _ => {
            // Refused, which the log says.
            daemon.client().remove("b").expect_err("it is not there");
            drop(tierpack_tests::peer::Peer::connect(&daemon.socket()).send_bytes(b"no greeting", &[]));
            log_has(&daemon, PANIC);
            put(&daemon.client(), "b", (2, 1), RAW, ROWS).expect("it serves");
            "goes on with the next line".to_owned()
        }
    }
}

#[test]
fn a_thread_of_the_daemon_that_panics_goes_on_and_is_reported_or_ends_the_daemon() {
    let mut runs = Runs::default();
    for &point in Point::ALL.iter().filter(|point| matches!(plan(**point), Plan::Thread)) {
        runs.add(point, check(point));
    }
    runs.finish(|point| matches!(plan(point), Plan::Thread));
}
