//! Refits of unusual values and shapes, by handles of any age, and updates that find no room: every byte stays.

use tierpack_client::{Client, CodecChoice, CodecId, Dtype, Error, Handle, PutOptions, RefitMode};
use tierpack_tests::data::{Random, Words};
use tierpack_tests::leaks::Baseline;
use tierpack_tests::{Daemon, eventually, full, raw};

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

/// Keys and values of 16 layers in turn, of 1024 tokens each, in bf16: the exponents of keys spread widely.
fn cache(zero_tokens: usize) -> Vec<u8> {
    const TOKENS: usize = 1024;
    let mut random = Random::new(5);
    let mut bytes = Vec::with_capacity(16 * 2 * TOKENS * 384 * 2);
    for part in 0..32 {
        let is_key = part % 2 == 0;
        for token in 0..TOKENS {
            for _ in 0..384 {
                let any = random.next_u64().to_le_bytes();
                let exponent = if is_key { 0x34 + any[2] % 12 } else { 0x3C + any[2] % 2 };
                let word = [any[0], any[1] & 0x80 | exponent];
                bytes.extend_from_slice(if token < TOKENS - zero_tokens { &word } else { &[0; 2] });
            }
        }
    }
    bytes
}

/// Weights in bf16 whose every 6th block of 256 KiB is zero.
fn pruned_weights() -> Vec<u8> {
    let mut random = Random::new(6);
    let mut bytes = Vec::with_capacity(24 << 20);
    for _ in 0..12 << 20 {
        let any = random.next_u64().to_le_bytes();
        bytes.extend_from_slice(&[any[0], any[1] & 0x80 | (0x38 + any[2] % 6)]);
    }
    bytes.chunks_mut(256 << 10).skip(3).step_by(6).for_each(|block| block.fill(0));
    bytes
}

/// What a tensor takes is what every table says of it: the list, its drift, and the stats, where it is the only one.
fn check_promise(daemon: &Daemon, client: &Client, name: &str) {
    let drift = client.drift(name).expect("it is there");
    let entries = client.list().expect("a list");
    let entry = entries.iter().find(|entry| entry.name == name).expect("it is there");
    let stats = daemon.stats();
    let predicted = [drift.predicted_bytes, entry.predicted_bytes, stats.namespaces[0].predicted_bytes];
    assert_eq!(predicted, [drift.stored_bytes; 3], "{name}: {drift:?}");
}

#[test]
fn a_refit_makes_no_tensor_longer_and_what_came_is_what_is_promised() {
    // Longer than the chunk that a put is judged by: the background looks at each of them.
    let cpu = ["--refit-cpu-percent", "100", "--refit-gain-percent", "1"];
    let daemon = Daemon::start(PROGRAM, &[&["--pool-size", "256MiB", "--lock", "off"][..], &cpu].concat());
    let client = daemon.client();
    let (weights, layers) = ([12_288, 1024], [16, 2, 1024, 384]);
    for (name, shape, bytes) in [
        ("weights", &weights[..], pruned_weights()),
        ("cache", &layers, cache(0)),
        ("padded cache", &layers, cache(256)),
    ] {
        let entry = client.put_with(name, Dtype::Bf16, shape, &mut &bytes[..], &PutOptions::new());
        let put_bytes = entry.expect("room").stored_bytes;
        eventually("a look at the whole tensor", || {
            let is_seen = client.drift(name).expect("it is there").predicted_bytes > 0;
            (is_seen && daemon.stats().background.state == "idle").then_some(())
        });
        let auto = client.drift(name).expect("it is there");
        println!("{name}: {put_bytes} of {} bytes, then {auto:?}", bytes.len());
        assert!(auto.stored_bytes <= put_bytes, "{name} as put has {put_bytes} bytes: {auto:?}");
        assert!(auto.predicted_bytes * 100 > auto.stored_bytes * 97, "{name}: {auto:?}");
        if auto.refits > 0 {
            check_promise(&daemon, &client, name);
        }
        let better = client.refit(name, RefitMode::IfBetter, |_, _| ()).expect("a refit");
        assert!(better.stored_bytes <= auto.stored_bytes, "{name}: {auto:?}, then {better:?}");
        assert!(client.get(name).expect("it is there").as_bytes() == bytes, "{name}");
        client.remove(name).expect("it is there");
    }
    let failures = daemon.stats().background.failures;
    assert_eq!(failures, 0);
}

#[test]
fn blocks_that_new_metadata_make_longer_stay_as_they_are() {
    let daemon = start("128MiB");
    let client = daemon.client();
    // Few blocks, of which all are tried, and many. Those that do not change suit the first metadata best.
    for n_blocks in [8, 40] {
        let word = |block: u64, value: u8, any: u64| {
            let any = any.to_le_bytes();
            [any[0], if block == 0 { 0x30 + any[1] % 8 } else { value + any[1] % 2 }]
        };
        let mut random = Random::new(n_blocks);
        let mut blocks = |numbers: std::ops::Range<u64>, value| -> Vec<u8> {
            let words = numbers.flat_map(|block| std::iter::repeat_n(block, 128 << 10));
            words.flat_map(|block| word(block, value, random.next_u64())).collect()
        };
        let (n_rows, half) = (n_blocks * 128, n_blocks / 2 * 128);
        let mut bytes = blocks(0..n_blocks, 0x3E);
        let name = n_blocks.to_string();
        client
            .put_with(&name, Dtype::Bf16, &[n_rows, 1024], &mut &bytes[..], &PutOptions::new())
            .expect("room");
        let handle = client.open(&name).expect("it is there");
        let rows: Vec<u64> = (half..n_rows).collect();
        let later = blocks(n_blocks / 2..n_blocks, 0x50);
        for (rows, later) in rows.chunks(1024).zip(later.chunks(1024 * 2048)) {
            handle.update(rows, later).expect("room");
        }
        bytes.truncate(bytes.len() - later.len());
        bytes.extend_from_slice(&later);
        let before = client.drift(&name).expect("it is there");
        let after = client.refit(&name, RefitMode::IfBetter, |_, _| ()).expect("a refit");
        println!("{before:?}\n{after:?}");
        assert_eq!((after.refits, after.last_failure.as_ref()), (1, None));
        assert!(after.stored_bytes < before.stored_bytes, "{before:?}, then {after:?}");
        check_promise(&daemon, &client, &name);
        assert!(handle.get().expect("it is there").as_bytes() == bytes);
        daemon.run_ok(&["verify", &name]);
        // Asked for by name, all blocks have one form.
        let forced = client.refit(&name, RefitMode::Force, |_, _| ()).expect("a refit");
        assert_eq!((forced.refits, forced.generations_alive), (2, 1), "{forced:?}");
        check_promise(&daemon, &client, &name);
        assert!(handle.get().expect("it is there").as_bytes() == bytes);
        client.remove(&name).expect("it is there");
    }
}
