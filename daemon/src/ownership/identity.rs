//! What a lock file says about its holder: for messages only, it decides nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// How much of a lock file is read to name its holder.
const MAX_IDENTITY_BYTES: usize = 256;

/// Says who holds the lock, for the message that another daemon prints.
///
/// A full disk must not keep a daemon from starting, so a failure is only logged.
pub(super) fn write(lock: &File) {
    let (pid, version) = (std::process::id(), env!("CARGO_PKG_VERSION"));
    let identity = format!("pid {pid}, tierpack {version}, started {}\n", utc_text(SystemTime::now()));
    // First over what is there and then cut, so that a reader never finds the file empty.
    let written =
        lock.write_all_at(identity.as_bytes(), 0).and_then(|()| lock.set_len(identity.len() as u64));
    if let Err(error) = written {
        tracing::warn!(error = &error as &dyn std::error::Error, "lock file does not name its holder");
        // Better nothing than the name of an earlier one; if even this fails, there is no more to try.
        drop(lock.set_len(0));
    }
}

/// What a lock file says about its holder: one short printable line, whatever the file holds.
pub(super) fn read(lock: &File) -> String {
    let mut bytes = [0; MAX_IDENTITY_BYTES];
    let n_read = lock.read_at(&mut bytes, 0).unwrap_or(0);
    let line = bytes[..n_read].split(|byte| *byte == b'\n').next().unwrap_or_default();
    match std::str::from_utf8(line) {
        Ok(text) if !text.is_empty() && text.bytes().all(|byte| matches!(byte, b' '..=b'~')) => {
            text.to_owned()
        }
        _ => "which has not said who it is".to_owned(),
    }
}

/// A time as `2026-01-31T23:59:59Z`.
fn utc_text(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    let (mut days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    // Days since the year 0 in 400-year cycles that start in March, so that the leap day comes last.
    days += 719_468;
    let (cycle, day_of_cycle) = (days / 146_097, days % 146_097);
    let year_of_cycle =
        (day_of_cycle - day_of_cycle / 1_460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    // Months from March on have 30.6 days in the mean: (153 m + 2) / 5 days lie before month m.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = cycle * 400 + year_of_cycle + u64::from(month <= 2);
    let (hour, minute, second) = (second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tells_the_time() {
        let at = |seconds| utc_text(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_709_251_200), "2024-03-01T00:00:00Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
