//! Block words at the ends of what they count: the ring is lapped, a word comes back, a block is not in the pool.
//!
//! The daemon is a scripted one, so that 2^18 stores take no time, and words are what the test wants them to be.

use tierpack_client::{CacheConfig, CodecId, DeviceHandle, Error, Gpu, GpuConfig};
use tierpack_shm::faults::{Point, set};
use tierpack_shm::types::{BlockWord, Extent};
use tierpack_tests::data::fill;
use tierpack_tests::device::{MODES, Needs, in_child, in_child_that};
use tierpack_tests::eventually;
use tierpack_tests::rows::{ROW_BYTES, Table};

#[path = "device_graph/captured.rs"]
mod captured;
#[path = "device_words/scripted.rs"]
mod scripted;

use captured::Captured;
use scripted::Scripted;

/// Two blocks of 512 rows, and a short one.
const ROWS: u64 = 1100;
/// Rows of every block.
const IDS: [u64; 8] = [0, 5, 511, 512, 700, 1023, 1024, 1099];
/// What the ring holds.
const RING: u64 = 1 << 13;
/// Stores after which a block may have a word that it had.
const ROUND: u64 = 1 << 18;

/// A tensor of the scripted daemon, and a warm cache.
struct Stage {
    tensor: Scripted,
    gpu: Gpu,
    device: DeviceHandle,
    /// What each block holds now.
    versions: Vec<u16>,
    extents: Vec<Extent>,
    sequences: Vec<u32>,
}

impl Stage {
    fn new(bytes: u64) -> Self {
        let mut tensor = Scripted::open(ROWS);
        let gpu = Gpu::open(&GpuConfig::new()).expect("a GPU");
        let (mut extents, mut versions, mut sequences) = (Vec::new(), Vec::new(), Vec::new());
        for block_idx in 0..tensor.geometry.n_blocks() {
            let extent = tensor.write(block_idx, &block(&tensor, block_idx, 1));
            tensor.store(block_idx, tensor.word(&extent, 1));
            extents.push(extent);
            versions.push(1);
            sequences.push(1);
        }
        let device = tensor.handle.on_device(&gpu, CacheConfig::new(bytes)).expect("it fits");
        let this = Self { tensor, gpu, device, versions, extents, sequences };
        (0..2).for_each(|_| this.check("a warm cache"));
        this
    }

    /// Stores a new version of a block elsewhere; the old extent stays as it was.
    fn change(&mut self, block_idx: usize) -> Extent {
        let place = block_idx as u64;
        self.versions[block_idx] += 1;
        self.sequences[block_idx] += 1;
        let extent = self.tensor.write(place, &block(&self.tensor, place, self.versions[block_idx]));
        let word = self.tensor.word(&extent, self.sequences[block_idx]);
        self.tensor.store(place, word);
        std::mem::replace(&mut self.extents[block_idx], extent)
    }

    /// Gathers rows of every block; each must have the version that its block has now.
    #[track_caller]
    fn check(&self, what: &str) {
        self.check_rows(&IDS, what);
    }

    #[track_caller]
    fn check_rows(&self, ids: &[u64], what: &str) {
        let ids_there = self.gpu.ids(ids).expect("few ids");
        let rows = self.device.gather(&ids_there).and_then(|rows| rows.to_host()).expect("rows");
        self.look(ids, &rows, what);
    }

    #[track_caller]
    fn look(&self, ids: &[u64], rows: &[u8], what: &str) {
        let mut wanted = vec![0; ROW_BYTES];
        for (&row, found) in ids.iter().zip(rows.chunks_exact(ROW_BYTES)) {
            let (block_idx, _) = self.tensor.geometry.locate(row);
            let version = self.versions[usize::try_from(block_idx).expect("few blocks")];
            fill(&mut wanted, 9, version, row * 64);
            let first = u64::from_le_bytes(*found.first_chunk().expect("a row"));
            let origin = tierpack_tests::data::parts(first);
            assert!(found == wanted, "{what}: row {row} is not of version {version}, but {origin:?}");
        }
    }

    /// Tells of stores to block 1, whose word stays.
    fn tell(&self, n: u64) {
        (0..n).for_each(|_| self.tensor.tell(1));
    }
}

fn block(tensor: &Scripted, block_idx: u64, version: u16) -> Vec<u8> {
    let range = tensor.range(block_idx);
    let mut bytes = vec![0; range.len()];
    fill(&mut bytes, 9, version, range.start as u64 / 8);
    bytes
}

#[test]
fn a_store_is_seen_however_far_the_ring_came_round() {
    if !in_child_that(Needs::InPlace, "a_store_is_seen_however_far_the_ring_came_round", MODES) {
        return;
    }
    let mut stage = Stage::new(1 << 20);
    for others in [0, 1, RING - 2, RING - 1, RING, RING + 1, 2 * RING - 1, 3 * RING + 7, 9 * RING] {
        for block_idx in [0, 2] {
            let what = format!("block {block_idx}, then {others} stores");
            stage.change(block_idx);
            stage.tell(others);
            stage.check(&what);
            stage.check(&what);
        }
    }
}

/// The word that a block had comes back with other bytes, after as many stores as its sequence counts, with gathers
/// in between after so many stores each, or none.
fn come_back(stage: &mut Stage, between: Option<u64>, what: &str) {
    let word = stage.tensor.word(&stage.extents[0], stage.sequences[0]);
    stage.check(what);
    let old = stage.change(0);
    let others: Vec<u64> = IDS.into_iter().filter(|row| *row >= 512).collect();
    let mut left = ROUND - 2;
    while let Some(each) = between.filter(|each| *each < left) {
        stage.tell(each);
        left -= each;
        stage.check_rows(&others, what);
    }
    stage.tell(left);
    // Its memory is free, and becomes that of the block's next version.
    stage.tensor.free(old);
    stage.versions[0] += 1;
    let extent = stage.tensor.write(0, &block(&stage.tensor, 0, stage.versions[0]));
    let again = stage.tensor.word(&extent, stage.sequences[0] - 1);
    assert_eq!(again, word, "{what}: the memory came back elsewhere");
    stage.sequences[0] -= 1;
    stage.tensor.store(0, again);
    let before = std::mem::replace(&mut stage.extents[0], extent);
    stage.tensor.free(before);
    (0..2).for_each(|_| stage.check(what));
}

#[test]
fn a_word_that_comes_back_after_all_sequences_revives_no_line() {
    if !in_child_that(Needs::InPlace, "a_word_that_comes_back_after_all_sequences_revives_no_line", MODES) {
        return;
    }
    for is_kept in [false, true] {
        let mut stage = Stage::new(1 << 20);
        // None at all, at each step of a sweep and around it, and just before the end.
        let between = [
            None,
            Some(1 << 13),
            Some(1 << 15),
            Some((1 << 16) - 1),
            Some(1 << 16),
            Some(1 << 17),
            Some((1 << 17) + 1),
            Some(ROUND - 3),
        ];
        for between in between {
            if is_kept {
                stage.device.keep(&IDS).expect("rows in range");
            }
            come_back(&mut stage, between, &format!("kept: {is_kept}, gathers every {between:?} stores"));
        }
    }
}

#[test]
fn a_block_that_is_not_in_the_pool_is_named() {
    if !in_child("a_block_that_is_not_in_the_pool_is_named", MODES) {
        return;
    }
    let mut stage = Stage::new(1 << 20);
    let gone = BlockWord::from_bits(stage.tensor.word(&stage.extents[1], 2).bits() & !BlockWord::RESIDENT);
    stage.tensor.store(1, gone);
    let ids = stage.gpu.ids(&IDS).expect("few ids");
    for _ in 0..2 {
        let outcome = stage.device.gather(&ids).and_then(|rows| rows.wait());
        assert!(matches!(outcome, Err(Error::Unsupported { block_idx: 1, .. })), "{outcome:?}");
    }
    let outcome = stage.device.gather_into(&ids, &mut stage.device.output(IDS.len()).expect("it fits"));
    let outcome = outcome.and_then(|gather| gather.wait());
    assert!(matches!(outcome, Err(Error::Unsupported { block_idx: 1, .. })), "{outcome:?}");
    // Rows of other blocks come all the same, from the cache and from the pool.
    stage.check_rows(&[0, 5, 1024, 1098], "rows of other blocks");
    stage.sequences[1] = 2;
    stage.change(1);
    stage.check("it is back");
}

#[test]
fn a_block_that_comes_while_its_gather_is_on_its_way_is_gathered_again() {
    if !in_child_that(
        Needs::InPlace,
        "a_block_that_comes_while_its_gather_is_on_its_way_is_gathered_again",
        MODES,
    ) {
        return;
    }
    let mut stage = Stage::new(1 << 20);
    // More than the list of a call has room for, and a few.
    let many: Vec<u64> = (0..ROWS).collect();
    for ids in [&IDS[..], &many] {
        for block_idx in [0, 1, 2] {
            let sequence = stage.sequences[block_idx] + 1;
            let word = stage.tensor.word(&stage.extents[block_idx], sequence);
            let gone = BlockWord::from_bits(word.bits() & !BlockWord::RESIDENT);
            stage.tensor.store(block_idx as u64, gone);
            stage.sequences[block_idx] = sequence;
            let on_gpu = stage.gpu.ids(ids).expect("few ids");
            let pending = stage.device.gather(&on_gpu).expect("it is launched");
            stage.change(block_idx);
            let rows = pending.to_host().expect("they are there now");
            stage.look(ids, &rows, &format!("with block {block_idx} back"));
            stage.check("afterwards");
        }
    }
}

/// Waits until a thread of this process sleeps, and goes on sleeping.
fn wait_asleep(thread: nix::unistd::Pid, is_over: impl Fn() -> bool) {
    let mut asleep = 0;
    eventually("a thread that sleeps", || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        let sleeps = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'));
        asleep = if sleeps { asleep + 1 } else { 0 };
        (asleep > 10 || is_over()).then_some(())
    });
}

#[test]
fn a_word_that_comes_back_while_words_are_loaded_revives_no_line() {
    if !in_child_that(
        Needs::InPlace,
        "a_word_that_comes_back_while_words_are_loaded_revives_no_line",
        &MODES[..1],
    ) {
        return;
    }
    let mut stage = Stage::new(1 << 20);
    let word = stage.tensor.word(&stage.extents[1], stage.sequences[1]);
    let old = stage.change(1);
    stage.tensor.cover(0);
    set(Point::OverlayFound, "1*pause").expect("a point of this process");
    let ids = stage.gpu.ids(&IDS).expect("few ids");
    let device = stage.device.clone();
    let rows = std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let gathering = scope.spawn(move || {
            tell.send(nix::unistd::gettid()).expect("the test waits");
            device.gather(&ids).and_then(|rows| rows.to_host())
        });
        // It has asked where the ring is, and has not loaded the word of block 1.
        wait_asleep(told.recv().expect("a thread"), || gathering.is_finished());
        stage.tell(ROUND - 2);
        stage.tensor.free(old);
        stage.versions[1] += 1;
        let extent = stage.tensor.write(1, &block(&stage.tensor, 1, stage.versions[1]));
        assert_eq!(stage.tensor.word(&extent, 1), word, "the memory came back elsewhere");
        stage.tensor.store(1, word);
        assert!(!gathering.is_finished(), "it was not stopped");
        set(Point::OverlayFound, "off").expect("a point of this process");
        gathering.join().expect("no panic").expect("rows")
    });
    stage.look(&IDS, &rows, "stopped while it loads words");
    stage.check("afterwards");
}

#[test]
fn a_graph_that_was_not_refreshed_for_long_revives_no_line() {
    if !in_child_that(Needs::InPlace, "a_graph_that_was_not_refreshed_for_long_revives_no_line", MODES) {
        return;
    }
    let table = Table { tensor: 9, codec: CodecId::Raw, n_rows: ROWS };
    for is_refreshed in [false, true] {
        let what = format!("refreshed: {is_refreshed}");
        let mut stage = Stage::new(1 << 20);
        let mut captured = Captured::new(&stage.device);
        captured.check(&table, 1, &what);
        let word = stage.tensor.word(&stage.extents[0], 1);
        let old = stage.change(0);
        stage.tell(ROUND - 100);
        // The handle's launch empties the cache, and the graph puts what it leases there again.
        stage.check(&what);
        captured.check(&table, 1, &what);
        let kept = if is_refreshed {
            captured.refresh().expect("the same tensor");
            captured.check_each(&table, |row| if row < 512 { 2 } else { 1 }, &what);
            // The lease of the refresh before has ended.
            eventually("the end of a lease", || (stage.tensor.leases() <= 1).then_some(()));
            Some(captured)
        } else {
            drop(captured);
            eventually("the end of all leases", || (stage.tensor.leases() == 0).then_some(()));
            None
        };
        stage.tell(98);
        stage.tensor.free(old);
        stage.versions[0] = 3;
        let extent = stage.tensor.write(0, &block(&stage.tensor, 0, 3));
        assert_eq!(stage.tensor.word(&extent, 1), word, "{what}: the memory came back elsewhere");
        stage.tensor.store(0, word);
        (0..2).for_each(|_| stage.check(&what));
        drop(kept);
    }
}
