//! Readers with warm caches: two GPUs, caches of few lines and of all, several tensors at once, a stream of the caller.

use tierpack_client::{
    CacheConfig, Client, CodecId, DeviceHandle, DeviceTensor, Error, Gpu, GpuConfig, Result,
};
use tierpack_tests::data::Random;
use tierpack_tests::rows::{ROW_BYTES, Table};

use super::change::{Change, FEW, Progress, ROWS};
use super::stream::Other;

const IDS: usize = 24;
const FEW_LINES: u64 = 6 << 10;
const ALL_LINES: u64 = 2 << 20;

/// The GPUs of a process, and somebody else's stream.
pub(crate) struct Gpus {
    gpus: [Gpu; 2],
    other: Other,
}

impl Gpus {
    pub(crate) fn open() -> Self {
        let gpu = || Gpu::open(&GpuConfig::new()).expect("a GPU");
        Self { gpus: [gpu(), gpu()], other: Other::open() }
    }

    pub(crate) fn first(&self) -> &Gpu {
        &self.gpus[0]
    }

    pub(crate) const fn other(&self) -> &Other {
        &self.other
    }
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) rows: u64,
    pub(crate) stale: u64,
    pub(crate) mixed: u64,
    first: Option<String>,
}

impl Found {
    pub(crate) fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.stale += other.stale;
        self.mixed += other.mixed;
        self.first = self.first.take().or_else(|| other.first.clone());
    }

    #[track_caller]
    pub(crate) fn check(&self, what: &str) {
        assert_eq!((self.stale, self.mixed), (0, 0), "{what}: stale and mixed rows: {:?}", self.first);
    }
}

/// A handle with its cache, and the newest version of each row that it gave.
struct Reader {
    handle: DeviceHandle,
    seen: Vec<u16>,
}

/// Readers of one tensor, and of another that nobody changes.
pub(crate) struct Readers<'a> {
    gpus: &'a Gpus,
    table: Table,
    change: Change,
    all: Vec<Reader>,
    still: (DeviceHandle, Table),
    out: DeviceTensor,
    random: Random,
}

impl<'a> Readers<'a> {
    pub(crate) fn new(gpus: &'a Gpus, client: &Client, table: Table, change: Change) -> Self {
        let still = Table { tensor: 40, codec: CodecId::Ibp, n_rows: 64 };
        still.put(client, "still", 1).expect("room");
        let [first, second] = &gpus.gpus;
        let handle = client.open("target").expect("it is there");
        let reader = |gpu: &Gpu, bytes| {
            let handle = handle.on_device(gpu, CacheConfig::new(bytes)).expect("it fits");
            Reader { handle, seen: vec![1; usize::try_from(ROWS).expect("few rows")] }
        };
        let all = vec![
            reader(first, FEW_LINES),
            reader(first, ALL_LINES),
            reader(second, ALL_LINES),
            reader(second, 0),
        ];
        let kept = all[1].handle.keep(&FEW).expect("rows in range");
        let (n, is_all) = (FEW.len() as u64, change == Change::RefitUpdated);
        assert!(kept.inserts == n || is_all && kept.inserts + kept.bypasses == n, "{kept:?}");
        let still =
            (client.open("still").and_then(|it| it.on_device(first, CacheConfig::new(FEW_LINES))), still);
        let still = (still.0.expect("it fits"), still.1);
        let out = all[2].handle.output(IDS).expect("it fits");
        Self { gpus, table, change, all, still, out, random: Random::new(11) }
    }

    /// Row numbers: those that change, and any others.
    fn ids(&mut self) -> Vec<u64> {
        let any = (0..IDS - FEW.len()).map(|_| self.random.below(ROWS) / 16 * 16);
        let any: Vec<u64> = any.collect();
        FEW.into_iter().chain(any).collect()
    }

    /// Gathers in every way, and looks at each row; `is_over`: every row must have its last version.
    pub(crate) fn read(&mut self, progress: &Progress, is_over: bool) -> Found {
        let mut found = Found::default();
        for which in 0..5 {
            let ids = self.ids();
            let least = if is_over { self.change.last() } else { progress.least() };
            let may_be_gone = progress.may_be_gone(self.change);
            let rows = self.gather(which, &ids, &mut found);
            match rows {
                Ok(rows) => self.look(which % 4, &ids, &rows, least, &mut found),
                Err(Error::NotFound { .. }) if may_be_gone && !is_over => {}
                Err(error) => unreachable!("{}: reader {which}: {error}", self.change.name()),
            }
        }
        found
    }

    fn gather(&mut self, which: usize, ids: &[u64], found: &mut Found) -> Result<Vec<u8>> {
        let [first, second] = &self.gpus.gpus;
        match which {
            // Two tensors, one of them twice, by one launch.
            1 => {
                let still: Vec<u64> = ids.iter().map(|id| id % self.still.1.n_rows).collect();
                let (on_gpu, of_still) = (first.ids(ids)?, first.ids(&still)?);
                let (mine, other) = (&self.all[1].handle, &self.still.0);
                let rows = first.gather_many(&[(other, &of_still), (mine, &on_gpu), (other, &of_still)])?;
                for n in [0, 2] {
                    let is_right = rows[n].to_host()? == self.still.1.rows(still.iter().copied(), 1);
                    found.rows += ids.len() as u64;
                    found.mixed += u64::from(!is_right);
                }
                rows[1].to_host()
            }
            2 => {
                drop(self.all[2].handle.gather_into(&second.ids(ids)?, &mut self.out)?);
                self.out.to_host()
            }
            4 => self.gpus.other.gather(&self.all[0].handle, ids),
            which => {
                let gpu = if which == 0 { first } else { second };
                self.all[which].handle.gather(&gpu.ids(ids)?)?.to_host()
            }
        }
    }

    fn look(&mut self, which: usize, ids: &[u64], bytes: &[u8], least: u16, found: &mut Found) {
        assert_eq!(bytes.len(), ids.len() * ROW_BYTES);
        let changed = self.change.rows();
        for (&row, bytes) in ids.iter().zip(bytes.chunks_exact(ROW_BYTES)) {
            let seen = &mut self.all[which].seen[usize::try_from(row).expect("few rows")];
            let is_changed = changed.binary_search(&row).is_ok();
            let (least, most) = if is_changed { (least, self.change.last()) } else { (1, 1) };
            found.rows += 1;
            let version = self.table.version_of(bytes, row, 1..=most);
            let what =
                || Some(format!("reader {which}, row {row}: {version:?}, at least {least} and {seen}"));
            match version {
                None => found.mixed += 1,
                Some(version) if version < least.max(*seen) => found.stale += 1,
                Some(version) => {
                    *seen = version;
                    continue;
                }
            }
            found.first = found.first.take().or_else(what);
        }
    }

    /// Rows that their caches have room for.
    pub(crate) fn lines(&self) -> u64 {
        self.all.iter().map(|reader| reader.handle.cache().lines).sum()
    }
}
