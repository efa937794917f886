//! Reading hostile files, and writing what the safetensors crate reads back.

use std::path::Path;

use safetensors::SafeTensors;
use tierpack_client::{Access, CodecId, Entry};

use super::*;

/// A file with this header and `data_len` bytes of data.
fn file(header: &str, data_len: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend((0..=250).cycle().take(data_len));
    bytes
}

fn read_bytes(bytes: &[u8]) -> Result<Contents> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), bytes)?;
    read(&SourceFile::open(file.path())?)
}

/// The refusal of `bytes`, as the command line prints it.
fn refusal(bytes: &[u8]) -> String {
    let text = format!("{:#}", read_bytes(bytes).unwrap_err());
    assert!(!text.contains('\n'), "{text}");
    assert!(text.len() < 1000, "{} bytes: {text}", text.len());
    text
}

#[test]
fn reads_every_kind_of_tensor() {
    let header = r#"{"__metadata__":{"step":"7"},"b":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},
        "empty":{"dtype":"F32","shape":[0,384],"data_offsets":[8,8]},
        "scalar\n":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},
        "f4":{"dtype":"F4","shape":[3,2],"data_offsets":[10,13]}}   "#;
    let contents = read_bytes(&file(header, 13)).unwrap();
    assert_eq!(contents.metadata, BTreeMap::from([("step".to_owned(), "7".to_owned())]));
    let start = 8 + header.len() as u64;
    let found: Vec<_> = contents
        .tensors
        .iter()
        .map(|t| (t.name.as_str(), t.dtype, t.shape.clone(), t.range.start - start, t.raw_bytes()))
        .collect();
    let expected = [
        ("b", Dtype::I64, vec![1], 0, 8),
        ("empty", Dtype::F32, vec![0, 384], 8, 0),
        ("scalar\n", Dtype::Bf16, vec![], 8, 2),
        ("f4", Dtype::F4, vec![3, 2], 10, 3),
    ];
    assert_eq!(found, expected);
}

#[test]
fn refuses_lengths_that_lie() {
    assert!(refusal(b"").contains("the file has 0 bytes, its header length alone needs 8"));
    assert!(refusal(&[0; 7]).contains("the file has 7 bytes"));
    assert!(refusal(&[0; 8]).contains("does not start with {"));
    let mut bytes = file("{}", 0);
    bytes[..8].copy_from_slice(&(1_u64 << 63).to_le_bytes());
    assert!(
        refusal(&bytes).contains("a header of 9223372036854775808 bytes is above the limit of 100000000")
    );
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(refusal(&bytes).contains("a header of 18446744073709551615 bytes is above"));
    bytes[..8].copy_from_slice(&99_999_999_u64.to_le_bytes());
    assert!(refusal(&bytes).contains("a header of 99999999 bytes does not fit the file, which has 10 bytes"));
    bytes[..8].copy_from_slice(&2_u64.to_be_bytes());
    assert!(refusal(&bytes).contains("read as big-endian it is 2"));
}

#[test]
fn refuses_ranges_that_do_not_tile_the_data() {
    let two = |first: [u64; 2], second: [u64; 2]| {
        let header = format!(
            r#"{{"a":{{"dtype":"U8","shape":[{}],"data_offsets":{first:?}}},"b":{{"dtype":"U8","shape":[{}],"data_offsets":{second:?}}}}}"#,
            first[1].wrapping_sub(first[0]),
            second[1].wrapping_sub(second[0]),
        );
        refusal(&file(&header, 8))
    };
    assert!(
        two([0, 5], [4, 8])
            .contains("\"b\": its data offsets [4, 8] overlap another tensor, which ends at 5")
    );
    assert!(two([0, 3], [4, 8]).contains("bytes 3 to 4 belong to no tensor"));
    assert!(two([1, 4], [4, 8]).contains("bytes 0 to 1 belong to no tensor"));
    assert!(two([0, 4], [4, 9]).contains("pass the end of the data, which has 8 bytes"));
    assert!(two([0, 4], [4, 7]).contains("the file holds 8 bytes of data, but the header describes 7"));
    let backwards = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}"#;
    assert!(refusal(&file(backwards, 4)).contains("[4, 0] run backwards"));
    let size = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#;
    assert!(refusal(&file(size, 4)).contains("its shape needs 8 bytes as F32, its data offsets hold 4"));
    let overflow = r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}"#;
    assert!(refusal(&file(overflow, 4)).contains("not a whole number of bytes below 2^61"));
}

#[test]
fn refuses_equal_keys() {
    let tensor = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let cases = [
        (format!(r#"{{"a":{tensor},"b":{tensor},"a":{tensor}}}"#), "tensor \"a\" appears twice"),
        (format!(r#"{{"a":{tensor},"\u0061":{tensor}}}"#), "tensor \"a\" appears twice"),
        (r#"{"__metadata__":{},"__metadata__":{}}"#.to_owned(), "\"__metadata__\" appears twice"),
        (r#"{"__metadata__":{"k":"1","k":"1"}}"#.to_owned(), "key \"k\" appears twice"),
        (
            r#"{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#.to_owned(),
            "duplicate field `dtype`",
        ),
    ];
    for (header, message) in cases {
        let text = refusal(&file(&header, 0));
        assert!(text.contains(message), "{text}");
    }
}

#[test]
fn refuses_text_that_is_no_header() {
    let nested = format!(r#"{{"a":{}"#, "[".repeat(100_000));
    let cases: [(&[u8], &str); 10] = [
        (b"{\"a\xff\":1}", "not UTF-8"),
        (nested.as_bytes(), "nested deeper than 127 at byte 131"),
        (b"[]", "does not start with {"),
        (b" {}", "does not start with {"),
        (b"{} x", "trailing characters"),
        (b"{\"a\":", "EOF"),
        (br#"{"__metadata__":{"k":1}}"#, "expected a string"),
        (br#"{"__metadata__":[]}"#, "expected an object of strings"),
        (br#"{"a":{"dtype":"F33","shape":[],"data_offsets":[0,0]}}"#, "tensor \"a\": unknown variant `F33`"),
        (br#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}}"#, "invalid value: integer `-1`"),
    ];
    for (header, message) in cases {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        let text = refusal(&bytes);
        assert!(text.contains(message), "{text}");
    }
    let unknown_field = format!(
        r#"{{"a":{{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":{}{}}}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert!(refusal(&file(&unknown_field, 0)).contains("nested deeper than 127"));
}

#[test]
fn refuses_names_and_ranks_beyond_the_limits() {
    let name = |name: &str| format!(r#"{{"{name}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#);
    let text = refusal(&file(&name(&"x".repeat(65_536)), 0));
    assert!(text.contains("a name of 65536 bytes is above the limit of 4096"), "{text}");
    assert!(read_bytes(&file(&name(&"x".repeat(4096)), 0)).is_ok());
    assert_eq!(read_bytes(&file(&name(""), 0)).unwrap().tensors[0].name, "");
    assert_eq!(read_bytes(&file(&name("../\\u0000\\n"), 0)).unwrap().tensors[0].name, "../\0\n");
    let rank = format!(r#"{{"a":{{"dtype":"U8","shape":[{}0],"data_offsets":[0,0]}}}}"#, "1,".repeat(64));
    assert!(refusal(&file(&rank, 0)).contains("65 dimensions are above the limit of 64"));
}

#[test]
fn a_million_tensors_are_read_in_bounded_memory() {
    let mut header = String::from("{");
    for idx in 0..200_000_u64 {
        let (begin, end) = (idx * 8, idx * 8 + 8);
        header += &format!(r#""t{idx}":{{"dtype":"I64","shape":[1],"data_offsets":[{begin},{end}]}},"#);
    }
    header.pop();
    header.push('}');
    let contents = read_bytes(&file(&header, 1_600_000)).unwrap();
    assert_eq!(contents.tensors.len(), 200_000);
}

/// Whatever one changed or missing byte does to a small file: we take it exactly when the safetensors crate does.
#[test]
fn accepts_what_the_safetensors_crate_accepts() {
    let header = concat!(
        r#"{"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"#,
        r#""b":{"dtype":"I16","shape":[1,1],"data_offsets":[2,4]}}"#
    );
    let good = file(header, 4);
    assert!(read_bytes(&good).is_ok());
    let mut accepted = 0;
    for idx in 0..good.len() {
        for change in [1_u8, 2, 16, 0x80] {
            let mut bytes = good.clone();
            bytes[idx] ^= change;
            let theirs = SafeTensors::deserialize(&bytes);
            let ours = read_bytes(&bytes);
            // A changed name may meet the other tensor's name or turn empty, and only we refuse that.
            if ours.is_ok() != theirs.is_ok() {
                let text = format!("{:#}", ours.unwrap_err());
                assert!(text.contains("appears twice"), "byte {idx} ^ {change}: {text}");
            } else {
                accepted += u32::from(theirs.is_ok());
            }
        }
        let short = &good[..idx];
        assert!(read_bytes(short).is_err() && SafeTensors::deserialize(short).is_err(), "{idx} bytes");
    }
    assert!(accepted > 20);
}

fn entry(name: &str, dtype: Dtype, shape: &[u64]) -> Entry {
    let raw_bytes = super::super::raw_len(dtype, shape).unwrap();
    Entry {
        namespace: "default".into(),
        name: name.into(),
        dtype,
        shape: shape.to_vec(),
        codec: CodecId::Raw,
        access: Access::Rows,
        raw_bytes,
        stored_bytes: raw_bytes,
        revision: 1,
        generation: 0,
        predicted_bytes: 0,
        runner_up: None,
        escapes: 0,
        participating: 0,
    }
}

fn write(target: &Path, entries: Vec<Entry>, metadata: &BTreeMap<String, String>) -> Result<()> {
    let plan = Plan::new(entries)?;
    let mut output = Output::create(target, &plan, metadata)?;
    for entry in plan.entries() {
        output.write(&bytes_of(entry))?;
    }
    output.finish()
}

fn bytes_of(entry: &Entry) -> Vec<u8> {
    (0..=255).cycle().skip(entry.name.len()).take(usize::try_from(entry.raw_bytes).unwrap()).collect()
}

#[test]
fn writes_the_bytes_that_the_safetensors_crate_writes() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out.safetensors");
    let mut entries: Vec<_> = Dtype::ALL.iter().map(|&dtype| entry(dtype.name(), dtype, &[4, 3])).collect();
    entries.extend([
        entry("scalar", Dtype::Bf16, &[]),
        entry("empty\n\u{1b}\"\\é\0", Dtype::F32, &[0, 384]),
        entry("a", Dtype::U64, &[1]),
    ]);
    let metadata = BTreeMap::from([("license".to_owned(), "line\nbreak".to_owned())]);
    write(&target, entries.clone(), &metadata).unwrap();

    let data: Vec<_> = entries.iter().map(|entry| (entry, bytes_of(entry))).collect();
    let views = data.iter().map(|(entry, bytes)| {
        let shape = entry.shape.iter().map(|&n| usize::try_from(n).unwrap()).collect();
        let dtype = to_file_dtype(entry.dtype).unwrap();
        (entry.name.as_str(), safetensors::tensor::TensorView::new(dtype, shape, bytes).unwrap())
    });
    let expected = safetensors::serialize(views, Some(metadata.into_iter().collect())).unwrap();
    let written = std::fs::read(&target).unwrap();
    assert_eq!(written, expected);

    let ours = read(&SourceFile::open(&target).unwrap()).unwrap();
    assert_eq!(ours.tensors.len(), entries.len());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn an_unfinished_file_leaves_the_old_one_alone() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out.safetensors");
    std::fs::write(&target, b"old").unwrap();
    let plan = Plan::new(vec![entry("a", Dtype::U8, &[4])]).unwrap();
    let mut output = Output::create(&target, &plan, &BTreeMap::new()).unwrap();
    output.write(&[1, 2]).unwrap();
    assert!(output.write(&[3, 4, 5]).unwrap_err().to_string().contains("3 bytes where only 2 are left"));
    drop(output);
    let output = Output::create(&target, &plan, &BTreeMap::new()).unwrap();
    assert!(output.finish().unwrap_err().to_string().contains("4 bytes are missing"));
    assert_eq!(std::fs::read(&target).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn refuses_targets_and_names_that_a_file_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan::new(vec![entry("a", Dtype::U8, &[4])]).unwrap();
    for (target, message) in [
        (dir.path().to_owned(), "is a folder: choose another output"),
        (dir.path().join("none/x"), "create a temporary file in"),
    ] {
        let error = Output::create(&target, &plan, &BTreeMap::new()).unwrap_err();
        assert!(format!("{error:#}").contains(message), "{error:#}");
    }
    let error = Plan::new(vec![entry("__metadata__", Dtype::U8, &[1])]).unwrap_err();
    assert!(error.to_string().contains("reserves that name"));
}

#[test]
fn a_link_to_the_target_stays_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let (target, link) = (dir.path().join("real"), dir.path().join("link"));
    std::fs::write(&target, b"old").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    write(&link, vec![entry("a", Dtype::U8, &[4])], &BTreeMap::new()).unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(SafeTensors::deserialize(&std::fs::read(&target).unwrap()).is_ok());
}
