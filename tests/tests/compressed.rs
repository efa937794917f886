//! Encoded tensors: whatever the codec, the bytes come back and the sizes are true.

use std::path::Path;

use serde_json::Value;
use tierpack_client::{Access, Client, CodecChoice, CodecId, Dtype, Error, PutOptions};
use tierpack_tests::Daemon;
use tierpack_tests::data::{Random, Source, Words};
use tierpack_tests::files::{self, FileTensor};
use tierpack_tests::program::{assert_says, error_line};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CHECKPOINT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/minilm_layer0_bf16.safetensors");

fn start() -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", "192MiB", "--lock", "off"])
}

/// `auto`, and every codec.
fn choices() -> impl Iterator<Item = &'static str> {
    std::iter::once("auto").chain(CodecId::ALL.iter().map(|codec| codec.name()))
}

/// A dtype of 64 bits that the codec knows.
fn dtype_for(codec: &str) -> Dtype {
    if codec.starts_with("planes") { Dtype::F64 } else { Dtype::U64 }
}

fn choice(name: &str) -> CodecChoice {
    name.parse().expect("a codec of this test")
}

fn options(name: &str) -> PutOptions {
    PutOptions::new().codec(choice(name))
}

fn number(entry: &Value, field: &str) -> u64 {
    entry[field].as_u64().expect("a number")
}

/// Words that a codec shortens.
fn compressible(version: u16, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Words::Compressible.fill(&mut bytes, 7, version, 0);
    bytes
}

/// Zeros, with some other byte at every 61st place.
fn mostly_zeros(len: usize) -> Vec<u8> {
    (0..len).map(|i| if i % 61 == 7 { (i >> 3).to_le_bytes()[0] | 1 } else { 0 }).collect()
}

/// Floats whose exponents differ little, except for every 64th, which is any bits.
fn floats(dtype: Dtype, len: usize) -> Vec<u8> {
    let (bits, exponent_bits) = match dtype {
        Dtype::F16 => (16, 5),
        Dtype::Bf16 => (16, 8),
        Dtype::F32 => (32, 8),
        _ => (64, 11),
    };
    let mut random = Random::new(bits);
    let mut bytes = vec![0; len];
    for (n, word) in bytes.chunks_exact_mut(dtype.bits() as usize / 8).enumerate() {
        let any = random.next_u64();
        let exponent = (1 << (exponent_bits - 1)) - 2 - u64::from(random.next_u64().trailing_zeros() % 8);
        let place = bits - 1 - exponent_bits;
        let float = any & !(((1 << exponent_bits) - 1) << place) | exponent << place;
        word.copy_from_slice(&if n % 64 == 0 { any } else { float }.to_le_bytes()[..word.len()]);
    }
    bytes
}

/// Bytes that none shortens.
fn noise(len: usize) -> Vec<u8> {
    let mut random = Random::new(9);
    let mut bytes = vec![0; len];
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next_u64().to_le_bytes()));
    bytes
}

/// Gets and gathers a tensor in many ways.
fn check(client: &Client, name: &str, bytes: &[u8]) {
    let handle = client.open(name).expect("the tensor is there");
    assert!(handle.get().expect("get").as_bytes() == bytes, "get of {name}");
    let (n_rows, row_bytes) = (handle.n_rows(), usize::try_from(handle.row_bytes()).expect("a small row"));
    if n_rows == 0 || row_bytes == 0 {
        return;
    }
    let row = |row: u64| &bytes[usize::try_from(row).expect("a small tensor") * row_bytes..][..row_bytes];
    let mut random = Random::new(n_rows);
    for n in 0..50 {
        let row_idx = if n == 0 { n_rows - 1 } else { random.below(n_rows) };
        assert!(handle.gather(&[row_idx]).expect("one row").as_bytes() == row(row_idx), "{name}, {row_idx}");
    }
    let last = n_rows - 1;
    let lists = [
        (0..100).map(|_| random.below(n_rows)).collect(),
        vec![last, 0, last, last, 0],
        (0..n_rows.min(600)).rev().collect::<Vec<u64>>(),
    ];
    for rows in lists {
        let expected: Vec<u8> = rows.iter().flat_map(|&row_idx| row(row_idx)).copied().collect();
        assert!(handle.gather(&rows).expect("rows").as_bytes() == expected, "{name}, {rows:?}");
    }
}

#[test]
fn real_weights_come_back_bit_for_bit_with_every_codec() {
    let daemon = start();
    let (tensors, _) = files::read(Path::new(CHECKPOINT));
    let out = daemon.dir().join("out.safetensors");
    let out_path = out.to_str().expect("a path of the test");
    for codec in choices() {
        for access in ["rows", "whole"] {
            let namespace = format!("{codec} {access}");
            let ns = ["--namespace", &namespace];
            let used = daemon.stats().pool.used_bytes;
            daemon.run_ok(&[&["put", CHECKPOINT, "--codec", codec, "--access", access], &ns[..]].concat());
            let entries = daemon.ls(&ns);
            let stored: u64 = entries.iter().map(|entry| number(entry, "stored_bytes")).sum();
            assert_eq!(daemon.stats().pool.used_bytes - used, stored, "{namespace}");
            let raw: u64 = entries.iter().map(|entry| number(entry, "raw_bytes")).sum();
            // Weights have no common word.
            let stays = matches!(codec, "raw" | "sparse");
            assert_eq!(stays, stored >= raw * 9 / 10, "{namespace}: {stored} of {raw}");

            daemon.run_ok(&[&["get", "--all", "-o", out_path], &ns[..]].concat());
            assert_eq!(files::read(&out).0, tensors, "{namespace}");
            assert_says(&daemon.run_ok(&[&["verify"], &ns[..]].concat()), &["18 tensors", "every block"]);
            let client = daemon.client().namespace(&namespace).expect("a short name");
            for (name, FileTensor { bytes, .. }) in &tensors {
                check(&client, name, bytes);
            }
            daemon.run_ok(&[&["rm", "--all"], &ns[..]].concat());
            assert_eq!(daemon.quiet().pool.used_bytes, used, "{namespace}");
        }
    }
}

#[test]
fn rows_in_pieces_and_rows_that_do_not_fit_their_stride_come_back() {
    let daemon = start();
    let client = daemon.client();
    // Several pieces a row; many rows a block; rows of a given length; all of it as one row.
    let shapes: [(Dtype, &[u64], Option<u64>); 8] = [
        (Dtype::U8, &[2, 320_000], None),
        (Dtype::U64, &[800, 100], None),
        (Dtype::U64, &[80_000], Some(50)),
        (Dtype::I32, &[160_000], None),
        (Dtype::Bf16, &[2, 160_000], None),
        (Dtype::F32, &[1600, 100], None),
        (Dtype::F64, &[80_000], Some(50)),
        (Dtype::F16, &[320_000], None),
    ];
    for codec in choices() {
        for (dtype, shape, row_elems) in shapes {
            let is_float = matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64);
            let bytes = match codec {
                "sparse" => mostly_zeros(640_000),
                _ if is_float => floats(dtype, 640_000),
                _ => compressible(1, 640_000),
            };
            // Integers have no exponents, and are left raw.
            let is_raw = codec == "raw" || codec.starts_with("planes") && !is_float;
            for access in [Access::Rows, Access::Whole] {
                let mut options = options(codec).access(access);
                options.row_elems = row_elems;
                let name = format!("{codec} {dtype} {shape:?} {access}");
                let entry = client.put_with(&name, dtype, shape, &mut &*bytes, &options);
                let entry = entry.expect("the pool has room");
                assert_eq!(is_raw, entry.codec == CodecId::Raw, "{name}: {entry:?}");
                assert!(codec == "auto" || is_raw || entry.codec.name() == codec, "{name}: {entry:?}");
                let has_planes = entry.codec.name().starts_with("planes");
                assert!(!has_planes || is_float, "{name}: {entry:?}");
                let most = if is_float { entry.raw_bytes } else { entry.raw_bytes * 3 / 4 };
                assert_eq!(is_raw, entry.stored_bytes > most, "{name}: {entry:?}");
                assert_eq!(is_raw, entry.escapes == 0, "{name}: {entry:?}");
                check(&client, &name, &bytes);
                assert_eq!(client.verify(&name, |_, _| ()).expect("not damaged"), entry.raw_bytes);
            }
        }
    }
    assert_eq!(daemon.stats().pool.used_bytes, daemon.stats().pool.stored_bytes);
}

#[test]
fn a_long_tensor_is_verified_in_turns() {
    let daemon = start();
    let client = daemon.client();
    let rows = 96 << 11;
    let mut source = Source::of(Words::Compressible, 7, 1);
    client.put_with("long", Dtype::U64, &[rows, 64], &mut source, &options("ibp")).expect("room");
    let mut turns = Vec::new();
    let verified = client.verify("long", |done, all| turns.push((done, all))).expect("not damaged");
    assert_eq!(verified, rows * 512);
    assert!(turns.len() >= 3 && turns.is_sorted(), "{turns:?}");
    assert_eq!(turns.last(), Some(&(384, 384)));
    let missing = error_line(&daemon.run(&["verify", "long", "missing"]));
    assert_says(&missing, &["\"missing\"", "\"default\""]);
}

#[test]
fn noise_takes_no_more_than_raw_and_auto_leaves_it_alone() {
    let daemon = start();
    let client = daemon.client();
    let shapes = [(4096_u64, 64_u64), (1, 40_000), (1000, 8), (100, 3), (1, 1)];
    let dtypes = [Dtype::U64, Dtype::F64];
    for (dtype, (rows, columns)) in dtypes.into_iter().flat_map(|dtype| shapes.map(|shape| (dtype, shape))) {
        let bytes = noise(usize::try_from(rows * columns * 8).expect("a small tensor"));
        let put = |codec: &str| {
            let name = format!("{dtype} {rows} {columns} {codec}");
            let entry = client.put_with(&name, dtype, &[rows, columns], &mut &*bytes, &options(codec));
            check(&client, &name, &bytes);
            entry.expect("the pool has room")
        };
        let raw = put("raw");
        for codec in CodecId::ALL[1..].iter().map(|codec| codec.name()) {
            // Header, mask, bit values and bases by column, rounded up.
            let metadata = (48 + 3 * columns * 8).next_multiple_of(64);
            let entry = put(codec);
            assert!(entry.stored_bytes <= raw.stored_bytes + metadata, "{codec}: {entry:?}, {raw:?}");
        }
        let auto = put("auto");
        assert_eq!((auto.codec, auto.stored_bytes), (CodecId::Raw, raw.stored_bytes));
    }
    assert_eq!(daemon.stats().pool.used_bytes, daemon.stats().pool.stored_bytes);
}

#[test]
fn what_the_sample_promises_is_what_is_stored() {
    let daemon = start();
    for codec in choices() {
        daemon.run_ok(&["put", CHECKPOINT, "--codec", codec, "--namespace", codec]);
    }
    let client = daemon.client();
    for codec in choices() {
        // Longer than one chunk, of which the sample is taken.
        let mut source = Source::of(Words::Compressible, 7, 1);
        client
            .put_with(codec, dtype_for(codec), &[32 << 10, 64], &mut source, &options(codec))
            .expect("room");
    }
    for entry in daemon.ls(&["--verbose"]) {
        let percent = |field: &str| entry[field].as_f64().expect("a number");
        let (saved, predicted) = (percent("saved_percent"), percent("predicted_saved_percent"));
        // A few bytes that no metadata could save are stored raw, and the metadata that were asked for left out.
        let is_left_raw = entry["codec"] == "raw" && number(&entry, "raw_bytes") < 1024;
        assert!((saved - predicted).abs() <= 0.5 || is_left_raw && saved >= predicted, "{entry}");
        if entry["codec"] != "raw" {
            assert!(number(&entry, "participating") > 0 && number(&entry, "generation") == 1, "{entry}");
        }
        // Only a choice between several has one that came next.
        let is_auto = entry["namespace"] == "auto" || entry["name"] == "auto";
        assert!(is_auto || entry["runner_up"].is_null(), "{entry}");
        if let Some(runner_up) = entry["runner_up_saved_percent"].as_f64() {
            assert!(predicted + 3.0 >= runner_up, "{entry}");
        }
    }
    assert!(daemon.ls(&[]).iter().any(|entry| !entry["runner_up"].is_null()));
    assert_says(
        &daemon.run_ok(&["ls", "--verbose"]),
        &["predicted %", "runner-up", "fit %", "ibp", "planes:2-2-2"],
    );
}

/// Weights, and as many rows that were never used.
#[test]
fn a_tensor_whose_source_can_go_back_is_judged_by_all_of_it() {
    let daemon = start();
    let client = daemon.client();
    let mut bytes = floats(Dtype::Bf16, 32 << 20);
    bytes.resize(64 << 20, 0);
    let put = |name: &str, entry: Result<tierpack_client::Entry, Error>| {
        let stored = entry.expect("room").stored_bytes;
        assert!(client.get(name).expect("it is there").as_bytes() == bytes, "{name}");
        client.remove(name).expect("it is there");
        stored * 100 / bytes.len() as u64
    };
    let (shape, options) = ([1 << 15, 1 << 10], PutOptions::new());
    let streamed = client.put_with("streamed", Dtype::Bf16, &shape, &mut &bytes[..], &options);
    let streamed = put("streamed", streamed);
    let whole = put("whole", client.put("whole", Dtype::Bf16, &shape, &bytes));
    println!("stored: {streamed} % by the first 16 MiB, {whole} % by all of it");
    assert!(whole <= 55, "{whole} %");
}

#[test]
fn a_view_shows_raw_tensors_only() {
    let daemon = start();
    let client = daemon.client();
    for codec in choices() {
        let bytes = if codec == "sparse" { mostly_zeros(512 << 10) } else { compressible(1, 512 << 10) };
        client
            .put_with(codec, dtype_for(codec), &[1 << 10, 64], &mut &*bytes, &options(codec))
            .expect("room");
        let view = client.open(codec).expect("it is there").view();
        match view {
            Ok(view) => assert!(codec == "raw" && view.block(0).expect("a block") == &bytes[..256 << 10]),
            Err(Error::Encoded { codec: found }) => assert!(codec != "raw" && found != CodecId::Raw),
            Err(error) => panic!("{codec}: {error}"),
        }
    }
    client.put("noise", Dtype::U8, &[512, 512], &noise(512 * 512)).expect("room");
    client.open("noise").expect("it is there").view().expect("auto has left it raw");
    // A refused view holds nothing.
    daemon.quiet();
}

/// C68: both decoders read what either has encoded.
#[test]
fn a_program_without_vector_code_reads_the_same_bytes() {
    let daemon = start();
    let out = daemon.dir().join("out.safetensors");
    for codec in choices() {
        daemon.run_ok(&["put", CHECKPOINT, "--codec", codec, "--overwrite"]);
        let mut command = daemon.command();
        command.env("TIERPACK_CPU", "scalar").args(["get", "--all", "-o"]).arg(&out);
        assert!(command.output().expect("run the program").status.success());
        assert_eq!(files::read(&out).0, files::read(Path::new(CHECKPOINT)).0, "{codec}");
    }
}
