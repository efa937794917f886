//! Tensors of files in memory, and what one codec makes of them.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use tierpack_client::{Access, CodecId, Dtype};
use tierpack_kernels::Coder;
use tierpack_kernels::codec::{Encoding, encode_block};
use tierpack_kernels::fit::{fit, pieces, seed};
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::types::{UNIT_BYTES, index};

use crate::escape;
use crate::files::{self, ReadAs, SourceFile};

/// A tensor in memory.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Its file, without folder and extension.
    pub(super) file: String,
    /// Its name.
    pub(super) name: String,
    /// How it is cut.
    pub(super) geometry: Geometry,
    /// Its bytes.
    pub(super) raw: Vec<u8>,
}

/// A tensor encoded by one codec.
#[derive(Debug)]
pub(super) struct Coded {
    /// The codec that was asked for.
    pub(super) codec: CodecId,
    coder: Option<Coder>,
    /// The encoded blocks.
    pub(super) blocks: Vec<Vec<u8>>,
    /// What they and the metadata take in a pool.
    pub(super) stored_bytes: u64,
}

/// Reads the tensors of a safetensors or npy file.
///
/// # Errors
/// The file cannot be read, or is neither.
pub(super) fn load(path: &Path, access: Access) -> Result<Vec<Loaded>> {
    let source = SourceFile::open(path)?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (tensors, _) = files::read(&source, ReadAs::default(), || Ok(stem.clone()))?;
    let mut loaded = Vec::new();
    for tensor in tensors {
        let geometry = Geometry::new(tensor.dtype, &tensor.shape, access, None)
            .with_context(|| format!("tensor {}", escape::quoted(&tensor.name)))?;
        let mut raw = Vec::new();
        source.range(tensor.range.clone()).read_to_end(&mut raw)?;
        loaded.push(Loaded { file: stem.clone(), name: tensor.name, geometry, raw });
    }
    Ok(loaded)
}

impl Loaded {
    /// The raw bytes of a block.
    pub(super) fn block(&self, block_idx: u64) -> &[u8] {
        let shape = self.geometry.block(block_idx);
        &self.raw[index(shape.byte_offset)..][..index(shape.raw_bytes)]
    }

    /// Encodes the tensor by `codec`, fitted to a sample as a put fits it.
    ///
    /// # Errors
    /// The codec cannot be fitted to the tensor.
    pub(super) fn encode(&self, codec: CodecId) -> Result<Coded> {
        let geometry = &self.geometry;
        let rounded = |len: u64| len.next_multiple_of(UNIT_BYTES);
        let mut coded = Coded { codec, coder: None, blocks: Vec::new(), stored_bytes: 0 };
        if self.raw.is_empty() {
            return Ok(coded);
        }
        let pieces = pieces(geometry, 0..geometry.n_blocks(), seed(&self.name, 0));
        let sample: Vec<_> = pieces.into_iter().map(|piece| (piece, &self.raw[piece.in_tensor()])).collect();
        if let Some(metadata) = fit(codec, geometry, &sample)?.metadata {
            coded.stored_bytes += rounded(metadata.len_bytes());
            coded.coder = Some(Coder::new(&metadata, geometry)?);
        }
        for block_idx in 0..geometry.n_blocks() {
            let mut block = Vec::new();
            encode_block(coded.encoding(), geometry, block_idx, self.block(block_idx), &mut block)?;
            coded.stored_bytes += rounded(block.len() as u64);
            coded.blocks.push(block);
        }
        Ok(coded)
    }

    /// Percent that coding the exponent alone at its order-0 entropy would save; `None` for dtypes without one.
    pub(super) fn bound_percent(&self) -> Option<f64> {
        bound_percent(self.geometry.dtype(), &self.raw)
    }
}

impl Coded {
    /// What decodes its blocks; `None` where they are raw.
    pub(super) fn coder(&self) -> Option<&Coder> {
        self.coder.as_ref()
    }

    /// What encodes its blocks.
    pub(super) fn encoding(&self) -> Encoding<'_> {
        self.coder.as_ref().map_or(Encoding::Raw, Encoding::Coded)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
fn bound_percent(dtype: Dtype, raw: &[u8]) -> Option<f64> {
    let (exponent_bits, mantissa_bits) = match dtype {
        Dtype::F64 => (11, 52),
        Dtype::F32 => (8, 23),
        Dtype::F16 => (5, 10),
        Dtype::Bf16 => (8, 7),
        Dtype::F8E5m2 => (5, 2),
        Dtype::F8E4m3 => (4, 3),
        _ => return None,
    };
    let bytes = index(u64::from(dtype.bits() / 8));
    let mut counts = vec![0_u64; 1 << exponent_bits];
    for element in raw.chunks_exact(bytes) {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(element);
        let exponent = u64::from_le_bytes(word) >> mantissa_bits & ((1 << exponent_bits) - 1);
        counts[index(exponent)] += 1;
    }
    let total = (raw.len() / bytes) as f64;
    let shares = counts.iter().filter(|count| **count > 0).map(|count| *count as f64 / total);
    let entropy: f64 = shares.map(|share| -share * share.log2()).sum();
    Some(100.0 * (f64::from(exponent_bits) - entropy) / f64::from(dtype.bits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_one_exponent_is_all_of_its_bits() {
        let ones: Vec<u8> = [1.0_f32; 64].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(bound_percent(Dtype::F32, &ones), Some(25.0));
        let two: Vec<u8> = [1.0_f32, 2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(bound_percent(Dtype::F32, &two), Some(100.0 * 7.0 / 32.0));
        assert_eq!(bound_percent(Dtype::U8, &ones), None);
    }
}
