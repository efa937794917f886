//! Bad input: every malformed file, name, index and size is one line of error, and the daemon does not notice.

use tierpack_client::{Dtype, Error};
use tierpack_tests::files::{self, FileTensor, Metadata, Tensors};
use tierpack_tests::program::{assert_says, error_line};
use tierpack_tests::{Daemon, data, full};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

/// A daemon that holds one tensor, and what must not change.
struct Witness {
    daemon: Daemon,
    instance: String,
    used_bytes: u64,
    bytes: Vec<u8>,
}

impl Witness {
    fn new() -> Self {
        let daemon = Daemon::start(PROGRAM, &["--pool-size", "32MiB", "--lock", "off"]);
        let mut bytes = vec![0; 100 * 64];
        data::fill(&mut bytes, 1, 1, 0);
        daemon.client().put("kept", Dtype::U64, &[100, 8], &bytes).expect("a small tensor");
        let stats = daemon.quiet();
        Self { daemon, instance: stats.instance, used_bytes: stats.pool.used_bytes, bytes }
    }

    /// The daemon is the same, holds what it held, and works.
    fn check(&self, after: &str) {
        let stats = self.daemon.quiet();
        assert_eq!(stats.instance, self.instance, "{after}");
        assert_eq!((stats.pool.used_bytes, stats.pool.reserved_bytes), (self.used_bytes, 0), "{after}");
        assert_eq!(stats.transfers, 0, "{after}");
        let names: Vec<String> =
            self.daemon.client().list_all().expect("a list").into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["kept"], "{after}");
        let kept = self.daemon.client().get("kept").expect("the tensor is there");
        assert_eq!(kept.as_bytes(), self.bytes, "{after}");
    }

    /// `put` of such a file is refused with a line that says all of `parts`, and nothing has changed.
    fn refuses(&self, name: &str, bytes: &[u8], parts: &[&str]) {
        let path = self.daemon.file(name, bytes);
        let error = error_line(&self.daemon.run(&["put", &path]));
        assert_says(&error, &[parts, &[name]].concat());
        self.check(&error);
        std::fs::remove_file(path).expect("the file is there");
    }
}

fn header(text: &str, data_len: usize) -> Vec<u8> {
    files::with_header(text.as_bytes(), &vec![7; data_len])
}

/// One tensor of U8 with these offsets.
fn range(shape: u64, begin: u64, end: u64) -> String {
    format!(r#"{{"a":{{"dtype":"U8","shape":[{shape}],"data_offsets":[{begin},{end}]}}}}"#)
}

#[test]
fn malformed_safetensors_files_are_refused_with_the_numbers() {
    let witness = Witness::new();
    let good = range(64, 0, 64);
    let long_name =
        format!(r#"{{"{}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#, "n".repeat(65_536));
    let two = |first: (u64, u64), second: (u64, u64)| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}},"b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}}"#,
            first.1 - first.0,
            first.0,
            first.1,
            second.1 - second.0,
            second.0,
            second.1
        )
    };
    let twice = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let cases: &[(&str, Vec<u8>, &[&str])] = &[
        ("empty", vec![], &["0 bytes", "8"]),
        ("short prefix", vec![1; 7], &["7 bytes"]),
        ("truncated header", header(&good, 0)[..40].to_vec(), &["does not fit", "40 bytes"]),
        ("truncated data", header(&good, 63), &["\"a\"", "[0, 64]", "63 bytes"]),
        ("trailing data", header(&good, 65), &["65 bytes", "64"]),
        (
            "length 2^63",
            [&(1_u64 << 63).to_le_bytes()[..], good.as_bytes()].concat(),
            &["9223372036854775808"],
        ),
        ("length 2^64-1", [&u64::MAX.to_le_bytes()[..], good.as_bytes()].concat(), &["18446744073709551615"]),
        ("length 100 MB", [&100_000_001_u64.to_le_bytes()[..], good.as_bytes()].concat(), &["100000001"]),
        (
            "big-endian",
            [&(good.len() as u64).to_be_bytes()[..], good.as_bytes(), &[7; 64]].concat(),
            &["malformed", "big-endian", "little-endian"],
        ),
        ("lying shape", header(&range(65, 0, 64), 64), &["\"a\"", "65 bytes", "64"]),
        ("backwards", header(&range(1, 64, 0), 64), &["[64, 0]", "backwards"]),
        ("overlap", header(&two((0, 8), (4, 12)), 12), &["\"b\"", "overlap", "8"]),
        ("hole", header(&two((0, 8), (9, 12)), 12), &["\"b\"", "hole", "8 to 9"]),
        ("2^64 elements", header(&range(u64::MAX, 0, 64), 64), &["\"a\""]),
        (
            "overflow",
            header(&good.replace("[64]", "[4294967296,4294967296]"), 64),
            &["\"a\"", "2 dimensions"],
        ),
        ("unknown dtype", header(&good.replace("U8", "F13"), 64), &["\"a\"", "F13"]),
        ("two equal keys", header(twice, 1), &["\"a\"", "twice"]),
        ("no JSON", header("{\"a\":", 0), &["5 bytes", "malformed"]),
        ("an array", header("[]", 0), &["does not start with {"]),
        ("not UTF-8", files::with_header(b"{\"\xff\":1}", b""), &["UTF-8", "7 bytes"]),
        ("deep", header(&format!("{{\"a\":{}", "[".repeat(100_000)), 0), &["nested", "127"]),
        ("64 KiB name", header(&long_name, 1), &["65536 bytes", "4096"]),
        ("metadata of numbers", header(r#"{"__metadata__":{"a":1}}"#, 0), &["malformed"]),
    ];
    for (name, bytes, parts) in cases {
        witness.refuses(&format!("{name}.safetensors"), bytes, parts);
    }
}

#[test]
fn malformed_npy_files_are_refused_with_the_numbers() {
    let witness = Witness::new();
    let good = files::npy("<f4", &[4], &[1; 16]);
    let changed = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = good.windows(from.len()).position(|window| window == from.as_bytes()).expect("it is there");
        [&good[..at], to.as_bytes(), &good[at + from.len()..]].concat()
    };
    let mut fortran = files::npy("<f4", &[2, 2], &[1; 16]);
    let at = fortran.windows(6).position(|window| window == b"False,").expect("it is there");
    fortran[at..at + 6].copy_from_slice(b"True, ");
    let cases: &[(&str, Vec<u8>, &[&str])] = &[
        // C11: rows that do not follow each other are refused, never stored in the wrong order.
        ("Fortran order", fortran, &["[2, 2]", "Fortran order", "ascontiguousarray"]),
        ("empty", vec![], &["0 bytes"]),
        ("truncated", good[..good.len() - 1].to_vec(), &["16 bytes", "15"]),
        ("longer", [&good[..], &[0]].concat(), &["16 bytes", "17"]),
        ("other", b"\x92NUMPY\x01\x00abcdefg".to_vec(), &["magic"]),
        ("big-endian", changed("<f4", ">f4"), &["big-endian"]),
        ("object", changed("<f4'", "|O8'"), &["header"]),
        ("half header", good[..30].to_vec(), &["30 bytes"]),
        ("huge", changed("(4,), }          ", "(9999999999999,),"), &["header"]),
    ];
    for (name, bytes, parts) in cases {
        witness.refuses(&format!("{name}.npy"), bytes, parts);
    }
}

#[test]
fn what_is_not_there_is_named() {
    let witness = Witness::new();
    let run = |args: &[&str]| error_line(&witness.daemon.run(args));
    let out = witness.daemon.dir().join("out.safetensors");
    let out = out.to_str().unwrap();
    assert_says(&run(&["get", "missing", "-o", out]), &["\"missing\"", "\"default\"", "tierpack ls"]);
    assert_says(&run(&["get", "kept", "-o", out, "--namespace", "no"]), &["\"kept\"", "\"no\""]);
    assert_says(&run(&["rm", "esc\u{1b}[1m\n"]), &[r"esc\u{1b}[1m\n"]);
    assert_says(&run(&["put", "/nowhere/at all.npy"]), &["/nowhere/at all.npy", "No such file"]);
    assert_says(&run(&["put", "/dev/null"]), &["/dev/null"]);
    assert!(!std::path::Path::new(out).exists(), "a failed export leaves no file");

    let client = witness.daemon.client();
    let handle = client.open("kept").unwrap();
    for rows in [&[100_u64][..], &[0, 99, 100], &[u64::MAX]] {
        let error = handle.gather(rows).unwrap_err();
        let position = rows.len() - 1;
        let named = matches!(&error, Error::RowOutOfRange { position: p, n_rows: 100, .. } if *p == position);
        assert!(named, "{error}");
        assert_says(&error.to_string(), &[&rows[position].to_string(), "100 rows"]);
    }
    let missing = client.get("missing").unwrap_err();
    assert!(matches!(missing, Error::NotFound { .. }), "{missing}");
    witness.check("reads of what is not there");
}

#[test]
fn a_full_pool_refuses_with_what_holds_it_and_keeps_nothing_of_the_file() {
    let witness = Witness::new();
    // Bytes that no codec shortens.
    let tensor = |mib: usize| {
        let mut bytes = vec![0; mib << 20];
        data::fill(&mut bytes, 3, 1, 0);
        FileTensor::new("U8", &[mib as u64, 1 << 20], bytes)
    };
    let tensors: Tensors =
        [("a", 8), ("b", 8), ("c", 20)].map(|(name, mib)| (name.to_owned(), tensor(mib))).into();
    let file = files::safetensors(&tensors, &Metadata::new());
    let parts = ["pool is full", "32 MiB", "--pool-size", "\"c\"", "nothing of it is stored"];
    witness.refuses("large.safetensors", &file, &parts);

    // Larger than the whole pool, and larger than any: refused before any byte of it comes.
    let put = |elems| {
        let options = tierpack_client::PutOptions::new();
        let client = witness.daemon.client();
        client.put_with("huge", Dtype::U8, &[elems], &mut std::io::empty(), &options).unwrap_err()
    };
    let error = put(1 << 36);
    assert!(matches!(error, Error::PoolFull { .. }), "{error}");
    let error = put(1 << 40);
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    assert_says(&error.to_string(), &["8388608 blocks"]);
    witness.check("a tensor of a tebibyte");
}

#[test]
fn a_source_that_ends_early_leaves_nothing() {
    let witness = Witness::new();
    let client = witness.daemon.client();
    let options = tierpack_client::PutOptions::new();
    let mut short = &vec![1; (20 << 20) - 1][..];
    let error = client.put_with("a", Dtype::U8, &[20, 1 << 20], &mut short, &options).unwrap_err();
    assert!(matches!(error, Error::Source { got: 20_971_519, needed: 20_971_520, .. }), "{error}");
    witness.check("a short source");
    let error = client.put("a", Dtype::F32, &[4], &[0; 15]).unwrap_err();
    assert_says(&error.to_string(), &["15 bytes", "16"]);
    let error = client.put(&"n".repeat(4097), Dtype::U8, &[1], &[0]).unwrap_err();
    assert_says(&error.to_string(), &["4097", "4096"]);
    let error = client.put("a", Dtype::U8, &[u64::MAX, 2], &[0]).unwrap_err();
    assert_says(&error.to_string(), &["shape", "\"a\""]);
    witness.check("puts that contradict themselves");
}

/// C15 (a).
#[test]
fn very_many_tensors_go_both_ways_or_not_at_all() {
    let n: u64 = if full() { 1_300_000 } else { 20_000 };
    let daemon =
        Daemon::start(PROGRAM, &["--pool-size", if full() { "2GiB" } else { "64MiB" }, "--lock", "off"]);
    let mut text = String::from("{");
    for idx in 0..n {
        let (begin, end) = (idx * 8, idx * 8 + 8);
        text += &format!(r#""{idx}":{{"dtype":"I64","shape":[1],"data_offsets":[{begin},{end}]}},"#);
    }
    text.pop();
    text.push('}');
    let mut values = vec![0; usize::try_from(n * 8).expect("a test's size")];
    data::fill(&mut values, 5, 1, 0);
    let file = daemon.file("many.safetensors", &files::with_header(text.as_bytes(), &values));
    let put = daemon.run(&["put", &file]);
    if put.status.success() {
        let out = daemon.dir().join("out.safetensors");
        daemon.run_ok(&["get", "--all", "-o", out.to_str().expect("a path of the test")]);
        let (tensors, _) = files::read(&out);
        assert_eq!(tensors.len() as u64, n);
        for idx in 0..n {
            let expected = data::word(5, 1, idx).to_le_bytes();
            assert_eq!(tensors[&idx.to_string()], FileTensor::new("I64", &[1], expected));
        }
        daemon.run_ok(&["rm", "--all"]);
    } else {
        println!("refused: {}", error_line(&put));
        assert!(full(), "{}", error_line(&put));
    }
    assert_eq!(daemon.run_ok(&["ls", "--json"]), "[]\n");
    assert_eq!(daemon.quiet().pool.used_bytes, 0);
}
