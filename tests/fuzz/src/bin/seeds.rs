//! Writes the seeds of every target to the corpus that is next to this package.

use std::path::Path;
use std::{fs, io};

use tierpack_fuzz::{TARGETS, seeds};

fn main() -> io::Result<()> {
    for (target, _) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        fs::create_dir_all(&folder)?;
        for (name, bytes) in seeds::of(target) {
            fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}
