//! C80: a clock that jumps changes nothing, since only the daemon's identity is told by the time of day.

use std::path::{Path, PathBuf};

/// The files that may ask for the time of day: the text of a lock file, for people.
const MAY: [&str; 1] = ["daemon/src/ownership/identity.rs"];

/// The source files below `folder`.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn daemon_and_client_keep_time_by_monotonic_clocks() {
    let tests = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("tests"), PathBuf::from);
    let root = tests.parent().expect("the tests lie in the workspace");
    let mut files = Vec::new();
    for folder in ["daemon/src", "client/src", "shm/src"] {
        sources(&root.join(folder), &mut files);
    }
    let asks = |path: &&PathBuf| {
        let text = std::fs::read_to_string(path).expect("a source file");
        ["SystemTime", "UNIX_EPOCH", "CLOCK_REALTIME", "gettimeofday"]
            .iter()
            .any(|clock| text.contains(clock))
    };
    let found: Vec<&Path> =
        files.iter().filter(asks).filter_map(|path| path.strip_prefix(root).ok()).collect();
    assert_eq!(found, MAY.map(Path::new), "the time of day is asked for");
    assert!(files.len() > 80, "only {} source files were looked at", files.len());
}
