//! A writer whose output waits, fails, panics, and goes on.

use std::io::{BufRead as _, BufReader};

use super::*;

/// Output that a test can look at.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// What was written, once `wanted` is in it.
    pub(super) fn until(&self, wanted: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let text = String::from_utf8(self.0.lock().clone()).unwrap();
            if text.contains(wanted) {
                return text;
            }
            assert!(Instant::now() < deadline, "{text}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Write for Lines {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        assert!(!buf.starts_with(b"panic"));
        if buf.starts_with(b"fail") {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.lock().extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn log_to(out: impl Write + Send + 'static) -> Log {
    let lost = Box::leak(Box::new(Lost { lines: AtomicU64::new(0), last: Mutex::new(None) }));
    Log::start(out, lost, || {}).unwrap()
}

#[test]
fn a_reader_that_waits_keeps_nobody_and_learns_what_was_dropped() {
    let (reader, writer) = io::pipe().unwrap();
    let log = log_to(writer);
    // More than the pipe and the queue hold together.
    (0..5000).for_each(|_| log.push([b'x'; 99].into_iter().chain([b'\n']).collect()));
    let started = Instant::now();
    log.flush();
    assert!(started.elapsed() < FLUSH_LIMIT * 50);
    let dropped = log.lost.lines.load(Ordering::Relaxed);
    assert!(dropped > 3000 && log.lost.last.lock().is_some(), "{dropped}");
    let mut lines = BufReader::new(reader).lines().map(|line| line.unwrap());
    // One notice or more: lines may have got through in between.
    let mut reported = 0;
    while reported < dropped {
        let notice = lines.by_ref().find(|line| line.contains("lines of the log were dropped")).unwrap();
        reported += notice.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
    }
    assert_eq!(reported, dropped);
    log.push(b"next\n".to_vec());
    assert_eq!(lines.next().unwrap(), "next");
}

#[test]
fn a_line_that_cannot_be_written_is_counted_and_a_panic_does_not_end_the_writer() {
    let lines = Lines::default();
    let log = log_to(lines.clone());
    for line in ["fail", "panic", "one\n", "two\n"] {
        log.push(line.into());
    }
    let text = lines.until("1 lines of the log were dropped");
    assert_eq!(log.lost.lines.load(Ordering::Relaxed), 1);
    assert!(text.contains("one\n"), "{text}");
    lines.until("two\n");
}
