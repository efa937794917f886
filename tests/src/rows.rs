//! Tables whose rows say which tensor, which version and which row they are of, for every codec.
//!
//! A row is compared whole with each version that it may have: one that fits none is a mixture, or of another row.

use tierpack_client::{Client, CodecChoice, CodecId, Dtype, Error, PutOptions};

use crate::data::{Random, Words};
use crate::raw;

/// Bytes of a row.
pub const ROW_BYTES: usize = 512;

/// A table of a test: what its rows are in each version.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The tensor's number, in every row of it.
    pub tensor: u16,
    /// How it is stored.
    pub codec: CodecId,
    /// How many rows.
    pub n_rows: u64,
}

impl Table {
    /// A row in a version.
    ///
    /// # Panics
    /// Never: a row is whole words.
    pub fn row(&self, row: u64, version: u16) -> Vec<u8> {
        let mut bytes = vec![0; ROW_BYTES];
        let mut random =
            Random::new(u64::from(self.tensor) << 48 | u64::from(version) << 32 | (row & 0xFFFF_FFFF));
        match self.codec {
            CodecId::Planes4 | CodecId::Planes3 | CodecId::Planes222 => {
                for word in bytes.chunks_exact_mut(2) {
                    // bf16: any sign and mantissa, and exponents that differ little.
                    let any = random.next_u64() >> 20;
                    let value = any & 0x807F | (120 + (any >> 20 & 3)) << 7;
                    word.copy_from_slice(&value.to_le_bytes()[..2]);
                }
            }
            CodecId::Sparse => {
                for word in bytes.chunks_exact_mut(4).step_by(5) {
                    word.copy_from_slice(&(random.next_u64() >> 7 | 1).to_le_bytes()[..4]);
                }
            }
            _ => {
                let first_word = row * (ROW_BYTES as u64 / 8);
                Words::new(self.codec != CodecId::Raw).fill(&mut bytes, self.tensor, version, first_word);
            }
        }
        bytes
    }

    /// Several rows, one behind the other.
    pub fn rows(&self, rows: impl IntoIterator<Item = u64>, version: u16) -> Vec<u8> {
        rows.into_iter().flat_map(|row| self.row(row, version)).collect()
    }

    /// The newest of these versions that a row has.
    pub fn version_of(&self, bytes: &[u8], row: u64, versions: impl IntoIterator<Item = u16>) -> Option<u16> {
        versions.into_iter().filter(|&version| bytes == self.row(row, version)).max()
    }

    /// Puts all rows in a version, over whatever has the name.
    ///
    /// # Errors
    /// As [`Client::put_with`].
    pub fn put(&self, client: &Client, name: &str, version: u16) -> Result<(), Error> {
        let (dtype, bits) = match self.codec {
            CodecId::Planes4 | CodecId::Planes3 | CodecId::Planes222 => (Dtype::Bf16, 16),
            CodecId::Sparse => (Dtype::F32, 32),
            _ => (Dtype::U64, 64),
        };
        let bytes = self.rows(0..self.n_rows, version);
        let options = PutOptions::new().codec(CodecChoice::Only(self.codec)).overwrite(true);
        let shape = [self.n_rows, ROW_BYTES as u64 * 8 / bits];
        client.put_with(name, dtype, &shape, &mut &bytes[..], &options).map(drop)
    }
}

/// Puts tensors until the pool is full, and removes them, so that all memory that is free has been written.
///
/// # Panics
/// When nothing fits, or nothing can be removed.
pub fn overwrite_what_is_free(client: &Client) {
    let bytes = vec![0x5A; 128 << 10];
    let name = |n: usize| format!("filler-{n}");
    let put = |n| client.put_with(&name(n), Dtype::U8, &[128 << 10], &mut &bytes[..], &raw());
    let n = (0..).find(|&n| put(n).is_err()).expect("a pool gets full");
    assert!(n > 1, "only {n} fillers fit: nothing was overwritten");
    (0..n).for_each(|n| client.remove(&name(n)).expect("it was put"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_of_one_version_and_place() {
        for codec in [CodecId::Raw, CodecId::Ibp, CodecId::Planes4, CodecId::Sparse] {
            let table = Table { tensor: 3, codec, n_rows: 9 };
            let mut all: Vec<_> =
                (0..9).flat_map(|row| (0..5).map(move |version| table.row(row, version))).collect();
            let row = table.row(4, 2);
            assert_eq!(table.version_of(&row, 4, 0..5), Some(2), "{codec}");
            assert_eq!(table.version_of(&row, 4, 3..5), None);
            let mixed = [&table.row(4, 2)[..256], &table.row(4, 3)[256..]].concat();
            assert_eq!(table.version_of(&mixed, 4, 0..5), None);
            all.sort();
            all.dedup();
            assert_eq!(all.len(), 45, "{codec}");
        }
    }
}
