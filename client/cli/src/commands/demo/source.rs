//! The data of the demo: a slice of a real checkpoint inside the binary.
//!
//! Source: `tests/data/README.md`, which has its license, too.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use safetensors::SafeTensors;
use tierpack_client::Dtype;

static FILE: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/minilm_layer0_bf16.safetensors"));

/// One tensor of the checkpoint.
#[derive(Debug)]
pub(super) struct SourceTensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    pub(super) bytes: &'static [u8],
}

/// The checkpoint.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) tensors: Vec<SourceTensor>,
    pub(super) metadata: BTreeMap<String, String>,
}

impl Source {
    /// Parses the file that the binary carries.
    ///
    /// # Errors
    /// The binary was built with a file that is not a safetensors file.
    pub(super) fn open() -> Result<Self> {
        let (_, header) = SafeTensors::read_metadata(FILE).context("parse the checkpoint in the binary")?;
        let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
        let file = SafeTensors::deserialize(FILE).context("parse the checkpoint in the binary")?;
        let mut tensors = Vec::with_capacity(file.len());
        for (name, view) in file.tensors() {
            tensors.push(SourceTensor {
                dtype: view.dtype().to_string().parse().with_context(|| format!("tensor {name}"))?,
                shape: view.shape().iter().map(|&n| n as u64).collect(),
                bytes: view.data(),
                name,
            });
        }
        tensors.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        Ok(Self { tensors, metadata })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slice_holds_every_shape_that_matters() {
        let source = Source::open().unwrap();
        assert!(FILE.len() <= 3_000_000);
        assert_eq!(source.tensors.len(), 18);
        assert!(["license", "source", "slice"].iter().all(|&key| source.metadata.contains_key(key)));
        let has = |test: fn(&SourceTensor) -> bool| source.tensors.iter().any(test);
        assert!(has(|t| t.shape.is_empty()) && has(|t| t.bytes.is_empty()) && has(|t| t.dtype == Dtype::I64));
        assert!(has(|t| t.shape == [1536, 384]));
    }
}
