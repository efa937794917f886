//! The layers of the configuration, before anything is checked but the kind of each value.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{Admit, Args, LockMode, RefitMode};
use crate::error::{Error, Result};
use crate::size::ByteSize;

/// A configuration file has ten short lines; this leaves room for comments.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What one layer says; the field names are the keys of the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Layer {
    pub(super) socket: Option<PathBuf>,
    pub(super) pool_size: Option<ByteSize>,
    pub(super) segment_size: Option<ByteSize>,
    pub(super) lock: Option<LockMode>,
    pub(super) admit: Option<Admit>,
    pub(super) workers: Option<u64>,
    pub(super) max_sessions: Option<u64>,
    pub(super) max_held_percent: Option<u64>,
    pub(super) user_percent: Option<u64>,
    pub(super) refit: Option<RefitMode>,
    pub(super) refit_gain_percent: Option<u64>,
    pub(super) refit_cpu_percent: Option<u64>,
    pub(super) deadline_ms: Option<u64>,
    pub(super) log: Option<String>,
}

/// Where a layer comes from.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    Flags,
    Environment,
    File(PathBuf),
    Program,
}

impl Origin {
    /// How the user of this layer spells a key.
    fn spell(&self, key: &str) -> String {
        match self {
            Origin::Flags => format!("--{}", key.replace('_', "-")),
            Origin::Environment => variable_name(key),
            Origin::File(path) => format!("{key} in {}", path.display()),
            Origin::Program => key.to_owned(),
        }
    }
}

/// All layers, the strongest first.
#[derive(Debug)]
pub(super) struct Layers(Vec<(Origin, Layer)>);

impl Layers {
    /// Flags over environment over file.
    pub(super) fn collect(
        args: &Args,
        socket: Option<&Path>,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Layers> {
        let environment = Environment(variable);
        let flags = Layer {
            socket: socket.map(Path::to_owned),
            pool_size: args.pool_size,
            segment_size: args.segment_size,
            lock: args.lock,
            admit: args.admit,
            workers: args.workers,
            max_sessions: args.max_sessions,
            max_held_percent: args.max_held_percent,
            user_percent: args.user_percent,
            refit: args.refit,
            refit_gain_percent: args.refit_gain_percent,
            refit_cpu_percent: args.refit_cpu_percent,
            deadline_ms: None,
            log: args.log.clone(),
        };
        let file = args.config.clone().or_else(|| environment.path("config"));
        let mut layers = vec![(Origin::Flags, flags), (Origin::Environment, environment.layer()?)];
        if let Some(path) = file {
            let layer = read_file(&path)?;
            layers.push((Origin::File(path), layer));
        }
        Ok(Layers(layers))
    }

    pub(super) fn one(origin: Origin, layer: Layer) -> Layers {
        Layers(vec![(origin, layer)])
    }

    pub(super) fn two(origin: Origin, over: Layer, under: Layer) -> Layers {
        Layers(vec![(origin.clone(), over), (origin, under)])
    }

    /// The strongest value of a key, and how its user spells the key.
    pub(super) fn pick<T>(&self, key: &str, field: impl Fn(&Layer) -> Option<T>) -> Option<(T, String)> {
        self.0.iter().find_map(|(origin, layer)| field(layer).map(|value| (value, origin.spell(key))))
    }
}

fn read_file(path: &Path) -> Result<Layer> {
    let failed = |source| Error::ConfigRead { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(failed(std::io::Error::new(ErrorKind::FileTooLarge, "it has more than 1 MiB")));
    }
    let refuse = |offset: usize, message: String| {
        let line = 1 + bytes.iter().take(offset).filter(|byte| **byte == b'\n').count();
        Error::ConfigParse { path: path.to_owned(), line, message }
    };
    let text =
        str::from_utf8(&bytes).map_err(|error| refuse(error.valid_up_to(), "it is not UTF-8".to_owned()))?;
    toml::from_str(text).map_err(|error| {
        // The first line only: the rest repeats the file.
        let message = error.message().lines().next().unwrap_or_default().chars().take(500).collect();
        refuse(error.span().map_or(0, |span| span.start), message)
    })
}

/// The environment variable of a key.
fn variable_name(key: &str) -> String {
    format!("TIERPACK_{}", key.to_ascii_uppercase())
}

/// Environment variables; one that is empty counts as not set.
struct Environment<'a>(&'a dyn Fn(&str) -> Option<OsString>);

impl Environment<'_> {
    fn layer(&self) -> Result<Layer> {
        Ok(Layer {
            socket: self.path("socket"),
            pool_size: self.value("pool_size")?,
            segment_size: self.value("segment_size")?,
            lock: self.parse("lock", |text| LockMode::from_str(text, false))?,
            admit: self.parse("admit", |text| Admit::from_str(text, false))?,
            workers: self.value("workers")?,
            max_sessions: self.value("max_sessions")?,
            max_held_percent: self.value("max_held_percent")?,
            user_percent: self.value("user_percent")?,
            refit: self.parse("refit", |text| RefitMode::from_str(text, false))?,
            refit_gain_percent: self.value("refit_gain_percent")?,
            refit_cpu_percent: self.value("refit_cpu_percent")?,
            deadline_ms: self.value("deadline_ms")?,
            log: self.value("log")?,
        })
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        (self.0)(&variable_name(key)).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    fn value<T: FromStr<Err: ToString>>(&self, key: &str) -> Result<Option<T>> {
        self.parse(key, |text| text.parse().map_err(|error: T::Err| error.to_string()))
    }

    fn parse<T>(
        &self,
        key: &str,
        read: impl Fn(&str) -> std::result::Result<T, String>,
    ) -> Result<Option<T>> {
        let Some(value) = (self.0)(&variable_name(key)).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let parsed = value.to_str().ok_or("it is not UTF-8".to_owned()).and_then(read);
        parsed.map(Some).map_err(|reason| {
            let shown: String = value.to_string_lossy().chars().take(64).collect();
            Error::ConfigValue { origin: variable_name(key), message: format!("{shown:?}: {reason}") }
        })
    }
}
