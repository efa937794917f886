//! CASES.md is true: every test that it names exists, and every case has one line with a test or a reason.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Every case, so that none gets lost.
const IDS: [u32; 52] = [
    1, 3, 5, 8, 9, 10, 11, 12, 14, 15, 17, 20, 21, 22, 23, 25, 26, 29, 31, 32, 34, 35, 36, 38, 39, 40, 41,
    42, 43, 45, 46, 48, 50, 51, 53, 55, 56, 57, 59, 60, 61, 63, 66, 67, 68, 69, 70, 71, 75, 76, 79, 80,
];

/// Faults of the service under attack and under load, which have numbers of their own.
const SERVICE_IDS: std::ops::RangeInclusive<u32> = 1..=31;

/// One line of the tables.
#[derive(Debug)]
struct Case {
    id: u32,
    tests: Vec<String>,
    not_yet: String,
}

fn root() -> PathBuf {
    let tests = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("tests"), PathBuf::from);
    tests.parent().expect("the tests lie in the workspace").to_owned()
}

/// The lines that start with an id of this kind.
fn cases(text: &str, kind: char) -> Vec<Case> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_prefix(kind));
    let lines = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            assert_eq!(cells.len(), 5, "a line of other cells: {line}");
            let (id, tests, not_yet) = (cells[0], cells[2], cells[3]);
            let code = tests.split('`').skip(1).step_by(2).filter(|code| code.contains("::"));
            let tests = code.map(str::to_owned).collect();
            Case { id: id.parse().expect("an id is a number"), tests, not_yet: not_yet.to_owned() }
        })
        .collect()
}

/// The source files below `folder`, those of build folders aside.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// What a file is called in CASES.md: `limits/tests.rs` is `limits`.
fn called(path: &Path) -> Option<&str> {
    let stem = path.file_stem()?.to_str()?;
    if stem == "tests" { path.parent()?.file_name()?.to_str() } else { Some(stem) }
}

/// Whether `text` has a test function of that name.
fn has_test(text: &str, name: &str) -> bool {
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line == "#[test]" {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("fn ") {
            if is_test && rest.strip_prefix(name).is_some_and(|rest| rest.starts_with('(')) {
                return true;
            }
            is_test = false;
        }
    }
    false
}

/// Whether a test of CASES.md exists below `root`.
fn exists(root: &Path, test: &str) -> bool {
    let parts: Vec<&str> = test.split("::").collect();
    let (folder, file, name) = match parts[..] {
        [file, name] => (root.join("tests/tests"), file, name),
        [part, file, name] => (root.join(part), file, name),
        _ => return false,
    };
    let mut files = Vec::new();
    sources(&folder, &mut files);
    let texts = files.iter().filter(|path| called(path) == Some(file)).map(std::fs::read_to_string);
    texts.flatten().any(|text| has_test(&text, name))
}

#[test]
fn every_named_test_exists() {
    let root = root();
    let text = std::fs::read_to_string(root.join("tests/CASES.md")).expect("CASES.md is there");
    let all = ['C', 'S'].into_iter().flat_map(|kind| cases(&text, kind));
    let named: Vec<String> = all.flat_map(|case| case.tests).collect();
    let missing: Vec<&String> = named.iter().filter(|test| !exists(&root, test)).collect();
    assert!(missing.is_empty(), "CASES.md names tests that do not exist: {missing:#?}");
    assert!(named.len() > 80, "only {} tests were found in the tables", named.len());
}

#[test]
fn every_case_has_one_line_with_a_test_or_a_reason() {
    let text = std::fs::read_to_string(root().join("tests/CASES.md")).expect("CASES.md is there");
    let (found, service) = (cases(&text, 'C'), cases(&text, 'S'));
    let ids: Vec<u32> = found.iter().map(|case| case.id).collect();
    assert_eq!(ids, IDS);
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    assert!(service.iter().map(|case| case.id).eq(SERVICE_IDS));
    for case in found.into_iter().chain(service) {
        assert!(!case.tests.is_empty() || !case.not_yet.is_empty(), "{case:?}");
        assert!(case.not_yet.is_empty() || case.not_yet.contains("step"), "{case:?}: which step?");
    }
}

#[test]
fn a_test_that_is_missing_or_is_no_test_is_noticed() {
    let text = "#[test]\n#[cfg(unix)]\nfn a_test() {\n}\nfn a_helper() {\n}\n#[test]\n    fn in_a_macro(x in 0..3) {";
    assert!(has_test(text, "a_test") && has_test(text, "in_a_macro"));
    assert!(!has_test(text, "a_helper") && !has_test(text, "a") && !has_test(text, "a_test_more"));
    let root = root();
    assert!(exists(&root, "cases::every_named_test_exists"));
    assert!(
        !exists(&root, "cases::has_test") && !exists(&root, "cases") && !exists(&root, "nowhere::a_test")
    );
    assert!(cases("| C07 | x | `a::b`, `c` | |", 'C')[0].tests == ["a::b"]);
}
