//! Bits are not values: every pattern of every dtype comes back as it went in, whatever way it takes.

use std::path::Path;

use tierpack_client::{Access, Client, CodecChoice, CodecId, Dtype, Error, PutOptions};
use tierpack_tests::data::Random;
use tierpack_tests::files::{self, FileTensor, Metadata, Tensors};
use tierpack_tests::{Daemon, full};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
/// Random patterns of the wide dtypes.
const N_RANDOM: usize = 1_000_000;

/// Elements of a float with `bits` bits, `mantissa` of them for the mantissa, that software likes to change.
fn special_floats(bits: u32, mantissa: u32) -> Vec<u64> {
    let (sign, exponents) = (1_u64 << (bits - 1), (1_u64 << (bits - 1 - mantissa)) - 1);
    let infinity = exponents << mantissa;
    let quiet = 1_u64 << (mantissa - 1);
    let mut all = vec![0, 1, (1 << mantissa) - 1, 1 << mantissa, infinity - 1, infinity];
    for n in 0..20 {
        // Payloads of NaNs, signaling and quiet.
        let payload = ((0x5A5A_5A5A_5A5A_5A5A_u64 >> n) & (quiet - 1)).max(1);
        all.extend([infinity | payload, infinity | quiet | payload]);
    }
    all.extend([infinity | quiet, infinity | 1, infinity | (quiet - 1)]);
    let negative: Vec<u64> = all.iter().map(|value| value | sign).collect();
    all.extend(negative);
    all
}

fn elements(patterns: impl IntoIterator<Item = u64>, width: usize) -> Vec<u8> {
    patterns.into_iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect()
}

/// Bytes that hold the patterns of a dtype: all of them up to 16 bits.
fn patterns(dtype: Dtype) -> Vec<u8> {
    let mut random = Random::new(dtype as u64 + 1);
    let mut wide = |width: usize, mut special: Vec<u64>| {
        special.extend((0..N_RANDOM).map(|_| random.next_u64()));
        special.truncate(special.len() / 16 * 16);
        elements(special, width)
    };
    match dtype {
        Dtype::F32 | Dtype::C64 => wide(4, special_floats(32, 23)),
        Dtype::F64 => wide(8, special_floats(64, 52)),
        Dtype::I32 | Dtype::U32 => wide(4, vec![0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF]),
        Dtype::I64 | Dtype::U64 => wide(8, vec![0, 1, i64::MAX as u64, 1 << 63, u64::MAX]),
        Dtype::F6E2m3 | Dtype::F6E3m2 => elements((0..=255).cycle().take(768), 1),
        _ if dtype.bits() == 16 => elements(0..=0xFFFF, 2),
        _ => elements(0..=255, 1),
    }
}

/// A tensor's bytes and how it is put.
struct Case {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

/// Straight, reversed, and once inside an otherwise constant tensor.
fn cases(dtype: Dtype) -> Vec<Case> {
    let straight = patterns(dtype);
    let width = index(u64::from(dtype.bits()).div_ceil(8));
    let reversed = straight.rchunks(width).flatten().copied().collect();
    let mut constant = vec![0x3F; straight.len()];
    let middle = straight.len() / 2 / width * width;
    constant[middle..middle + width].copy_from_slice(&straight[..width]);
    let forms = [("straight", straight), ("reversed", reversed), ("inside", constant)];
    let case = |(form, bytes): (&str, Vec<u8>)| {
        let n_elems = bytes.len() as u64 * 8 / u64::from(dtype.bits());
        Case { name: format!("{dtype} {form}"), dtype, shape: vec![n_elems / 16, 16], bytes }
    };
    forms.map(case).into()
}

fn index(value: u64) -> usize {
    usize::try_from(value).expect("a test's size")
}

/// Every way out of the pool gives the same bytes.
fn check(client: &Client, case: &Case, how: &str) {
    let what = || format!("{} {how}", case.name);
    let tensor = client.get(&case.name).expect("the case was put");
    assert_eq!((tensor.dtype(), tensor.shape()), (case.dtype, &case.shape[..]), "{}", what());
    assert!(tensor.as_bytes() == case.bytes, "get {}", what());
    let handle = client.open(&case.name).expect("the tensor is there");
    let mut out = vec![0xA5; case.bytes.len()];
    handle.get_into(&mut out).expect("a fitting buffer");
    assert!(out == case.bytes, "get_into {}", what());

    // All rows, in another order.
    let n_rows = case.shape[0];
    let rows: Vec<u64> = (0..n_rows).map(|n| (n * 7 + 3) % n_rows).collect();
    let row_bytes = index(handle.row_bytes());
    let expected: Vec<u8> =
        rows.iter().flat_map(|&row| &case.bytes[index(row) * row_bytes..][..row_bytes]).copied().collect();
    assert!(handle.gather(&rows).expect("rows in range").as_bytes() == expected, "gather {}", what());
    out.fill(0xA5);
    handle.gather_into(&rows, &mut out).expect("rows in range");
    assert!(out == expected, "gather_into {}", what());

    // A tensor that is left raw can be seen as it is; what is encoded says so.
    let view = match handle.view() {
        Ok(view) => view,
        Err(Error::Encoded { codec }) => return assert_ne!(codec, CodecId::Raw, "view {}", what()),
        Err(error) => unreachable!("view {}: {error}", what()),
    };
    let seen: Vec<u8> =
        (0..view.n_blocks()).flat_map(|idx| view.block(idx).expect("a block of the view")).copied().collect();
    assert!(seen == case.bytes, "view {}", what());
}

#[test]
fn every_pattern_of_every_dtype_comes_back_bit_for_bit() {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "512MiB", "--lock", "off"]);
    let client = daemon.client();
    let cases: Vec<Case> = Dtype::ALL.iter().flat_map(|&dtype| cases(dtype)).collect();
    assert_eq!(cases.len(), 22 * 3);
    for access in [Access::Rows, Access::Whole] {
        for &codec in CodecId::ALL {
            let options = PutOptions::new().access(access).overwrite(true).codec(CodecChoice::Only(codec));
            // A fit takes its time: of the wide dtypes, encoded as a whole, the short form leaves the patterns out that
            // are those of another form or of the other access.
            let is_wanted = |case: &&Case| {
                full()
                    || codec == CodecId::Raw
                    || case.bytes.len() < 1 << 20
                    || access == Access::Rows && case.name.ends_with("inside")
            };
            for case in cases.iter().filter(is_wanted) {
                client.put_with(&case.name, case.dtype, &case.shape, &mut &case.bytes[..], &options).unwrap();
                check(&client, case, &format!("{access}, {codec}"));
            }
        }
    }
    // Out to a file, which another reader understands, and in again.
    let out = daemon.dir().join("out.safetensors");
    let out_text = out.to_str().unwrap();
    daemon.run_ok(&["get", "--all", "-o", out_text]);
    let (tensors, _) = files::read(&out);
    let expected: Tensors = cases
        .iter()
        .map(|case| (case.name.clone(), FileTensor::new(case.dtype.name(), &case.shape, case.bytes.clone())))
        .collect();
    assert!(tensors == expected, "a file differs from what was put");
    daemon.run_ok(&["rm", "--all"]);
    let codec = if full() { "auto" } else { "raw" };
    daemon.run_ok(&["put", out_text, "--namespace", "again", "--codec", codec]);
    let again = client.namespace("again").unwrap();
    cases.iter().for_each(|case| check(&again, case, "after a file"));
}

/// C10.
#[test]
fn a_checkpoint_of_many_dtypes_is_imported_in_one_call() {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let dtypes = [
        "F32",
        "F16",
        "BF16",
        "F64",
        "F8_E4M3",
        "F8_E5M2",
        "F8_E8M0",
        "I8",
        "U8",
        "I16",
        "U16",
        "I32",
        "U32",
        "I64",
        "U64",
        "BOOL",
        "F4",
        "F6_E2M3",
        "F6_E3M2",
        "F8_E4M3FNUZ",
        "F8_E5M2FNUZ",
        "C64",
    ];
    let mut tensors = Tensors::new();
    let mut random = Random::new(10);
    for name in dtypes {
        let bits = u64::from(name.parse::<Dtype>().unwrap().bits());
        let bytes: Vec<u8> = (0..256 * 32 * bits).map(|_| random.next_u64().to_le_bytes()[0]).collect();
        tensors.insert(name.to_owned(), FileTensor::new(name, &[256, 256], bytes));
    }
    // 4-bit integers come packed in bytes.
    tensors.insert("int4 packed".to_owned(), FileTensor::new("U8", &[1000, 65], vec![0xF1; 65_000]));
    tensors.insert("empty".to_owned(), FileTensor::new("BF16", &[0, 4096], vec![]));
    tensors.insert("scalar".to_owned(), FileTensor::new("F32", &[], 1.5_f32.to_le_bytes()));
    let file = daemon.file("x.safetensors", &files::safetensors(&tensors, &Metadata::new()));
    daemon.run_ok(&["put", &file, "--codec", "raw"]);
    let out = daemon.dir().join("out.safetensors");
    daemon.run_ok(&["get", "--all", "-o", out.to_str().unwrap()]);
    assert_eq!(files::read(&out), (tensors.clone(), Metadata::new()));
    for entry in daemon.ls(&[]) {
        let tensor = &tensors[entry["name"].as_str().unwrap()];
        assert_eq!((&entry["dtype"], &entry["codec"]), (&tensor.dtype.as_str().into(), &"raw".into()));
        let (raw, stored) = (entry["raw_bytes"].as_u64().unwrap(), entry["stored_bytes"].as_u64().unwrap());
        assert_eq!(raw, tensor.bytes.len() as u64);
        // The size to plan with: a header of 64 bytes per block, and the rounding to 64.
        let n_blocks = raw.div_ceil(256 << 10);
        assert!(stored >= raw + 64 * n_blocks.min(raw) && stored < raw + 128 * n_blocks + 1, "{entry}");
        assert!(raw < 16_384 || (stored - raw) * 100 < raw, "{entry}");
    }
}

/// C12.
#[test]
fn tensors_without_elements_and_scalars_keep_their_shapes() {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    // Shape, rows, elements of a row.
    let shapes: [(&[u64], u64, u64); 9] = [
        (&[0], 0, 0),
        (&[0, 128], 0, 128),
        (&[128, 0], 128, 0),
        (&[], 1, 1),
        (&[1], 1, 1),
        (&[1, 1], 1, 1),
        (&[3, 0, 2], 3, 0),
        (&[0, 0], 0, 0),
        (&[u64::MAX, 0], u64::MAX, 0),
    ];
    for round in 0..2 {
        // An empty tensor comes before a normal one, and after one.
        for (n, (shape, n_rows, row_elems)) in shapes.into_iter().enumerate() {
            client.put(&format!("normal {n}"), Dtype::U16, &[2], &[1, 2, 3, 4]).unwrap();
            let bytes = vec![7; if shape.contains(&0) { 0 } else { 4 }];
            let name = format!("t{n}");
            let entry = client.put(&name, Dtype::F32, shape, &bytes).unwrap();
            assert_eq!((&entry.shape[..], entry.raw_bytes), (shape, bytes.len() as u64));
            let tensor = client.get(&name).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape(), tensor.as_bytes()), (Dtype::F32, shape, &bytes[..]));
            let handle = client.open(&name).unwrap();
            assert_eq!((handle.n_rows(), handle.row_bytes()), (n_rows, row_elems * 4));
            check_gathers(&handle, &[shape.get(1..).unwrap_or_default(), &[]].concat());
            assert_eq!(client.get(&format!("normal {n}")).unwrap().as_bytes(), [1, 2, 3, 4], "{shape:?}");
        }
        let stats = daemon.stats();
        assert_eq!(stats.namespaces[0].tensors, 18, "round {round}");
        daemon.run_ok(&["stats"]);
        daemon.run_ok(&["ls"]);
        daemon.run_ok(&["rm", "--all"]);
        assert_eq!(daemon.quiet().pool.used_bytes, 0, "round {round}");
    }
}

/// Gathers of nothing, of the first and of the last row have the right shape; one past the end is an error.
fn check_gathers(handle: &tierpack_client::Handle, inner: &[u64]) {
    let n_rows = handle.n_rows();
    let inner = if inner.is_empty() { vec![handle.row_bytes() / 4] } else { inner.to_vec() };
    let nothing = handle.gather::<u64>(&[]).expect("rows in range");
    assert_eq!((nothing.shape(), nothing.as_bytes().len()), (&[&[0], &inner[..]].concat()[..], 0));
    if n_rows > 0 {
        let found = handle.gather(&[0, n_rows - 1, 0]).expect("rows in range");
        assert_eq!(found.shape(), [&[3], &inner[..]].concat());
        assert!(found.as_bytes().iter().all(|byte| *byte == 7));
    }
    let error = handle.gather(&[n_rows]).expect_err("a row past the end");
    assert!(matches!(error, Error::RowOutOfRange { position: 0, .. }), "{error}");
}

/// The committed data is real weights: it goes through every way too.
#[test]
fn real_weights_come_back_by_rows_and_whole() {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/minilm_layer0_bf16.safetensors");
    let (tensors, _) = files::read(Path::new(path));
    for access in ["rows", "whole"] {
        daemon.run_ok(&["put", path, "--namespace", access, "--access", access]);
        let client = daemon.client().namespace(access).unwrap();
        for (name, tensor) in
            tensors.iter().filter(|(_, tensor)| tensor.shape.len() == 2 && tensor.shape[0] > 0)
        {
            let dtype = tensor.dtype.parse().unwrap();
            let case =
                Case { name: name.clone(), dtype, shape: tensor.shape.clone(), bytes: tensor.bytes.clone() };
            check(&client, &case, access);
        }
    }
}
