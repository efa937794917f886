//! The house rules that a program can check: folders, arrows between crates, unsafe islands, files, versions.
//!
//! Each rule is a function over texts, so that a planted violation can show that it is able to fail.
//! A finding names the file and the line.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/tables.rs"]
mod tables;

use tables::{EDGES, FOLDERS, FORBID, ISLANDS, MAX_LINES, ROOTS, TOP_LEVEL, UNFINISHED, VERSIONS};

#[derive(Debug)]
struct Finding {
    file: String,
    line: usize,
    text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.text)
    }
}

fn finding(file: &str, line: usize, text: impl Into<String>) -> Finding {
    Finding { file: file.to_owned(), line, text: text.into() }
}

#[track_caller]
fn nothing(findings: impl IntoIterator<Item = Finding>) {
    let told: Vec<_> = findings.into_iter().map(|finding| finding.to_string()).collect();
    assert!(told.is_empty(), "\n{}\n", told.join("\n"));
}

fn root() -> PathBuf {
    let tests = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    Path::new(&tests).parent().expect("the package lies in the repository").to_owned()
}

fn read(path: &str) -> String {
    let text = fs::read_to_string(root().join(path));
    nothing(text.as_ref().err().map(|error| finding(path, 1, error.to_string())));
    text.unwrap_or_default()
}

/// Paths from the root of every file in our folders, sorted.
fn files() -> Vec<String> {
    fn walk(folder: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && entry.file_name() != "target" => walk(&path, root, found),
                Ok(kind) if kind.is_file() => {
                    let path = path.strip_prefix(root).expect("walked from the root");
                    found.push(path.to_str().expect("our names are UTF-8").to_owned());
                }
                _ => {}
            }
        }
    }
    let (root, mut found) = (root(), Vec::new());
    FOLDERS.iter().for_each(|folder| walk(&root.join(folder), &root, &mut found));
    found.sort();
    assert!(found.len() > 50, "only {} files were found below {}", found.len(), root.display());
    found
}

/// Runs a rule over every Rust file that `which` names.
fn over_rust(which: impl Fn(&str) -> bool, rule: impl Fn(&str, &str) -> Vec<Finding>) -> Vec<Finding> {
    let files: Vec<_> = files().into_iter().filter(|path| path.ends_with(".rs") && which(path)).collect();
    assert!(!files.is_empty(), "the rule has no file to look at");
    files.iter().flat_map(|path| rule(path, &read(path))).collect()
}

fn line_at(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

fn lists(names: &str, name: &str) -> bool {
    names.split_whitespace().any(|listed| listed == name)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where `word` is on its own.
fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        let ends = |c: char| !is_word(c);
        (!word.starts_with(is_word) || before.chars().next_back().is_none_or(ends))
            && (!word.ends_with(is_word) || after.chars().next().is_none_or(ends))
    })
}

/// The code of a Rust file: comments and the insides of literals become spaces, lines stay where they are.
fn code_of(text: &str) -> String {
    let (mut code, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(first) = rest.chars().next() {
        let after_word = code.chars().next_back().is_some_and(is_word);
        let (len, is_code) = match first {
            '/' if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), false),
            '/' if rest.starts_with("/*") => (block_comment(rest), false),
            '"' => (string(rest), false),
            'r' | 'b' | 'c' if !after_word => raw_string(rest).map_or((1, true), |len| (len, false)),
            '\'' => character(rest).map_or((1, true), |len| (len, false)),
            _ => (first.len_utf8(), true),
        };
        let (token, left) = rest.split_at(len.min(rest.len()));
        if is_code {
            code.push_str(token);
        } else {
            code.extend(token.chars().map(|c| if c == '\n' { c } else { ' ' }));
        }
        rest = left;
    }
    code
}

fn block_comment(text: &str) -> usize {
    let (mut at, mut depth) = (2, 1);
    while depth > 0 && at < text.len() {
        let (step, deeper) = match &text.as_bytes()[at..] {
            [b'/', b'*', ..] => (2, 1),
            [b'*', b'/', ..] => (2, -1),
            _ => (1, 0),
        };
        (at, depth) = (at + step, depth + deeper);
    }
    at
}

fn string(text: &str) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|&(_, c)| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// `r"..."`, `br#"..."#` and the like.
fn raw_string(text: &str) -> Option<usize> {
    let hashed = text.trim_start_matches(['b', 'c']).strip_prefix('r')?;
    let start = hashed.trim_start_matches('#');
    let hashes = hashed.len() - start.len();
    let inside = start.strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = inside.find(&close).map_or(inside.len(), |at| at + close.len());
    Some(text.len() - inside.len() + end)
}

/// `'x'` or an escape; `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let inside = &text[1..];
    match inside.chars().next()? {
        '\\' => inside[2..].find('\'').map(|at| at + 4),
        c => inside[c.len_utf8()..].starts_with('\'').then_some(c.len_utf8() + 2),
    }
}

fn stray_entries(entries: &BTreeSet<String>) -> Vec<Finding> {
    let stray = entries.iter().filter(|entry| !lists(TOP_LEVEL, entry));
    stray.map(|entry| finding(entry, 1, "is not one of the top-level names")).collect()
}

/// Dependencies on our own crates in a manifest: line, whether only of tests, name without `tierpack-`.
fn own_dependencies(manifest: &str) -> Vec<(usize, bool, String)> {
    let (mut section, mut found) = (String::new(), Vec::new());
    let name_in = |text: &str| {
        let at = text.find("tierpack-")?;
        let name = &text[at + "tierpack-".len()..];
        Some(name.chars().take_while(|&c| is_word(c) || c == '-').collect::<String>())
    };
    for (n, line) in manifest.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(header) = line.strip_prefix('[') {
            header.trim_end_matches(']').clone_into(&mut section);
        }
        // Dotted keys, inline tables, `package = "tierpack-..."`, and `[dependencies.tierpack-...]` all name it.
        if section.contains("dependencies")
            && let Some(name) = name_in(line)
        {
            found.push((n + 1, section.contains("dev-dependencies"), name));
        }
    }
    found
}

fn wrong_edges(path: &str, manifest: &str) -> Vec<Finding> {
    let Some((_, normal, of_tests)) = EDGES.iter().find(|(known, ..)| *known == path) else {
        return vec![finding(path, 1, "a crate that has no place among the floors")];
    };
    let wrong = own_dependencies(manifest).into_iter().filter(|(_, is_dev, name)| {
        !(normal.contains(&name.as_str()) || *is_dev && of_tests.contains(&name.as_str()))
    });
    wrong
        .map(|(line, _, name)| finding(path, line, format!("an arrow to `{name}` that is not allowed")))
        .collect()
}

fn beyond_types(path: &str, text: &str) -> Vec<Finding> {
    let uses =
        words(text, "tierpack_shm").filter(|at| !text[at + "tierpack_shm".len()..].starts_with("::types"));
    uses.map(|at| finding(path, line_at(text, at), "kernels uses shm::types and nothing else of shm"))
        .collect()
}

fn unsafe_outside_islands(path: &str, text: &str) -> Vec<Finding> {
    let code = code_of(text);
    let lines: Vec<_> = words(&code, "unsafe").map(|at| line_at(&code, at)).collect();
    match (ISLANDS.contains(&path), lines.is_empty()) {
        (true, true) => vec![finding(path, 1, "is listed as an island and needs no `unsafe`")],
        (true, false) if !code.contains("unsafe_code") => {
            vec![finding(path, 1, "opens no lint for its `unsafe`")]
        }
        (false, false) => {
            lines.iter().map(|line| finding(path, *line, "`unsafe` outside the islands")).collect()
        }
        _ => Vec::new(),
    }
}

fn missing_attribute(path: &str, text: &str, attribute: &str) -> Vec<Finding> {
    let code = code_of(text);
    let found = code.lines().any(|line| line.trim() == attribute);
    if found { Vec::new() } else { vec![finding(path, 1, format!("has no `{attribute}`"))] }
}

fn too_long(path: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().count();
    let fits = lines <= MAX_LINES;
    if fits { Vec::new() } else { vec![finding(path, lines, format!("over {MAX_LINES} lines"))] }
}

fn without_opening(path: &str, text: &str) -> Vec<Finding> {
    let opens = text.lines().find(|line| !line.trim().is_empty()).is_some_and(|line| line.starts_with("//!"));
    if opens { Vec::new() } else { vec![finding(path, 1, "does not start with `//!`")] }
}

fn is_under_src(path: &str) -> bool {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    format!("{folder}/").contains("/src/") && name != "tests.rs" && !folder.contains("/src/tests")
}

/// The value of `pub const NAME: type = ...;`, through a variant of an enum if it names one.
fn constant(code: &str, name: &str) -> Option<String> {
    let after = |head: &str| {
        let at = words(code, head).next()?;
        let value = code[at..].split_once('=')?.1;
        Some(value.split([';', ',', '}']).next()?.trim().to_owned())
    };
    let value = after(&format!("const {name}"))?;
    match value.split_once("::") {
        Some((_, variant)) => after(variant.split_whitespace().next()?),
        None => Some(value),
    }
}

fn wrong_version(path: &str, text: &str, head: &str, source: &str, name: &str) -> Vec<Finding> {
    let mut lines = text.lines().enumerate();
    let stated = lines.find_map(|(n, line)| Some((n + 1, line.strip_prefix(head)?.trim())));
    match (stated, constant(&code_of(source), name)) {
        (Some((_, stated)), Some(value)) if stated == value => Vec::new(),
        (Some((line, stated)), value) => {
            vec![finding(path, line, format!("says {head}{stated}, and {name} is {value:?}"))]
        }
        (None, _) => vec![finding(path, 1, format!("has no line `{head}`"))],
    }
}

fn raw_atomics(path: &str, text: &str) -> Vec<Finding> {
    let code = code_of(text);
    let named = words(&code, "atomic").filter_map(|at| {
        let rest = code[at + "atomic".len()..].strip_prefix("::")?;
        // One name, or a group of names.
        let ends = |c: char| if rest.starts_with('{') { c == '}' } else { !is_word(c) };
        let named = rest.split(ends).next().unwrap_or(rest);
        let banned = ["AtomicU64", "AtomicU32"].into_iter().find(|name| words(named, name).next().is_some());
        Some(finding(path, line_at(&code, at), format!("{} outside sync.rs", banned?)))
    });
    named.collect()
}

fn unfinished(path: &str, text: &str) -> Vec<Finding> {
    let found = UNFINISHED.iter().flat_map(|mark| words(text, mark).map(move |at| (at, mark)));
    found.map(|(at, mark)| finding(path, line_at(text, at), format!("`{mark}` does not land"))).collect()
}

/// Paths in backticks that name no file or folder of ours.
fn missing_paths(path: &str, text: &str, files: &[String]) -> Vec<Finding> {
    let is_path = |token: &str| {
        let plain = token.chars().all(|c| is_word(c) || "./-".contains(c)) && !token.starts_with(['/', '-']);
        let is_file = [".rs", ".md", ".toml", ".py", ".sh"].iter().any(|end| token.ends_with(end));
        plain && (is_file || token.split_once('/').is_some_and(|(first, _)| FOLDERS.contains(&first)))
    };
    let exists = |token: &str| {
        let token = token.trim_end_matches('/');
        files.iter().any(|file| {
            file == token
                || file.strip_suffix(token).is_some_and(|before| before.ends_with('/'))
                || file.strip_prefix(token).is_some_and(|after| after.starts_with('/'))
        })
    };
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let tokens = line.split('`').skip(1).step_by(2);
        let missing = tokens.filter(|token| is_path(token) && !exists(token));
        found.extend(missing.map(|token| finding(path, n + 1, format!("`{token}` does not exist"))));
    }
    found
}

#[test]
fn the_top_level_has_only_its_fixed_names() {
    let entries = fs::read_dir(root()).expect("the root can be listed").flatten();
    nothing(stray_entries(&entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()));
    assert_eq!(stray_entries(&["shm".to_owned(), "scratch".to_owned()].into()).len(), 1);
}

#[test]
fn arrows_between_crates_point_down() {
    let manifests: Vec<_> = files().into_iter().filter(|path| path.ends_with("/Cargo.toml")).collect();
    assert_eq!(manifests.len(), EDGES.len(), "{manifests:?}");
    nothing(manifests.iter().flat_map(|path| wrong_edges(path, &read(path))));
    for up in [
        "[dependencies]\ntierpack-daemon.workspace = true",
        "[dependencies.tierpack-daemon]\nworkspace = true",
        "[dependencies]\nx = { path = \"../daemon\", package = \"tierpack-daemon\" }",
        "[target.'cfg(unix)'.dependencies]\ntierpack-daemon = { workspace = true }",
    ] {
        assert_eq!(wrong_edges("client/Cargo.toml", up).len(), 1, "{up}");
        assert_eq!(
            wrong_edges("client/Cargo.toml", &up.replace("dependencies", "dev-dependencies")).len(),
            0
        );
        assert_eq!(
            wrong_edges("kernels/Cargo.toml", &up.replace("dependencies", "dev-dependencies")).len(),
            1
        );
    }
    assert_eq!(wrong_edges("new/Cargo.toml", "").len(), 1);
}

#[test]
fn kernels_uses_only_the_types_of_shm() {
    nothing(over_rust(|path| path.starts_with("kernels/"), beyond_types));
    assert_eq!(
        beyond_types("x", "use tierpack_shm::types::Dtype;\nuse tierpack_shm::{pool, types};")[0].line,
        2
    );
}

#[test]
fn unsafe_stands_only_in_its_islands() {
    nothing(over_rust(|_| true, unsafe_outside_islands));
    nothing(
        ISLANDS
            .iter()
            .filter(|path| !root().join(path).is_file())
            .map(|path| finding(path, 1, "is listed as an island and does not exist")),
    );
    let planted =
        "// unsafe\n/* /* unsafe */ unsafe */ \"unsafe \\\" unsafe\" r#\"\"unsafe\"#\n'\"' '\\'' unsafe {}";
    let found = unsafe_outside_islands("x.rs", planted);
    assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [3]);
    assert_eq!(unsafe_outside_islands("x.rs", "fn f<'a>(x: &'a str) { unsafe { g('\\u{41}') } }").len(), 1);
    assert_eq!(unsafe_outside_islands("shm/src/fork.rs", "fn f() {}").len(), 1);
    assert_eq!(unsafe_outside_islands("shm/src/fork.rs", "unsafe {}").len(), 1);
}

#[test]
fn every_crate_root_forbids_or_denies_unsafe() {
    nothing(ROOTS.iter().flat_map(|(path, attribute)| missing_attribute(path, &read(path), attribute)));
    let is_root = |path: &str| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    let unlisted = |path: &str, _: &str| match ROOTS.iter().any(|(root, _)| *root == path) {
        true => Vec::new(),
        false => vec![finding(path, 1, "is a crate root that the tidy test does not know")],
    };
    nothing(over_rust(is_root, unlisted));
    assert_eq!(missing_attribute("x", "// #![forbid(unsafe_code)]", FORBID).len(), 1);
    assert_eq!(missing_attribute("x", "#![deny(unsafe_code)]", FORBID).len(), 1);
}

#[test]
fn files_are_short_and_open_with_what_they_are_for() {
    nothing(over_rust(|_| true, too_long));
    nothing(over_rust(is_under_src, without_opening));
    assert_eq!(too_long("x", &"\n".repeat(MAX_LINES + 1)).len(), 1);
    assert_eq!(too_long("x", &"\n".repeat(MAX_LINES)).len(), 0);
    assert_eq!(without_opening("x", "\nuse std::fs;\n//! late").len(), 1);
    assert!(is_under_src("shm/src/pool.rs") && is_under_src("tests/src/bin/x.rs"));
    assert!(!is_under_src("kernels/src/block/tests.rs") && !is_under_src("tests/tests/tidy.rs"));
}

#[test]
fn versions_in_texts_equal_the_constants() {
    nothing(
        VERSIONS.iter().flat_map(|(path, head, source, name)| {
            wrong_version(path, &read(path), head, &read(source), name)
        }),
    );
    let source = "enum P { V1 = 1, V2 = 2 }\npub const P_VERSION: u16 = P::V2 as u16;\nconst L: u16 = 7;";
    assert_eq!(wrong_version("x", "Version: 2", "Version: ", source, "P_VERSION").len(), 0);
    assert_eq!(wrong_version("x", "Version: 1", "Version: ", source, "P_VERSION").len(), 1);
    assert_eq!(wrong_version("x", "Version: 8", "Version: ", source, "L").len(), 1);
    assert_eq!(wrong_version("x", "nothing", "Version: ", source, "L").len(), 1);
    assert_eq!(wrong_version("x", "Version: 7", "Version: ", source, "GONE").len(), 1);
}

#[test]
fn shm_takes_its_atomics_from_sync() {
    nothing(over_rust(|path| path.starts_with("shm/src/") && path != "shm/src/sync.rs", raw_atomics));
    let grouped = "use std::sync::atomic::{\n    AtomicBool,\n    AtomicU64,\n};";
    for planted in
        [grouped, "let x = std::sync::atomic::AtomicU32::new(0);", "use core::sync::atomic::AtomicU64;"]
    {
        assert_eq!(raw_atomics("x", planted).len(), 1, "{planted}");
    }
    assert_eq!(raw_atomics("x", "use std::sync::atomic::{AtomicBool, AtomicI32};").len(), 0);
}

#[test]
fn nothing_unfinished_lands() {
    let texts =
        files().into_iter().filter(|path| [".rs", ".md", ".toml"].iter().any(|end| path.ends_with(end)));
    nothing(texts.flat_map(|path| unfinished(&path, &read(&path))));
    UNFINISHED
        .iter()
        .for_each(|mark| assert_eq!(unfinished("x", &format!("a\n {mark}:"))[0].line, 2, "{mark}"));
    assert_eq!(unfinished("x", concat!("MAS", "TO", "DO")).len(), 0);
}

#[test]
fn paths_in_the_architecture_exist() {
    let files = files();
    for path in ["ARCHITECTURE.md", "docs/internals.md", "docs/decisions.md", "docs/development.md"] {
        nothing(missing_paths(path, &read(path), &files));
    }
    let text = "`shm/src/pool.rs` `kernels` `pool.rs` `shm/src/`\n`a / b` `shm::pool` `shm/src/gone.rs` `gone.rs` `docs/x`";
    let found = missing_paths("x", text, &files);
    assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2, 2, 2]);
}
