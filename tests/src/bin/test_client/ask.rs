//! Reads one row of the tensor that a line names, again and again, and says what came of it.

use std::io::BufRead;
use std::path::Path;

use anyhow::Result;

use crate::{connect, say};

pub(crate) fn run(socket: &Path) -> Result<()> {
    let client = connect(socket)?;
    say("ready")?;
    for line in std::io::stdin().lock().lines() {
        let read = client.open(&line?).and_then(|handle| {
            let last = handle.n_rows() - 1;
            handle.gather(&[last])
        });
        say(&match read {
            Ok(row) => format!("row {:?}", &row.as_bytes()[..4]),
            Err(error) => format!("error {:#}", anyhow::Error::from(error)),
        })?;
    }
    Ok(())
}
