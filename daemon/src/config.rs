//! The configuration of the daemon: one struct that cannot be wrong once it exists.
//!
//! Four layers, each over the one before: defaults, a TOML file, environment variables, flags.
//! Key, variable and flag have one name in three spellings: `pool_size`, `TIERPACK_POOL_SIZE`, `--pool-size`.
//! Every value keeps where it came from until it is checked, so that a message names the thing to change.
//!
//! Whether the pool fits into memory is not checked here but when the daemon starts, by
//! [`crate::limits::check_pool_size`]: the answer changes, the configuration does not.

use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tierpack_kernels::{CPU_VARIABLE, CPU_VARIABLE_NEEDED, Level};
use tierpack_shm::layout::MAX_SEGMENTS;
use tracing_subscriber::EnvFilter;

use crate::address;
use crate::error::{Error, Result};
use crate::limits;
use crate::size::{ByteSize, MIB};

mod layer;

use layer::{Layer, Layers, Origin};

/// The largest segment, and the usual one.
pub const MAX_SEGMENT_BYTES: u64 = 64 * MIB;

/// The smallest segment, and so the smallest pool.
pub const MIN_SEGMENT_BYTES: u64 = 2 * MIB;

/// The number of sessions that every configuration allows at least.
pub const MIN_SESSIONS: u64 = 256;

const MAX_SESSIONS: u64 = 65_536;
const DEFAULT_SESSIONS: u64 = 1024;
const MAX_WORKERS: u64 = 256;
const DEFAULT_HELD_PERCENT: u64 = 5;
const DEFAULT_REFIT_GAIN_PERCENT: u64 = 3;
const DEFAULT_USER_PERCENT: u64 = 75;
const DEFAULT_REFIT_CPU_PERCENT: u64 = 25;
const DEFAULT_DEADLINE_MS: u64 = 30_000;
const MAX_DEADLINE_MS: u64 = 3_600_000;
const DEFAULT_LOG: &str = "info";

/// Who may connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Admit {
    /// Only the daemon's own user and root.
    #[default]
    Owner,
    /// Every user of the machine; each namespace says who may read and write it.
    Everyone,
}

/// Who starts a refit: new compression metadata for a tensor whose data have drifted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RefitMode {
    /// The daemon, when it promises enough; and `tierpack refit`.
    #[default]
    Auto,
    /// Only `tierpack refit`.
    Manual,
}

/// Whether pool memory is page-locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LockMode {
    /// Locked, or the daemon does not start.
    Require,
    /// Locked as far as the system allows; the stats tell how far.
    #[default]
    Try,
    /// Not locked.
    Off,
}

/// The flags of the daemon; those that are absent leave the layers below alone.
#[derive(Clone, Debug, Default, clap::Args)]
// Without this the line above would replace the description of the command that takes these flags.
#[command(about = None, long_about = None)]
pub struct Args {
    /// Memory for tensors, such as 512MiB or 8GiB [default: half of what is available]
    #[arg(long, value_name = "SIZE")]
    pub pool_size: Option<ByteSize>,

    /// Size of one piece of the pool, a power of two from 2MiB to 64MiB, and at least 1/32768 of the pool [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    pub segment_size: Option<ByteSize>,

    /// Whether to page-lock pool memory [default: try]
    #[arg(long, value_name = "MODE")]
    pub lock: Option<LockMode>,

    /// Who may connect [default: owner]
    #[arg(long, value_name = "WHO")]
    pub admit: Option<Admit>,

    /// Number of worker threads [default: 4, or the number of cores if that is less]
    #[arg(long, value_name = "N")]
    pub workers: Option<u64>,

    /// Number of clients at a time, 256 or more [default: 1024]
    #[arg(long, value_name = "N")]
    pub max_sessions: Option<u64>,

    /// Retired memory that readers may hold back, in percent of the pool, before background work waits [default: 5]
    #[arg(long, value_name = "PERCENT")]
    pub max_held_percent: Option<u64>,

    /// Who starts a refit of compression metadata [default: auto]
    #[arg(long, value_name = "MODE")]
    pub refit: Option<RefitMode>,

    /// Most of the pool that one user takes, root and the daemon's own user aside, in percent [default: 75]
    #[arg(long, value_name = "PERCENT")]
    pub user_percent: Option<u64>,

    /// What a refit must promise to be started, in percent of the tensor's stored bytes [default: 3]
    #[arg(long, value_name = "PERCENT")]
    pub refit_gain_percent: Option<u64>,

    /// Share of one core that background work takes at most, in percent [default: 25]
    #[arg(long, value_name = "PERCENT")]
    pub refit_cpu_percent: Option<u64>,

    /// Configuration file in TOML, with the keys that --print-config shows
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the configuration as TOML and exit
    #[arg(long)]
    pub print_config: bool,

    /// What to log: error, warn, info, debug, trace, or a filter per module [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}

/// The whole configuration of the daemon, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    socket: PathBuf,
    pool_bytes: u64,
    segment_bytes: u64,
    lock: LockMode,
    admit: Admit,
    workers: usize,
    max_sessions: usize,
    max_held_percent: u64,
    user_percent: u64,
    refit: RefitMode,
    refit_gain_percent: u64,
    refit_cpu_percent: u64,
    deadline: Duration,
    log: String,
}

impl Config {
    /// Reads all layers; `socket` is the flag `--socket`, which the daemon shares with the client commands.
    ///
    /// # Errors
    /// [`Error::ConfigRead`] and [`Error::ConfigParse`] for the file, [`Error::ConfigValue`] for a value that
    /// may not be, [`Error::SocketPathTooLong`] and [`Error::SocketPathInvalid`] for the socket,
    /// [`Error::LimitFile`] when the default pool size is asked of a system that tells nonsense.
    pub fn load(args: &Args, socket: Option<&Path>) -> Result<Config> {
        Level::forced().map_err(|found| Error::ConfigValue {
            origin: CPU_VARIABLE.to_owned(),
            message: format!("{found:?}: {CPU_VARIABLE_NEEDED}"),
        })?;
        let layers = Layers::collect(args, socket, &|name| std::env::var_os(name))?;
        Config::from_layers(&layers, Path::new("/"))
    }

    /// The configuration of a daemon inside another program: defaults, but for socket and pool size.
    ///
    /// Neither environment nor files are read, since they are the program's.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn embedded(socket: PathBuf, pool_bytes: u64) -> Result<Config> {
        let layer = Layer { socket: Some(socket), pool_size: Some(ByteSize(pool_bytes)), ..Layer::default() };
        Config::from_layers(&Layers::one(Origin::Program, layer), Path::new("/"))
    }

    /// This configuration with another segment size.
    ///
    /// # Errors
    /// [`Error::ConfigValue`] as for `--segment-size`.
    pub fn with_segment_bytes(self, segment_bytes: u64) -> Result<Config> {
        self.with(Layer { segment_size: Some(ByteSize(segment_bytes)), ..Layer::default() })
    }

    /// This configuration for other users to connect.
    #[must_use]
    pub fn with_admit(self, admit: Admit) -> Config {
        Config { admit, ..self }
    }

    /// This configuration with another mode of page-locking.
    #[must_use]
    pub fn with_lock(self, lock: LockMode) -> Config {
        Config { lock, ..self }
    }

    /// This configuration with another starter of refits.
    #[must_use]
    pub fn with_refit(self, refit: RefitMode) -> Config {
        Config { refit, ..self }
    }

    /// This configuration with another number of worker threads.
    ///
    /// # Errors
    /// [`Error::ConfigValue`] as for `--workers`.
    pub fn with_workers(self, workers: u64) -> Result<Config> {
        self.with(Layer { workers: Some(workers), ..Layer::default() })
    }

    /// This configuration with another deadline for requests, in whole milliseconds.
    ///
    /// # Errors
    /// [`Error::ConfigValue`] as for `deadline_ms`.
    pub fn with_deadline(self, deadline: Duration) -> Result<Config> {
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        self.with(Layer { deadline_ms: Some(deadline_ms), ..Layer::default() })
    }

    fn with(self, layer: Layer) -> Result<Config> {
        let below = self.to_layer();
        Config::from_layers(&Layers::two(Origin::Program, layer, below), Path::new("/"))
    }

    fn from_layers(layers: &Layers, root: &Path) -> Result<Config> {
        // The socket first: a path that cannot work is refused before anything else is looked at.
        let socket = match layers.pick("socket", |layer| layer.socket.clone()) {
            Some((path, origin)) => address::resolve(&path, &origin)?,
            None => address::default_control()?,
        };
        let pool_bytes = pool_bytes(layers, root)?;
        let in_range = |key, field: fn(&Layer) -> Option<u64>, default, min, max| {
            let (value, origin) = layers.pick(key, field).unwrap_or((default, key.to_owned()));
            if (min..=max).contains(&value) {
                return Ok(value);
            }
            Err(Error::ConfigValue { origin, message: format!("{value} is not between {min} and {max}") })
        };
        let cores = available_parallelism().map_or(1, |cores| cores.get() as u64);
        let workers = in_range("workers", |layer| layer.workers, cores.min(4), 1, MAX_WORKERS)?;
        let sessions = in_range(
            "max_sessions",
            |layer| layer.max_sessions,
            DEFAULT_SESSIONS,
            MIN_SESSIONS,
            MAX_SESSIONS,
        )?;
        let percent = |key, field: fn(&Layer) -> Option<u64>, default| in_range(key, field, default, 1, 100);
        let deadline_ms =
            in_range("deadline_ms", |layer| layer.deadline_ms, DEFAULT_DEADLINE_MS, 1, MAX_DEADLINE_MS)?;
        Ok(Config {
            socket,
            pool_bytes,
            segment_bytes: segment_bytes(layers, pool_bytes)?,
            lock: layers.pick("lock", |layer| layer.lock).unwrap_or_default().0,
            admit: layers.pick("admit", |layer| layer.admit).unwrap_or_default().0,
            workers: usize::try_from(workers).expect("checked to be at most MAX_WORKERS"),
            max_sessions: usize::try_from(sessions).expect("checked to be at most MAX_SESSIONS"),
            max_held_percent: percent(
                "max_held_percent",
                |layer| layer.max_held_percent,
                DEFAULT_HELD_PERCENT,
            )?,
            user_percent: percent("user_percent", |layer| layer.user_percent, DEFAULT_USER_PERCENT)?,
            refit: layers.pick("refit", |layer| layer.refit).unwrap_or_default().0,
            refit_gain_percent: percent(
                "refit_gain_percent",
                |layer| layer.refit_gain_percent,
                DEFAULT_REFIT_GAIN_PERCENT,
            )?,
            refit_cpu_percent: percent(
                "refit_cpu_percent",
                |layer| layer.refit_cpu_percent,
                DEFAULT_REFIT_CPU_PERCENT,
            )?,
            deadline: Duration::from_millis(deadline_ms),
            log: log_filter(layers)?,
        })
    }

    /// The configuration as a TOML file that loads to the same configuration.
    ///
    /// # Errors
    /// [`Error::ConfigShow`] for a socket path that is not UTF-8, which TOML cannot hold.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(&self.to_layer()).map_err(|error| Error::ConfigShow { reason: error.to_string() })
    }

    fn to_layer(&self) -> Layer {
        Layer {
            socket: Some(self.socket.clone()),
            pool_size: Some(ByteSize(self.pool_bytes)),
            segment_size: Some(ByteSize(self.segment_bytes)),
            lock: Some(self.lock),
            admit: Some(self.admit),
            workers: Some(self.workers as u64),
            max_sessions: Some(self.max_sessions as u64),
            max_held_percent: Some(self.max_held_percent),
            user_percent: Some(self.user_percent),
            refit: Some(self.refit),
            refit_gain_percent: Some(self.refit_gain_percent),
            refit_cpu_percent: Some(self.refit_cpu_percent),
            deadline_ms: u64::try_from(self.deadline.as_millis()).ok(),
            log: Some(self.log.clone()),
        }
    }

    /// The control socket: absolute, and short enough for a socket address.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The stats socket, next to the control socket.
    #[must_use]
    pub fn stats_socket(&self) -> PathBuf {
        address::stats_path(&self.socket)
    }

    /// The metrics socket, next to the control socket.
    #[must_use]
    pub fn metrics_socket(&self) -> PathBuf {
        address::metrics_path(&self.socket)
    }

    /// The most bytes that all segments together may have.
    #[must_use]
    pub fn pool_bytes(&self) -> u64 {
        self.pool_bytes
    }

    /// The size of a full segment: a power of two, not over the pool.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Who may connect.
    #[must_use]
    pub fn admit(&self) -> Admit {
        self.admit
    }

    /// Whether pool memory is page-locked.
    #[must_use]
    pub fn lock(&self) -> LockMode {
        self.lock
    }

    /// The number of worker threads, at least 1.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The number of clients at a time, at least [`MIN_SESSIONS`].
    #[must_use]
    pub fn max_sessions(&self) -> usize {
        self.max_sessions
    }

    /// How much of the pool may be retired and still leased, in percent from 1 to 100.
    #[must_use]
    pub fn max_held_percent(&self) -> u64 {
        self.max_held_percent
    }

    /// Bytes of the pool that may be retired and still leased.
    #[must_use]
    pub fn max_held_bytes(&self) -> u64 {
        self.pool_bytes / 100 * self.max_held_percent
    }

    /// Who starts a refit.
    #[must_use]
    pub fn refit(&self) -> RefitMode {
        self.refit
    }

    /// Bytes of the pool that one user takes at most, root and the daemon's own user aside.
    #[must_use]
    pub fn user_bytes(&self) -> u64 {
        // Two steps: the product may not fit, and the remainder counts.
        self.pool_bytes / 100 * self.user_percent + self.pool_bytes % 100 * self.user_percent / 100
    }

    /// What a refit must promise to be started, in percent of the stored bytes, from 1 to 100.
    #[must_use]
    pub fn refit_gain_percent(&self) -> u64 {
        self.refit_gain_percent
    }

    /// Share of one core that background work takes at most, in percent from 1 to 100.
    #[must_use]
    pub fn refit_cpu_percent(&self) -> u64 {
        self.refit_cpu_percent
    }

    /// How long one request may take.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// What to log, in the language of `tracing_subscriber::EnvFilter`.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.log
    }
}

fn pool_bytes(layers: &Layers, root: &Path) -> Result<u64> {
    let Some((size, origin)) = layers.pick("pool_size", |layer| layer.pool_size) else {
        return limits::default_pool_bytes(root);
    };
    if (MIN_SEGMENT_BYTES..=limits::MAX_POOL_BYTES).contains(&size.bytes()) {
        return Ok(size.bytes());
    }
    let (min, max) = (ByteSize(MIN_SEGMENT_BYTES), ByteSize(limits::MAX_POOL_BYTES));
    Err(Error::ConfigValue { origin, message: format!("{size} is not between {min} and {max}") })
}

fn segment_bytes(layers: &Layers, pool_bytes: u64) -> Result<u64> {
    let Some((size, origin)) = layers.pick("segment_size", |layer| layer.segment_size) else {
        // The largest power of two that the pool holds once.
        return Ok(MAX_SEGMENT_BYTES.min(1 << pool_bytes.ilog2()));
    };
    let refuse = |message| Err(Error::ConfigValue { origin, message });
    let (min, max) = (ByteSize(MIN_SEGMENT_BYTES), ByteSize(MAX_SEGMENT_BYTES));
    if !(min..=max).contains(&size) || !size.bytes().is_power_of_two() {
        return refuse(format!("{size} is not a power of two between {min} and {max}"));
    }
    if size.bytes() > pool_bytes {
        return refuse(format!("{size} is more than the whole pool of {}", ByteSize(pool_bytes)));
    }
    let most = size.bytes().saturating_mul(MAX_SEGMENTS as u64);
    if most < pool_bytes {
        let (most, pool) = (ByteSize(most), ByteSize(pool_bytes));
        let least = ByteSize(pool_bytes.div_ceil(MAX_SEGMENTS as u64).next_power_of_two());
        return refuse(format!(
            "a namespace has at most {MAX_SEGMENTS} segments, and so many of {size} are {most}, less than the pool of \
             {pool}: give at least {least}"
        ));
    }
    Ok(size.bytes())
}

fn log_filter(layers: &Layers) -> Result<String> {
    let Some((filter, origin)) = layers.pick("log", |layer| layer.log.clone()) else {
        return Ok(DEFAULT_LOG.to_owned());
    };
    match EnvFilter::try_new(&filter) {
        Ok(_) => Ok(filter),
        Err(error) => Err(Error::ConfigValue { origin, message: format!("log filter {filter:?}: {error}") }),
    }
}

#[cfg(test)]
mod tests;
