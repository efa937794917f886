//! Sizes in bytes, as people write them: `512MiB`, `1GiB`, `1073741824`.
//!
//! `KiB MiB GiB TiB` are powers of 1024 and `KB MB GB TB` powers of 1000.
//! A bare `K M G T` is refused, because half of all tools mean the one and half the other, and a pool that is
//! 7 % larger than meant can get its container killed.
//! Display never rounds a number away: it names the exact bytes next to the rounded unit.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::error::Error;

/// One kibibyte.
pub const KIB: u64 = 1 << 10;
/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// One gibibyte.
pub const GIB: u64 = 1 << 30;
/// One tebibyte.
pub const TIB: u64 = 1 << 40;

/// Binary units, largest first, so that the first that fits is the one to print.
const BINARY: [(&str, u64); 4] = [("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)];
const DECIMAL: [(&str, u64); 4] =
    [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000)];

/// A number of bytes.
///
/// ```
/// use tierpack_daemon::size::ByteSize;
/// let size: ByteSize = "512MiB".parse()?;
/// assert_eq!(size.bytes(), 512 << 20);
/// assert_eq!(size.to_string(), "512 MiB");
/// # Ok::<(), tierpack_daemon::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The largest binary unit of which this is a whole, nonzero number.
    fn whole_unit(self) -> Option<(u64, &'static str)> {
        let (unit, factor) = *BINARY.iter().find(|(_, factor)| self.0.is_multiple_of(*factor))?;
        (self.0 > 0).then(|| (self.0 / factor, unit))
    }
}

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |reason| Error::Size { given: text.chars().take(64).collect(), reason };
        let trimmed = text.trim();
        let n_digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, rest) = trimmed.split_at(n_digits);
        if digits.is_empty() {
            return Err(refuse("it does not start with a digit"));
        }
        let factor = factor_of(rest.trim_start()).map_err(refuse)?;
        // Only digits are left, so the one way to fail is to be too large.
        let number: u64 = digits.parse().map_err(|_| refuse("it is over 18446744073709551615 bytes"))?;
        number.checked_mul(factor).map(ByteSize).ok_or(refuse("it is over 18446744073709551615 bytes"))
    }
}

/// How many bytes one of the unit is.
fn factor_of(unit: &str) -> Result<u64, &'static str> {
    if unit.is_empty() || unit.eq_ignore_ascii_case("b") {
        return Ok(1);
    }
    if let Some((_, factor)) = BINARY.iter().chain(&DECIMAL).find(|(name, _)| unit.eq_ignore_ascii_case(name))
    {
        return Ok(*factor);
    }
    if ["k", "m", "g", "t"].iter().any(|letter| unit.eq_ignore_ascii_case(letter)) {
        return Err("the unit is ambiguous, write MiB for 1048576 bytes or MB for 1000000 bytes");
    }
    Err("the unit is not one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB")
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Five digits are easier to read in the next unit.
        if let Some((number, unit)) = self.whole_unit().filter(|(number, _)| *number < 10_000) {
            return write!(f, "{number} {unit}");
        }
        write!(f, "{} bytes", self.0)?;
        match BINARY.iter().find(|(_, factor)| self.0 >= *factor) {
            None => Ok(()),
            Some((unit, factor)) => {
                // Tenths in u128: ten times 2^64 does not fit in u64.
                let tenths = u128::from(self.0) * 10 / u128::from(*factor);
                write!(f, " ({}.{} {unit})", tenths / 10, tenths % 10)
            }
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.whole_unit() {
            Some((number, unit)) => serializer.collect_str(&format_args!("{number}{unit}")),
            // TOML integers are signed.
            None if i64::try_from(self.0).is_ok() => serializer.serialize_u64(self.0),
            None => serializer.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"512MiB\" or a number of bytes")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<ByteSize, E> {
                u64::try_from(value).map(ByteSize).map_err(|_| E::custom(format!("size {value} is negative")))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<ByteSize, E> {
                value.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> u64 {
        text.parse::<ByteSize>().unwrap().bytes()
    }

    #[test]
    fn parses_every_unit() {
        assert_eq!(parse("0"), 0);
        assert_eq!(parse("1073741824"), GIB);
        assert_eq!(parse("17B"), 17);
        assert_eq!(parse("64KiB"), 64 * KIB);
        assert_eq!(parse("512MiB"), 512 * MIB);
        assert_eq!(parse("1 GiB"), GIB);
        assert_eq!(parse(" 2tib "), 2 * TIB);
        assert_eq!(parse("3MB"), 3_000_000);
        assert_eq!(parse("3kb"), 3_000);
        assert_eq!(parse("18446744073709551615"), u64::MAX);
    }

    #[test]
    fn refuses_and_names_what_was_given() {
        let cases = ["", "MiB", "-1", "1.5GiB", "1K", "12 M", "5g", "7Q", "1e9", "１MiB", "1 Mi B", "0x10"];
        for given in cases {
            let error = given.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.contains(&format!("{given:?}")), "{error}");
        }
    }

    #[test]
    fn refuses_overflow() {
        for given in ["18446744073709551616", "16777216TiB", "99999999999999999999999999999999TiB"] {
            let error = given.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.contains(given) && error.contains("over"), "{error}");
        }
        assert_eq!(parse("16777215TiB"), 16_777_215 * TIB);
    }

    #[test]
    fn error_text_is_bounded() {
        let error = "x".repeat(1 << 20).parse::<ByteSize>().unwrap_err().to_string();
        assert!(error.len() < 300, "{}", error.len());
    }

    #[test]
    fn displays_exact_numbers() {
        let shown = |bytes| ByteSize(bytes).to_string();
        assert_eq!(shown(0), "0 bytes");
        assert_eq!(shown(1023), "1023 bytes");
        assert_eq!(shown(64 * MIB), "64 MiB");
        assert_eq!(shown(64 * MIB + 1), "67108865 bytes (64.0 MiB)");
        assert_eq!(shown(3 * GIB / 2), "1536 MiB");
        assert_eq!(shown(65 * MIB + 512 * KIB), "68681728 bytes (65.5 MiB)");
        assert_eq!(shown(u64::MAX), "18446744073709551615 bytes (16777215.9 TiB)");
    }

    #[test]
    fn survives_toml() {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Document {
            size: ByteSize,
        }
        for bytes in [0, 1, 1025, 64 * MIB, GIB + 1, i64::MAX as u64, 1 << 63, u64::MAX] {
            let text = toml::to_string(&Document { size: ByteSize(bytes) }).unwrap();
            let back: Document = toml::from_str(&text).unwrap();
            assert_eq!(back.size.bytes(), bytes, "{text}");
        }
        assert!(toml::from_str::<Document>("size = -5").is_err());
        assert!(toml::from_str::<Document>("size = true").is_err());
        assert!(toml::from_str::<Document>("size = \"many\"").is_err());
    }
}
