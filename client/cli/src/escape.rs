//! Text from outside, made safe for a terminal.
//!
//! A tensor name may hold any character: line breaks, escape sequences, right-to-left marks.
//! Tables and messages show those as `\n` or `\u{1b}`; JSON output carries names as they are.

use std::fmt::Write as _;

/// Longest name that a table or a message shows, in characters of the escaped text.
const SHOWN_CHARS: usize = 120;

/// `name` as one printable line, cut after 120 characters; an empty name reads `""`.
pub(crate) fn cell(name: &str) -> String {
    if name.is_empty() {
        return "\"\"".to_owned();
    }
    let mut cell = String::with_capacity(name.len().min(SHOWN_CHARS));
    let mut shown = 0;
    for (offset, character) in name.char_indices() {
        if shown >= SHOWN_CHARS {
            // Writing to a String cannot fail.
            let _ = write!(cell, "... ({} more bytes)", name.len() - offset);
            break;
        }
        shown += push_printable(&mut cell, character);
    }
    cell
}

/// `name` in double quotes, for messages.
pub(crate) fn quoted(name: &str) -> String {
    if name.is_empty() { cell(name) } else { format!("\"{}\"", cell(name)) }
}

/// `text` on one line without control characters, whatever its length.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for (idx, part) in text.split_inclusive(['\n', '\r']).enumerate() {
        let part = part.trim_end_matches(['\n', '\r']);
        let part = if idx == 0 { part } else { part.trim_start() };
        if idx > 0 && !part.is_empty() && !line.ends_with(' ') {
            line.push(' ');
        }
        for character in part.chars() {
            // A backslash is text here: the message may hold names that are escaped already.
            if character == '\\' {
                line.push('\\');
            } else {
                push_printable(&mut line, character);
            }
        }
    }
    line
}

/// Appends `character`, escaped where a terminal could act on it, and returns how many characters that took.
fn push_printable(out: &mut String, character: char) -> usize {
    if matches!(character, '\'' | '"') {
        out.push(character);
        return 1;
    }
    let escaped = character.escape_debug();
    let shown = escaped.clone().count();
    out.extend(escaped);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_shows_control_characters_as_escapes() {
        assert_eq!(cell("layer.0.weight"), "layer.0.weight");
        assert_eq!(cell("a\nb\t\x1b[31m\0"), r"a\nb\t\u{1b}[31m\0");
        assert_eq!(cell("../\\ \"q\" 'é' \u{202e}"), r#"../\\ "q" 'é' \u{202e}"#);
        assert_eq!(cell(""), "\"\"");
    }

    #[test]
    fn cell_cuts_a_long_name() {
        let cell = cell(&"x".repeat(65_536));
        assert!(cell.starts_with("xxx") && cell.ends_with("... (65416 more bytes)"), "{cell}");
        assert!(cell.len() < 160);
    }

    #[test]
    fn one_line_joins_lines_and_keeps_escapes() {
        assert_eq!(one_line("a:\n   b\r\n\r\n c\x1b"), r"a: b c\u{1b}");
        assert_eq!(one_line(r"tensor a\nb"), r"tensor a\nb");
        assert_eq!(one_line("plain"), "plain");
    }
}
