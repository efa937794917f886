//! Refits of unusual values and shapes, by handles of any age, and updates that find no room: every byte stays.

use tierpack_client::{Client, CodecChoice, CodecId, Dtype, Error, Handle, PutOptions, RefitMode};
use tierpack_tests::data::{Random, Words};
use tierpack_tests::leaks::Baseline;
use tierpack_tests::{Daemon, full, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

fn start(pool: &str) -> Daemon {
    let cpu = ["--refit-cpu-percent", "100"];
    Daemon::start(PROGRAM, &[&["--pool-size", pool, "--lock", "off", "--refit", "manual"][..], &cpu].concat())
}

fn only(codec: CodecId) -> PutOptions {
    PutOptions::new().codec(CodecChoice::Only(codec))
}

fn len_of(dtype: Dtype, shape: &[u64]) -> usize {
    let bits = shape.iter().product::<u64>() * u64::from(dtype.bits());
    usize::try_from(bits.div_ceil(8)).expect("a small tensor")
}

/// Has the daemon make new metadata and use them for every block.
fn refit(client: &Client, name: &str) {
    let before = client.drift(name).expect("it is there").refits;
    let drift = client.refit(name, RefitMode::Force, |_, _| ()).expect("a refit");
    // Without blocks there is nothing to do.
    let more = u64::from(drift.n_blocks > 0);
    assert_eq!((drift.last_failure, drift.refits), (None, before + more), "{name}");
}

/// Puts a tensor, gives all its rows new values, refits it, and compares after each step.
fn check_life(
    client: &Client,
    name: &str,
    (dtype, shape): (Dtype, &[u64]),
    options: &PutOptions,
    values: [&[u8]; 2],
) {
    let [first, second] = values;
    client.put_with(name, dtype, shape, &mut &*first, options).expect("room");
    let handle = client.open(name).expect("it is there");
    assert!(handle.get().expect("it is there").as_bytes() == first, "{name} as put");
    refit(client, name);
    assert!(handle.get().expect("it is there").as_bytes() == first, "{name} after a refit");
    let rows: Vec<u64> = (0..handle.n_rows()).collect();
    match handle.update(&rows, second) {
        Ok(_) => {}
        // Rows that are not whole bytes.
        Err(Error::NotGatherable { .. }) => return client.remove(name).expect("it is there"),
        Err(error) => unreachable!("{name}: {error}"),
    }
    assert!(handle.get().expect("it is there").as_bytes() == second, "{name} after an update");
    refit(client, name);
    for handle in [handle, client.open(name).expect("it is there")] {
        assert!(handle.get().expect("it is there").as_bytes() == second, "{name} after both");
        assert!(handle.gather(&rows).expect("rows in range").as_bytes() == second, "{name} by rows");
    }
    client.remove(name).expect("it is there");
}

/// C80: constant tensors, not-a-numbers, one row.
#[test]
fn tensors_of_one_value_and_of_one_row_come_back_after_a_refit() {
    let daemon = start("64MiB");
    let client = daemon.client();
    let before = Baseline::take(&daemon, 1);
    for (dtype, nan) in [
        (Dtype::F32, &0x7FC0_0001_u32.to_le_bytes()[..]),
        (Dtype::Bf16, &0xFFC1_u16.to_le_bytes()),
        (Dtype::F16, &0x7E01_u16.to_le_bytes()),
        (Dtype::F64, &0x7FF8_0000_0000_0001_u64.to_le_bytes()),
    ] {
        for shape in [&[1_u64, 256][..], &[600, 256], &[1, 1], &[3, 70_000]] {
            let len = len_of(dtype, shape);
            let nans = nan.repeat(len / nan.len());
            let (equal, zeros) = (vec![0x3C; len], vec![0; len]);
            let noise = Random::new(1).bytes(len);
            for values in
                [[&nans, &equal], [&equal, &nans], [&zeros, &noise], [&noise, &zeros], [&nans, &nans]]
            {
                let values = values.map(|bytes| &bytes[..]);
                check_life(
                    &client,
                    &format!("{dtype:?} {shape:?}"),
                    (dtype, shape),
                    &PutOptions::new(),
                    values,
                );
            }
        }
    }
    for &codec in CodecId::ALL {
        let shape = [700, 256];
        let len = len_of(Dtype::Bf16, &shape);
        let (nans, equal) = (0xFFC1_u16.to_le_bytes().repeat(len / 2), vec![0x3C; len]);
        check_life(&client, codec.name(), (Dtype::Bf16, &shape), &only(codec), [&nans, &equal]);
    }
    let mut daemon = daemon;
    before.returns(&mut daemon);
}

/// C12: tensors without elements.
#[test]
fn tensors_without_elements_and_scalars_are_refitted() {
    let daemon = start("16MiB");
    let client = daemon.client();
    for shape in [&[0_u64, 4][..], &[4, 0], &[0], &[2, 0, 3]] {
        check_life(&client, &format!("{shape:?}"), (Dtype::F32, shape), &PutOptions::new(), [&[], &[]]);
    }
    check_life(
        &client,
        "scalar",
        (Dtype::F32, &[]),
        &PutOptions::new(),
        [&[1, 2, 3, 4], &[0, 0, 0xC0, 0x7F]],
    );
    assert!(client.list().expect("a list").is_empty());
}

/// C01: every pattern of every dtype, where it is short enough to have few.
#[test]
fn every_pattern_of_every_dtype_comes_back_after_a_refit() {
    let daemon = start("64MiB");
    let client = daemon.client();
    for &dtype in Dtype::ALL {
        let shape = [1024, 64];
        let len = len_of(dtype, &shape);
        let patterns: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).cycle().take(len).collect();
        let mut turned = patterns.clone();
        turned.reverse();
        check_life(&client, dtype.name(), (dtype, &shape), &PutOptions::new(), [&patterns, &turned]);
    }
}

/// C09: coders of the first metadata are kept by one handle, those of the last by another.
#[test]
fn handles_with_old_metadata_read_what_handles_with_new_ones_do() {
    const ROWS: u64 = 1024;
    let daemon = start("32MiB");
    let client = daemon.client();
    let bytes = |version| {
        let mut bytes = vec![0; 1024 * 512];
        Words::Compressible.fill(&mut bytes, 7, version, 0);
        bytes
    };
    let mut copy = bytes(1);
    client.put_with("t", Dtype::U64, &[ROWS, 64], &mut &copy[..], &only(CodecId::Ibp)).expect("room");
    let mut handles: Vec<Handle> = Vec::new();
    for round in 0..20_u16 {
        let handle = client.open("t").expect("it is there");
        assert!(handle.get().expect("it is there").as_bytes() == copy);
        handles.push(handle);
        // Other metadata: the words have another version in their constant bits.
        copy = bytes(round + 2);
        let rows: Vec<u64> = (0..ROWS).collect();
        handles[0].update(&rows, &copy).expect("room");
        refit(&client, "t");
        let drift = client.drift("t").expect("it is there");
        assert_eq!(drift.generation, u32::from(round) + 2);
        for (n, handle) in handles.iter().enumerate() {
            assert!(handle.get().expect("it is there").as_bytes() == copy, "handle {n} in round {round}");
            assert!(handle.gather(&[1023, 0]).expect("rows in range").as_bytes()[512..] == copy[..512]);
        }
    }
}

/// C29: an update that finds no room, or is refused, leaves neither bytes nor leases.
#[test]
fn a_refused_update_leaves_nothing() {
    const ROWS: u64 = 128;
    const ROW_BYTES: usize = 8192;
    let mut daemon = start("16MiB");
    let client = daemon.client();
    let bytes = Random::new(1).bytes(1 << 20);
    client.put_with("t", Dtype::U8, &[ROWS, 8192], &mut &bytes[..], &raw()).expect("room");
    let handle = client.open("t").expect("it is there");
    handle.get().expect("it is there");
    // Large ones, then smaller ones, until there is no room for an overlay of some rows; few, for their names take room too.
    let mut fillers = 0;
    for len in [1 << 20, 64 << 10, 32 << 10] {
        while client
            .put_with(&format!("filler-{fillers}"), Dtype::U8, &[len], &mut &bytes[..], &raw())
            .is_ok()
        {
            fillers += 1;
        }
    }
    let full_pool = Baseline::take(&daemon, 1);
    let all: Vec<u64> = (0..ROWS).collect();
    for rows in [&[0_u64, 1, 2, 3, 64, 65, 66, 67][..], &all] {
        let error = handle.update(rows, &vec![7; rows.len() * ROW_BYTES]).expect_err("a full pool");
        assert!(matches!(error, Error::PoolFull { .. }), "{error}");
        assert!(handle.update(&[ROWS], &[0; ROW_BYTES]).is_err() && handle.update(&[0], &[0; 511]).is_err());
        assert!(handle.get().expect("it is there").as_bytes() == bytes);
        assert_eq!(handle.revision().expect("it is there"), 0);
        full_pool.returns(&mut daemon);
    }
    let error = client.refit("t", RefitMode::Force, |_, _| ()).map(|drift| drift.last_failure);
    assert!(handle.get().expect("it is there").as_bytes() == bytes, "{error:?}");
    for n in 0..fillers {
        client.remove(&format!("filler-{n}")).expect("it is there");
    }
    for rows in [&[0_u64, 1, 2, 3, 64, 65, 66, 67][..], &all] {
        handle.update(rows, &vec![7; rows.len() * ROW_BYTES]).expect("room again");
    }
    assert!(handle.get().expect("it is there").as_bytes() == [7; 1 << 20]);
    client.remove("t").expect("it is there");
    let stats = daemon.quiet();
    assert_eq!((stats.pool.used_bytes, stats.pool.stored_bytes), (0, 0));
}

/// C22: rows past 2^31 elements and 2^32 bytes, before and after a refit.
#[test]
fn large_tables_keep_their_rows_after_a_refit() {
    for (dtype, n_rows, columns) in if full() {
        [(Dtype::F8E4m3, 2_097_153, 1024), (Dtype::Bf16, 2_100_000, 1024), (Dtype::U8, (1 << 31) + 10, 1)]
    } else {
        [(Dtype::F8E4m3, 10_241, 1024), (Dtype::Bf16, 10_500, 1024), (Dtype::U8, (1 << 22) + 10, 1)]
    } {
        let row_bytes = columns * u64::from(dtype.bits()) / 8;
        let pool = n_rows * row_bytes / (1 << 20) * 22 / 10 + 160;
        let daemon = start(&format!("{pool}MiB"));
        let client = Client::builder().socket(daemon.socket()).connect().expect("connect");
        let mut zeros = std::io::repeat(0);
        client.put_with("t", dtype, &[n_rows, columns], &mut zeros, &PutOptions::new()).expect("room");
        let handle = client.open("t").expect("it is there");
        let rows = [0, 1, n_rows / 2, n_rows - 3, n_rows - 2, n_rows - 1];
        let values = Random::new(3).bytes(rows.len() * usize::try_from(row_bytes).expect("a short row"));
        handle.update(&rows, &values).expect("room");
        for _ in 0..2 {
            assert!(handle.gather(&rows).expect("rows in range").as_bytes() == values, "{dtype:?}");
            let beside = handle.gather(&[2, n_rows / 2 + 1, n_rows - 4]).expect("rows in range");
            assert!(beside.as_bytes().iter().all(|byte| *byte == 0), "{dtype:?}");
            refit(&client, "t");
        }
        daemon.run_ok(&["verify", "t"]);
    }
}
