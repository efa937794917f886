//! Stored files: the golden blocks of the format, and real tensors.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::metadata::Metadata;
use tierpack_kernels::{Coder, fit};
use tierpack_shm::types::{Access, CodecId, Dtype};

use crate::make::{encode, is_coded};
use crate::suite::agree;
use crate::target::Case;

fn folder(name: &str) -> PathBuf {
    // The suite is built in two packages: in `tests`, and in `tests/cusim` for sanitizers. A pack for GPUs has the files
    // elsewhere.
    let packed = std::env::var_os("TIERPACK_TESTS_DIR").map(PathBuf::from);
    let package = packed.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let mut paths = package.ancestors().map(|folder| folder.join(name));
    paths.find(|path| path.exists()).expect("the folder is there")
}

/// A golden block with its metadata; block and metadata say all about their tensor.
fn golden(block: &Path) -> Case {
    let bytes = fs::read(block).expect("a golden block");
    let field = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("a header")).into();
    let dtype = Dtype::from_number(bytes[7]).expect("a dtype");
    let access = if bytes[44] == 2 { Access::Whole } else { Access::Rows };
    let geometry = Geometry::new(dtype, &[field(12), field(16)], access, None).expect("a shape");
    let coder = fs::read(block.with_extension("metadata")).ok().map(|bytes| {
        let metadata = Metadata::parse(&bytes, &geometry).expect("golden metadata");
        Coder::new(&metadata, &geometry).expect("metadata of this tensor")
    });
    let name = block.display().to_string();
    Case { name, geometry, coder, blocks: vec![bytes], overlays: Vec::new() }
}

#[test]
fn golden_blocks() {
    let mut n = 0;
    for entry in fs::read_dir(folder("golden/v1")).expect("the golden files") {
        let path = entry.expect("a golden file").path();
        if path.extension().is_some_and(|ending| ending == "block") {
            let raw = fs::read(path.with_extension("raw")).expect("golden raw bytes");
            assert!(agree(&golden(&path)) == Ok(raw), "{}", path.display());
            n += 1;
        }
    }
    assert!(n > 20, "only {n} golden blocks");
}

/// Every tensor of a file, by a fit of each codec that suits it.
fn real(file: &str) -> usize {
    let bytes = fs::read(folder("data").join(file)).expect("a file of tensors");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut n_coded = 0;
    for (name, view) in tensors.tensors() {
        let dtype: Dtype = view.dtype().to_string().parse().expect("a known dtype");
        let shape: Vec<u64> = view.shape().iter().map(|&n| n as u64).collect();
        for access in [Access::Rows, Access::Whole] {
            let geometry = Geometry::new(dtype, &shape, access, None).expect("a shape");
            if geometry.n_blocks() == 0 {
                continue;
            }
            let pieces = fit::pieces(&geometry, 0..geometry.n_blocks(), 0);
            let sample: Vec<_> =
                pieces.into_iter().map(|piece| (piece, &view.data()[piece.in_tensor()])).collect();
            // Both accesses of all codecs take long; they differ in how records are cut.
            let codecs = CodecId::ALL[1..].iter().skip(usize::from(access == Access::Whole)).step_by(2);
            for &codec in codecs {
                let Ok(fit) = fit::fit(codec, &geometry, &sample) else { continue };
                let Some(metadata) = fit.metadata else { continue };
                let coder = Coder::new(&metadata, &geometry).expect("metadata of this tensor");
                let case = encode(format!("{name} {codec}"), &geometry, Some(coder), view.data());
                assert!(agree(&case).as_deref() == Ok(view.data()), "{name} by {codec}");
                n_coded += usize::from(is_coded(&case));
            }
        }
    }
    n_coded
}

#[test]
fn real_weights() {
    assert!(real("minilm_layer0_bf16.safetensors") > 20);
}

#[test]
fn a_real_table_of_rows() {
    assert!(real("embed_step1000.safetensors") > 2);
}
