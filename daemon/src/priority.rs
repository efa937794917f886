//! The priority of threads whose work nobody waits for within microseconds.
//!
//! On Linux a thread has a nice value of its own, so an embedded daemon changes nothing of its program.

use rustix::process::{getpriority_process, setpriority_process};

/// What is added to the nice value of a thread that does bulk work.
///
/// Next to a session that floods `Verify`, on two processors, an open takes at the 99th percentile 7 ms with 0, 2 ms with 5
/// and under 1 ms with 10 (bench `service`); the flood itself goes at the same rate. The price is paid where others keep
/// all processors busy: bulk work then gets about a ninth of the share of a thread with the usual priority.
const NICENESS: i32 = 10;
/// The highest nice value that there is.
const HIGHEST: i32 = 19;

/// Has the calling thread run after the poll loop, look-ups and clients where processors are short.
pub(crate) fn lower() {
    // Relative: a daemon that was started with a low priority keeps it.
    let lowered = getpriority_process(None)
        .and_then(|own| setpriority_process(None, own.saturating_add(NICENESS).min(HIGHEST)));
    if let Err(error) = lowered {
        tracing::debug!(error = %error, "a thread keeps its priority");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Config, Embedded};

    /// Names and nice values of the threads of this process.
    fn threads() -> BTreeSet<(String, i32)> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let texts = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok());
        texts
            .map(|text| {
                let (name, fields) = text.split_once(" (").unwrap().1.rsplit_once(") ").unwrap();
                // The 19th field (proc_pid_stat(5)), the third of which is the first behind the name.
                (name.to_owned(), fields.split(' ').nth(16).unwrap().parse().unwrap())
            })
            .collect()
    }

    #[test]
    fn bulk_work_runs_after_look_ups_and_the_loop() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config::embedded(directory.path().join("control.sock"), 16 << 20).unwrap();
        let daemon = Embedded::start(&config).unwrap();
        let own = getpriority_process(None).unwrap();
        let low = (own + NICENESS).min(HIGHEST);
        let expected =
            [("tierpackd", own), ("look-ups", own), ("worker", low), ("background", low), ("freer", low)];
        let started = Instant::now();
        // Threads start one after the other, those of other tests as well.
        let is_right = |threads: &BTreeSet<(String, i32)>| {
            expected.iter().all(|&(name, nice)| {
                let mut same = threads.iter().filter(|(other, _)| other == name);
                same.next().is_some_and(|(_, found)| *found == nice) && same.next().is_none()
            })
        };
        loop {
            let threads = threads();
            if is_right(&threads) {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "{threads:?}");
            std::thread::yield_now();
        }
        daemon.stop().unwrap();
    }
}
