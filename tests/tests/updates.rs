//! Updates: who reads sees the new rows at once, on every way out of the pool, and never a mixture.

use tierpack_client::{Client, CodecChoice, CodecId, Dtype, Error, Handle, PutOptions};
use tierpack_tests::data::{Random, Words};
use tierpack_tests::files::{self, FileTensor, Metadata, Tensors};
use tierpack_tests::program::{assert_says, error_line};
use tierpack_tests::reports::ChurnReport;
use tierpack_tests::{Daemon, TestClient, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");

/// Refits would change codecs under the tests: those that are about them ask for them.
fn start() -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", "256MiB", "--lock", "off", "--refit", "manual"])
}

fn only(codec: CodecId) -> PutOptions {
    PutOptions::new().codec(CodecChoice::Only(codec))
}

fn index(value: u64) -> usize {
    usize::try_from(value).expect("a size of the test")
}

/// What a tensor must be, next to the pool.
struct Model {
    name: String,
    bytes: Vec<u8>,
    revision: u64,
}

impl Model {
    fn put(
        client: &Client,
        name: &str,
        dtype: Dtype,
        shape: &[u64],
        options: &PutOptions,
        bytes: Vec<u8>,
    ) -> Self {
        client.put_with(name, dtype, shape, &mut &bytes[..], options).expect("room");
        Self { name: name.to_owned(), bytes, revision: 0 }
    }

    /// Updates the tensor and the model; `values` gives each row's bytes by its position.
    fn update(&mut self, handle: &Handle, rows: &[u64], values: &[u8]) {
        let row_bytes = index(handle.row_bytes());
        for (row, value) in rows.iter().zip(values.chunks_exact(row_bytes)) {
            self.bytes[index(*row) * row_bytes..][..row_bytes].copy_from_slice(value);
        }
        self.revision += 1;
        let found = handle.update(rows, values).expect("room and rows in range");
        assert_eq!((found, handle.revision().expect("it is there")), (self.revision, self.revision));
    }

    /// Every way out of the pool gives the same bytes, by this handle and by a new client.
    fn check(&self, daemon: &Daemon, handle: &Handle) {
        let what = &self.name;
        let fresh = daemon.client().open(what).expect("it is there");
        for handle in [handle, &fresh] {
            assert!(handle.get().expect("it is there").as_bytes() == self.bytes, "get {what}");
            let mut out = vec![0xA5; self.bytes.len()];
            handle.get_into(&mut out).expect("a fitting buffer");
            assert!(out == self.bytes, "get_into {what}");
            let (n_rows, row_bytes) = (handle.n_rows(), index(handle.row_bytes()));
            for rows in [vec![0], (0..n_rows).rev().collect::<Vec<_>>()] {
                let expected: Vec<u8> = rows
                    .iter()
                    .flat_map(|row| &self.bytes[index(*row) * row_bytes..][..row_bytes])
                    .copied()
                    .collect();
                assert!(handle.gather(&rows).expect("rows in range").as_bytes() == expected, "gather {what}");
                let mut out = vec![0xA5; expected.len()];
                handle.gather_into(&rows, &mut out).expect("rows in range");
                assert!(out == expected, "gather_into {what}");
            }
            match handle.view() {
                Ok(view) => {
                    let blocks = (0..view.n_blocks()).flat_map(|idx| view.block(idx).expect("a block"));
                    assert!(blocks.copied().collect::<Vec<_>>() == self.bytes, "view {what}");
                }
                Err(Error::Encoded { codec }) => assert_ne!(codec, CodecId::Raw, "view {what}"),
                Err(error) => unreachable!("view {what}: {error}"),
            }
        }
        assert_eq!(fresh.revision().expect("it is there"), self.revision);
    }

    /// As [`Model::check`], by another process.
    fn check_program(&self, daemon: &Daemon) {
        let out = daemon.dir().join("out.safetensors");
        daemon.run_ok(&["get", &self.name, "-o", out.to_str().expect("a path of the test")]);
        assert!(files::read(&out).0[&self.name].bytes == self.bytes, "get {} by the program", self.name);
        let entries = daemon.ls(&[]);
        let entry = entries.iter().find(|entry| entry["name"] == self.name[..]).expect("it is listed");
        assert_eq!(entry["revision"], self.revision);
        daemon.run_ok(&["verify", &self.name]);
    }
}

/// Bytes that every codec shortens where it knows the dtype: few exponents, and for `sparse` mostly zeros.
fn weights(codec: CodecId, n_words: u64, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut word = |_| {
        let word = u16::try_from(random.below(1 << 16)).expect("16 bits");
        match codec {
            CodecId::Sparse if word > 3000 => 0,
            _ => 0x3F00 | word & 0x80FF,
        }
    };
    (0..n_words).map(&mut word).flat_map(u16::to_le_bytes).collect()
}

#[test]
fn every_way_to_read_sees_an_update_of_every_codec() {
    const SHAPE: [u64; 2] = [1200, 256];
    let daemon = start();
    let client = daemon.client();
    for &codec in CodecId::ALL {
        let bytes = weights(codec, SHAPE[0] * SHAPE[1], 1);
        let name = codec.name();
        let mut model = Model::put(&client, name, Dtype::Bf16, &SHAPE, &only(codec), bytes);
        let handle = client.open(name).expect("it is there");
        handle.gather(&[0]).expect("rows in range");
        // Few rows at a time, more often than a block can have overlays; then many; then all of them.
        for round in 0..12 {
            let rows = [round * 7, 1199 - round, 600];
            model.update(&handle, &rows, &weights(codec, 3 * SHAPE[1], 100 + round));
            if round % 4 == 0 {
                model.check(&daemon, &handle);
            }
        }
        let half: Vec<u64> = (0..600).map(|n| n * 2).collect();
        model.update(&handle, &half, &weights(codec, 600 * SHAPE[1], 200));
        model.check(&daemon, &handle);
        model.update(&handle, &[5, 5, 1000, 5], &weights(codec, 4 * SHAPE[1], 300));
        model.check(&daemon, &handle);
        let all: Vec<u64> = (0..1200).collect();
        model.update(&handle, &all, &weights(codec, 1200 * SHAPE[1], 400));
        model.check(&daemon, &handle);
        model.check_program(&daemon);
    }
    let stats = daemon.quiet();
    assert_eq!(stats.pool.used_bytes, stats.pool.stored_bytes);
}

#[test]
fn a_handle_sees_a_refit_to_other_codecs_and_back() {
    const SHAPE: [u64; 2] = [2048, 256];
    let daemon = start();
    let client = daemon.client();
    let noise: Vec<u8> = Random::new(9).bytes(2048 * 512);
    let mut model = Model::put(&client, "t", Dtype::Bf16, &SHAPE, &PutOptions::new(), noise.clone());
    let handle = client.open("t").expect("it is there");
    let all: Vec<u64> = (0..2048).collect();
    model.check(&daemon, &handle);
    for round in 0..20 {
        let codec = [CodecId::Planes4, CodecId::Sparse][round % 2];
        let values =
            if round % 3 == 2 { noise.clone() } else { weights(codec, 2048 * 256, 10 + round as u64) };
        model.update(&handle, &all, &values);
        let drift = client.refit("t", tierpack_client::RefitMode::Force, |_, _| ()).expect("room");
        assert_eq!((drift.last_failure, drift.refits), (None, round as u64 + 1));
        // Overlays over blocks of the new generation.
        model.update(&handle, &[3, 2000], &weights(codec, 2 * 256, 1000));
        model.check(&daemon, &handle);
    }
    model.check_program(&daemon);
}

#[test]
fn every_dtype_is_updated() {
    let daemon = start();
    let client = daemon.client();
    for &dtype in Dtype::ALL {
        let row_bytes = index(u64::from(dtype.bits()) * 2);
        let bytes = Random::new(1).bytes(400 * row_bytes);
        let mut model = Model::put(&client, dtype.name(), dtype, &[400, 16], &PutOptions::new(), bytes);
        let handle = client.open(dtype.name()).expect("it is there");
        for round in 0..3 {
            let rows = [round, 399, 17];
            model.update(&handle, &rows, &Random::new(round).bytes(3 * row_bytes));
        }
        model.check(&daemon, &handle);
        model.check_program(&daemon);
    }
}

#[test]
fn rows_in_pieces_and_more_than_one_request() {
    let daemon = start();
    let client = daemon.client();
    // Three pieces a row; and 24 MiB.
    let bytes = Random::new(1).bytes(3 * 300_000);
    let mut pieces = Model::put(&client, "pieces", Dtype::U8, &[3, 300_000], &raw(), bytes);
    let handle = client.open("pieces").expect("it is there");
    for round in 0..10 {
        pieces.update(&handle, &[2, 0], &Random::new(2 + round).bytes(600_000));
        pieces.check(&daemon, &handle);
    }
    pieces.check_program(&daemon);

    let (n_rows, row_bytes) = (96_u64, 256 << 10);
    let bytes = Random::new(5).bytes(96 * row_bytes);
    let mut long = Model::put(&client, "long", Dtype::U8, &[n_rows, 256 << 10], &raw(), bytes);
    let handle = client.open("long").expect("it is there");
    let rows: Vec<u64> = (0..n_rows).rev().collect();
    let values = Random::new(6).bytes(96 * row_bytes);
    for (row, value) in rows.iter().zip(values.chunks_exact(row_bytes)) {
        long.bytes[index(*row) * row_bytes..][..row_bytes].copy_from_slice(value);
    }
    // Two requests are two updates.
    long.revision = client.update("long", &rows, &values).expect("room");
    assert_eq!(long.revision, 2);
    long.check(&daemon, &handle);
}

#[test]
fn what_cannot_be_updated_says_so_and_changes_nothing() {
    let daemon = start();
    let client = daemon.client();
    let model = Model::put(&client, "t", Dtype::U16, &[10, 4], &raw(), (0..80).collect());
    let handle = client.open("t").expect("it is there");
    let error = handle.update(&[0, 10], &[0; 16]).expect_err("no such row");
    assert!(matches!(error, Error::RowOutOfRange { position: 1, row: 10, n_rows: 10 }), "{error}");
    let error = handle.update(&[0, -5], &[0; 16]).expect_err("no such row");
    assert!(matches!(error, Error::RowOutOfRange { position: 1, row: -5, .. }), "{error}");
    let error = handle.update(&[0], &[0; 7]).expect_err("too short");
    assert!(matches!(error, Error::BufferLength { needed: 8, got: 7 }), "{error}");
    assert_eq!(handle.update::<u8>(&[], &[]).expect("nothing to do"), 0);
    model.check(&daemon, &handle);

    // Rows of twelve bits; no rows; rows without elements; a scalar, which is one row.
    client.put("bits", Dtype::F4, &[2, 3], &[1, 2, 3]).expect("room");
    let error = client.update("bits", &[0], &[1]).expect_err("rows are not whole bytes");
    assert!(matches!(error, Error::NotGatherable { dtype: Dtype::F4, .. }), "{error}");
    for (name, shape) in [("empty", &[0_u64, 4][..]), ("thin", &[4, 0])] {
        client.put(name, Dtype::U8, shape, &[]).expect("room");
        assert_eq!(client.update::<u64>(name, &[], &[]).expect("nothing to do"), 0);
    }
    assert!(matches!(client.update("empty", &[0], &[]), Err(Error::RowOutOfRange { n_rows: 0, .. })));
    assert_eq!(client.update("thin", &[3], &[]).expect("nothing to do"), 0);
    client.put("scalar", Dtype::F32, &[], &[0; 4]).expect("room");
    assert_eq!(client.update("scalar", &[0], &[1, 2, 3, 4]).expect("one row"), 1);
    assert_eq!(client.get("scalar").expect("it is there").as_bytes(), [1, 2, 3, 4]);
    assert!(matches!(client.update("missing", &[0], &[1]), Err(Error::NotFound { .. })));
}

#[test]
fn a_handle_goes_on_with_a_replacement_of_the_same_shape() {
    let mut daemon = start();
    let client = daemon.client();
    client.put("t", Dtype::U8, &[4, 2], &[0; 8]).expect("room");
    let handle = client.open("t").expect("it is there");
    assert_eq!(handle.update(&[0], &[1, 1]).expect("room"), 1);
    let overwrite = PutOptions::new().overwrite(true);
    client.put_with("t", Dtype::U8, &[4, 2], &mut &[9; 8][..], &overwrite).expect("room");
    assert_eq!(handle.update(&[3], &[7, 7]).expect("room"), 1, "revisions start anew");
    assert_eq!(handle.get().expect("it is there").as_bytes(), [9, 9, 9, 9, 9, 9, 7, 7]);
    client.put_with("t", Dtype::U8, &[8], &mut &[9; 8][..], &overwrite).expect("room");
    assert!(matches!(handle.update(&[3], &[7, 7]), Err(Error::Replaced { .. })));
    client.remove("t").expect("it is there");
    assert!(matches!(handle.update(&[3], &[7, 7]), Err(Error::NotFound { .. })));
    // The next daemon's first slot is where this one's was.
    client.put("t", Dtype::U8, &[4, 2], &[0; 8]).expect("room");
    let handle = client.open("t").expect("it is there");
    daemon.kill();
    daemon.restart();
    daemon.client().put("other", Dtype::U8, &[4, 2], &[5; 8]).expect("room");
    assert!(matches!(handle.update(&[0], &[7, 7]), Err(Error::Lost { .. })));
    daemon.client().put("t", Dtype::U8, &[4, 2], &[6; 8]).expect("room");
    assert_eq!(handle.update(&[0], &[7, 7]).expect("room"), 1);
    assert_eq!(daemon.client().get("other").expect("it is there").as_bytes(), [5; 8]);
}

#[test]
fn an_open_view_shows_what_it_did() {
    let daemon = start();
    let client = daemon.client();
    let mut model = Model::put(&client, "t", Dtype::U8, &[1000, 1000], &raw(), vec![1; 1_000_000]);
    let handle = client.open("t").expect("it is there");
    let view = handle.view().expect("it is raw");
    for round in 0..20 {
        model.update(&handle, &[500, round], &[7; 2000]);
        model.check(&daemon, &handle);
    }
    let seen = (0..view.n_blocks()).flat_map(|idx| view.block(idx).expect("a block"));
    assert!(seen.eq(&[1; 1_000_000]));
    drop(view);
    let stats = daemon.quiet();
    assert_eq!(stats.pool.used_bytes, stats.pool.stored_bytes);
}

#[test]
fn the_program_updates_rows_and_whole_tensors() {
    let daemon = start();
    let client = daemon.client();
    let mut model = Model::put(&client, "t", Dtype::U16, &[100, 8], &raw(), vec![0; 1600]);
    let handle = client.open("t").expect("it is there");
    let file = |name: &str, shape: &[u64], bytes: &[u8]| {
        let tensors = Tensors::from([(name.to_owned(), FileTensor::new("U16", shape, bytes))]);
        daemon.file("values.safetensors", &files::safetensors(&tensors, &Metadata::new()))
    };
    let values = Random::new(1).bytes(4 * 16);
    let path = file("anything", &[4, 8], &values);
    let told = daemon.run_ok(&["update", "t", "--rows", "7,50-52", "--from", &path]);
    assert_says(&told, &["4 rows", "t", "revision 1"]);
    for (row, value) in [7, 50, 51, 52].into_iter().zip(values.chunks(16)) {
        model.bytes[row * 16..][..16].copy_from_slice(value);
    }
    model.revision = 1;
    model.check(&daemon, &handle);

    let all = Random::new(2).bytes(1600);
    let json = daemon.run_ok(&["update", "t", "--from", &file("t", &[100, 8], &all), "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("one object");
    assert_eq!(
        (&json["revision"], &json["rows"], &json["raw_bytes"]),
        (&2.into(), &100.into(), &1600.into())
    );
    (model.bytes, model.revision) = (all, 2);
    model.check(&daemon, &handle);
    model.check_program(&daemon);
    assert_says(&daemon.run_ok(&["ls", "--verbose"]), &["revision"]);

    let short = file("t", &[1, 8], &[0; 16]);
    let refused = |args: &[&str], says: &[&str]| {
        assert_says(&error_line(&daemon.run(&[&["update", "t"], args].concat())), says);
    };
    refused(&["--rows", "100", "--from", &short], &["row 100", "position 0", "100 rows"]);
    refused(&["--rows", "1,2", "--from", &short], &["16 bytes", "2 rows of 16 bytes", "32 bytes"]);
    refused(&["--rows", "x", "--from", &short], &["\"x\"", "0,5,10-20"]);
    refused(&["--from", &short], &["100 rows"]);
    let text = daemon.file("values.txt", b"1");
    refused(&["--from", &text], &["neither npy nor safetensors but text", "--format"]);
    model.check(&daemon, &handle);
    assert_eq!(daemon.run(&["update", "t"]).status.code(), Some(2));
}

#[test]
fn the_program_refits() {
    let daemon = start();
    let client = daemon.client();
    let noise = Random::new(9).bytes(2048 * 512);
    let mut model = Model::put(&client, "t", Dtype::Bf16, &[2048, 256], &PutOptions::new(), noise);
    let handle = client.open("t").expect("it is there");
    let all: Vec<u64> = (0..2048).collect();
    assert_says(&daemon.run_ok(&["refit", "t"]), &["before", "predicted", "after", "--force"]);
    model.update(&handle, &all, &weights(CodecId::Planes4, 2048 * 256, 1));
    let json = |args: &[&str]| -> serde_json::Value {
        let text = daemon.run_ok(&[&["refit", "t", "--json"], args].concat());
        serde_json::from_str(&text).expect("one object")
    };
    let dry = json(&["--dry-run"]);
    assert_eq!((&dry["codec"], &dry["refits"]), (&"raw".into(), &0.into()));
    assert!(dry["predicted_bytes"].as_u64() < dry["stored_bytes"].as_u64(), "{dry}");
    let done = json(&[]);
    assert_eq!((&done["refits"], &done["state"]), (&1.into(), &"idle".into()), "{done}");
    assert_eq!(done["codec"], dry["predicted_codec"]);
    assert!(done["stored_bytes"].as_u64() < done["stored_bytes_before"].as_u64(), "{done}");
    model.check(&daemon, &handle);
    let forced = json(&["--force"]);
    assert_eq!(forced["refits"], 2);
    model.check(&daemon, &handle);
    model.check_program(&daemon);
    assert_says(&error_line(&daemon.run(&["refit", "missing"])), &["missing"]);
    assert_eq!(daemon.run(&["refit", "t", "--force", "--dry-run"]).status.code(), Some(2));
}

#[test]
fn processes_that_update_the_same_tensor_see_no_mixture_and_nothing_goes_back() {
    const PROCESSES: u16 = 4;
    const SHAPE: [u64; 2] = [2100, 32];
    for (codec, compressible) in [(CodecId::Raw, false), (CodecId::Ibp, true)] {
        let daemon = start();
        let words = Words::new(compressible);
        let mut bytes = vec![0; index(SHAPE[0] * SHAPE[1] * 8)];
        for (row, target) in (0..).zip(bytes.chunks_exact_mut(256)) {
            let owner = if row < 16 { 0 } else { row % u64::from(PROCESSES) };
            words.fill(target, u16::try_from(owner).expect("a process"), 0, row * 32);
        }
        let client = daemon.client();
        client.put_with("t", Dtype::U64, &SHAPE, &mut &bytes[..], &only(codec)).expect("room");
        let start_one = |process: u16| {
            let (process, processes) = (process.to_string(), PROCESSES.to_string());
            let mut args = vec!["update", "--tensor", "t", "--process", &process, "--processes", &processes];
            args.extend(["--millis", "1500"]);
            args.extend(compressible.then_some("--compressible"));
            TestClient::start(CLIENT, &daemon, &args)
        };
        let mut running: Vec<TestClient> = (0..PROCESSES).map(start_one).collect();
        for one in &mut running {
            one.line().expect("it has connected");
        }
        for one in &mut running {
            one.tell("go");
        }
        // A refit in the midst of it.
        client.refit("t", tierpack_client::RefitMode::Force, |_, _| ()).expect("room");
        let mut updates = 0;
        for one in running {
            let report: ChurnReport = serde_json::from_str(&one.finish()).expect("a report");
            assert!(report.faults.is_empty(), "{codec}: {:?}", report.faults);
            assert!(report.puts > 0 && report.reads > 0, "{report:?}");
            updates += report.puts;
        }
        assert_eq!(client.open("t").expect("it is there").revision().expect("it is there"), updates);
        daemon.run_ok(&["verify", "t"]);
        let stats = daemon.quiet();
        assert_eq!(stats.pool.used_bytes, stats.pool.stored_bytes, "{codec}");
    }
}
