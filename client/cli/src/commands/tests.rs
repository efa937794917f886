//! Choosing tensors and listing them.

use tierpack_client::{Access, CodecId, Dtype};

use super::*;

fn entry(name: &str, raw_bytes: u64, stored_bytes: u64) -> Entry {
    Entry {
        namespace: "default".into(),
        name: name.into(),
        dtype: Dtype::U8,
        shape: vec![raw_bytes],
        codec: CodecId::Raw,
        access: Access::Rows,
        raw_bytes,
        stored_bytes,
        revision: 1,
        generation: 0,
        predicted_bytes: 0,
        runner_up: None,
        escapes: 0,
        participating: 0,
    }
}

#[test]
fn a_selection_names_what_is_missing() {
    let entries = || vec![entry("a", 1, 1), entry("b", 1, 1), entry("c\n", 1, 1)];
    let choose = |names: &[&str], all| {
        let selection = Selection { names: names.iter().map(|&name| name.to_owned()).collect(), all };
        selection.choose(entries(), "ns").map(|chosen| chosen.into_iter().map(|e| e.name).collect::<Vec<_>>())
    };
    assert_eq!(choose(&[], true).unwrap(), ["a", "b", "c\n"]);
    assert_eq!(choose(&["c\n", "a", "a"], false).unwrap(), ["a", "c\n"]);
    let error = choose(&["a", "x\n", "y", "y"], false).unwrap_err().to_string();
    assert_eq!(error, r#"2 of 3 names are not in namespace "ns", the first is "x\n": see `tierpack ls`"#);
}

#[test]
fn a_json_line_holds_the_name_as_it_is() {
    let entry = entry("a\"\n\u{1b}é\0", 200, 100);
    let text = serde_json::to_string(&Line::from(&entry)).unwrap();
    assert!(!text.contains('\n') && !text.contains('\u{1b}'));
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["name"], "a\"\n\u{1b}é\0");
    assert_eq!(json["dtype"], "U8");
    assert_eq!(json["codec"], "raw");
    assert_eq!(json["saved_percent"], 50.0);
    assert_eq!(json["shape"], serde_json::json!([200]));
}

#[test]
fn a_table_ends_with_the_sums() {
    let entries = [entry("a", 1024, 512), entry("b", 1024, 1024)];
    let mut table = Table::new(&ENTRY_COLUMNS);
    entries.iter().for_each(|entry| table.row(entry_cells(entry)));
    add_total(&mut table, &entries, 4);
    let mut out = Vec::new();
    table.write(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.ends_with("2 tensors                        2.00 KiB  1.50 KiB    25.00\n"), "{text}");
}
