//! The codecs on this machine's instructions: which level there is, and the dispatch to it.
//!
//! Every level reads and writes the bytes that [`crate::scalar`] does.
//! One table, [`Level::ALL`] with [`Level::is_available`], feeds detection, dispatch and the conformance test.

mod detect;
mod planes;
mod sparse;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod bmi2;

use core::fmt;
use std::sync::OnceLock;

use crate::coder::Masks;
use crate::error::Error;
use crate::escapes::Escapes;
use crate::planes::Planes;
use crate::records::planes::{Kernel, Position, Record};
use crate::records::{MAX_BODY_BYTES, Source};
use crate::scalar::ibp::{self as scalar, Packed};
use crate::scalar::planes::Escape;
use crate::window::Window;

/// The variable that chooses a level.
pub const CPU_VARIABLE: &str = "TIERPACK_CPU";
/// What it may say, for messages.
pub const CPU_VARIABLE_NEEDED: &str =
    "scalar is needed, or nothing for the best instructions of this machine";

/// What runs the inner loops of the codecs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Level {
    /// The reference code, on any machine.
    Scalar,
    /// AVX2 alone: for `planes:4` and `planes:3`, where `pext` and `pdep` are missing or microcoded.
    Avx2,
    /// AVX2 and BMI2.
    Bmi2,
}

impl Level {
    /// Every level, the plainest first.
    pub const ALL: &'static [Self] = &[Self::Scalar, Self::Avx2, Self::Bmi2];

    /// The best level of this machine, found out once.
    ///
    /// `TIERPACK_CPU=scalar` in the environment chooses [`Level::Scalar`]; a word that [`Level::forced`] refuses, nothing.
    pub fn detect() -> Self {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| {
            if matches!(Self::forced(), Ok(Some(_))) || !Self::Avx2.is_available() {
                Self::Scalar
            } else if Self::Bmi2.is_available() && detect::has_fast_deposit() {
                Self::Bmi2
            } else {
                Self::Avx2
            }
        })
    }

    /// The level that [`CPU_VARIABLE`] chooses; `None` where it is not set, or empty.
    ///
    /// # Errors
    /// What it says instead: [`CPU_VARIABLE_NEEDED`].
    pub fn forced() -> Result<Option<Self>, String> {
        match std::env::var_os(CPU_VARIABLE).filter(|value| !value.is_empty()) {
            None => Ok(None),
            Some(value) if value == "scalar" => Ok(Some(Self::Scalar)),
            Some(value) => Err(value.to_string_lossy().into_owned()),
        }
    }

    /// Whether this machine can run the level, however fast.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            Self::Avx2 => detect::has_avx2(),
            Self::Bmi2 => detect::has_bmi2(),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Bmi2 => "bmi2",
        })
    }
}

/// A level that this machine has: nothing else can make one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backend(Level);

impl Backend {
    /// The level, or the reference code where this machine lacks it.
    pub(crate) fn new(level: Level) -> Self {
        Self(if level.is_available() { level } else { Level::Scalar })
    }

    pub(crate) const fn level(self) -> Level {
        self.0
    }

    /// Whether `pext` and `pdep` may be used.
    #[cfg(target_arch = "x86_64")]
    fn has_fast_deposit(self) -> bool {
        self.0 == Level::Bmi2
    }

    /// As [`scalar::encode`], of the words of the window; `words` holds the raw bytes and is changed.
    #[inline]
    pub(crate) fn encode(
        self,
        window: &Window,
        start: usize,
        words: &mut [u8],
        masks: &Masks<'_>,
        out: &mut [u8],
    ) -> Packed {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Bmi2 => bmi2::encode(self, window, start, words, masks, out),
            _ => {
                window.forward(start, words);
                scalar::encode(words, masks, out)
            }
        }
    }

    /// As [`scalar::decode`], then the window taken back.
    #[inline]
    pub(crate) fn decode(
        self,
        window: &Window,
        start: usize,
        bits: &[u8],
        masks: &Masks<'_>,
        words: &mut [u8],
    ) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Bmi2 => bmi2::decode(self, window, start, bits, masks, words),
            _ => {
                scalar::decode(bits, masks, words);
                window.inverse(start, words);
            }
        }
    }

    /// As [`Backend::decode`], of packed bits that are not in one piece.
    ///
    /// # Errors
    /// How many bytes of the rest the record needs, where there are fewer; `words` then holds anything.
    #[inline]
    pub(crate) fn decode_split(
        self,
        window: &Window,
        start: usize,
        body: Split<'_>,
        masks: &Masks<'_>,
        words: &mut [u8],
    ) -> Result<(), usize> {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Bmi2 => bmi2::decode_split(self, window, start, body, masks, words),
            _ => {
                let Split { front, rest, scratch } = body;
                let len = scalar::packed_len(front, masks, words.len());
                let needed = len.saturating_sub(front.len());
                let rest = rest.get(..needed).ok_or(needed)?;
                let inside = len.min(front.len());
                scratch[..inside].copy_from_slice(&front[..inside]);
                scratch[inside..len].copy_from_slice(rest);
                scalar::decode(&scratch[..len], masks, words);
                window.inverse(start, words);
                Ok(())
            }
        }
    }
}

impl Backend {
    /// As [`crate::scalar::planes::encode`].
    #[inline]
    pub(crate) fn encode_planes(
        self,
        planes: &Planes,
        first: usize,
        words: &[u8],
        out: &mut [u8],
        escapes: &mut Vec<Escape>,
    ) -> Option<Packed> {
        #[cfg(target_arch = "x86_64")]
        if self.0 != Level::Scalar
            && let Some(packed) = avx2::encode(self, planes, first, words, out, escapes)
        {
            return packed;
        }
        if self.0 != Level::Scalar {
            return planes::encode(planes, first, words, out, escapes);
        }
        crate::scalar::planes::encode(planes, first, words, out, escapes)
    }

    /// Decodes records of `planes` from `position` on, as many as `words` has room for.
    ///
    /// # Errors
    /// What the block lacks; `words` then holds anything.
    #[inline]
    pub(crate) fn decode_planes(
        self,
        planes: &Planes,
        source: &Source<'_>,
        position: Position,
        words: &mut [u8],
        room: &mut [u8; MAX_BODY_BYTES],
    ) -> Result<(), Error> {
        #[cfg(target_arch = "x86_64")]
        if self.0 != Level::Scalar
            && let Some(decoded) = avx2::decode(self, planes, source, position, words, room)
        {
            return decoded;
        }
        match self.0 {
            Level::Scalar => source.by_schedule(planes, &Reference, position, words, room),
            _ => source.by_schedule(planes, &planes::Groups, position, words, room),
        }
    }
}

/// The reference code.
struct Reference;

impl Kernel for Reference {
    fn decode(
        &self,
        planes: &Planes,
        record: &Record<'_>,
        words: &mut [u8],
        escapes: &mut Escapes<'_>,
        _room: &mut [u8],
    ) -> Result<(), usize> {
        let words = &mut words[..record.n * planes.word_bytes()];
        crate::scalar::planes::decode(planes, record.first, &record.body, words, escapes)
    }
}

/// The body of a packed record that is not all in the front.
pub(crate) struct Split<'a> {
    /// Its first bytes, with all participation bits.
    pub(crate) front: &'a [u8],
    /// The others, and what follows them.
    pub(crate) rest: &'a [u8],
    /// Room for [`scalar::max_packed`] bytes and [`scalar::SLACK_BYTES`].
    pub(crate) scratch: &'a mut [u8],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_a_level_that_this_machine_has() {
        for &level in Level::ALL {
            let expected = if level.is_available() { level } else { Level::Scalar };
            assert_eq!(Backend::new(level).level(), expected);
        }
        assert!(Level::detect().is_available());
    }
}
