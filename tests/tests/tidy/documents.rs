//! Documents: how long the first two may be, that links lead somewhere; and words that they and comments do without.

use super::{Finding, files, finding, nothing, over_rust, read};

/// Documents for people, and the bytes that each may have.
const LENGTHS: &[(&str, usize)] = &[("README.md", 9_000), ("ARCHITECTURE.md", 8_000)];

/// Words of a private dialect, which plain ones replace: functions return, values are passed, state is.
const BANNED: &[&str] = &["gives", "gave", "given", "told", "anew", "stands", "beside", "whoever"];

/// Documents of the root, which [`files`] leaves out.
const ROOT: [&str; 3] = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"];

fn banned(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let words = line.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase);
        let bad = words.filter(|word| BANNED.contains(&&word[..]));
        found.extend(bad.map(|word| finding(path, n + 1, format!("{word:?}: use a plain word"))));
    }
    found
}

/// The same in the comments of a Rust file.
fn banned_in_comments(path: &str, text: &str) -> Vec<Finding> {
    let comment = |line: &str| line.split_once("//").map_or("", |(_, comment)| comment).to_owned();
    let comments: Vec<_> = text.lines().map(comment).collect();
    banned(path, &comments.join("\n"))
}

/// Links to files of the repository that are not there.
fn broken_links(path: &str, text: &str, files: &[String]) -> Vec<Finding> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let resolve = |link: &str| {
        let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
        for part in link.split('/') {
            match part {
                ".." => parts.truncate(parts.len().saturating_sub(1)),
                part => parts.push(part),
            }
        }
        parts.join("/")
    };
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let links = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        let local = links.filter(|link| !link.is_empty() && !link.contains("://"));
        let broken = local.filter(|link| !files.contains(&resolve(link)));
        found.extend(broken.map(|link| finding(path, n + 1, format!("{link} does not exist"))));
    }
    found
}

#[test]
fn documents_are_short_plain_and_linked() {
    let mut files = files();
    files.extend(ROOT.map(str::to_owned));
    let in_docs = |path: &&String| {
        ["docs/", "kernels/", "shm/"].iter().any(|folder| path.starts_with(folder)) && path.ends_with(".md")
    };
    for path in files.iter().filter(in_docs).map(String::as_str).chain(["README.md", "ARCHITECTURE.md"]) {
        let text = read(path);
        nothing(banned(path, &text));
        nothing(broken_links(path, &text, &files));
    }
    let is_product =
        |path: &str| path.contains("/src/") && !path.starts_with("tests/") && !path.contains("/bench/");
    nothing(over_rust(is_product, banned_in_comments));
    for (path, most) in LENGTHS {
        let bytes = read(path).len();
        assert!(bytes <= *most, "{path} has {bytes} bytes, at most {most} are right: move details to docs/");
    }
    assert_eq!(banned("x", "It stands\nbeside. Notgiven, understands").len(), 2);
    assert_eq!(banned_in_comments("x", "let told = 1; // anew\n/// fine").len(), 1);
    let links = "[a](guide.md) [b](../README.md#x) [c](https://x) [d](#e)\n[f](gone.md)";
    let found = broken_links("docs/x.md", links, &["docs/guide.md".to_owned(), "README.md".to_owned()]);
    assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
}
