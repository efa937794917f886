//! Files of tensors: written byte by byte here, read by the safetensors crate, which TierPack's own reader is not.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::{Map, Value, json};

/// A tensor of a file.
#[derive(Clone, PartialEq, Eq)]
pub struct FileTensor {
    /// The dtype as safetensors spells it.
    pub dtype: String,
    /// The shape.
    pub shape: Vec<u64>,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl FileTensor {
    /// A tensor of a file.
    pub fn new(dtype: &str, shape: &[u64], bytes: impl Into<Vec<u8>>) -> Self {
        Self { dtype: dtype.to_owned(), shape: shape.to_vec(), bytes: bytes.into() }
    }
}

impl std::fmt::Debug for FileTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { dtype, shape, bytes } = self;
        write!(f, "{dtype} {shape:?} of {} bytes", bytes.len())
    }
}

/// Tensors by name.
pub type Tensors = BTreeMap<String, FileTensor>;
/// A safetensors file's `__metadata__`.
pub type Metadata = BTreeMap<String, String>;

/// A safetensors file of these tensors, in the order of their names.
///
/// # Panics
/// Never: a header of text and numbers is JSON.
pub fn safetensors(tensors: &Tensors, metadata: &Metadata) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    if !metadata.is_empty() {
        header.insert("__metadata__".to_owned(), json!(metadata));
    }
    for (name, FileTensor { dtype, shape, bytes }) in tensors {
        let begin = data.len();
        data.extend_from_slice(bytes);
        header.insert(
            name.clone(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()]}),
        );
    }
    let text = serde_json::to_string(&Value::Object(header)).expect("a header is JSON");
    with_header(text.as_bytes(), &data)
}

/// A safetensors file with this text as its header, whatever it says.
pub fn with_header(text: &[u8], data: &[u8]) -> Vec<u8> {
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(text);
    file.extend_from_slice(data);
    file
}

/// A npy file, version 1.0, in C order.
///
/// # Panics
/// When the header is longer than that version allows.
pub fn npy(descr: &str, shape: &[u64], data: &[u8]) -> Vec<u8> {
    let dimensions: String = shape.iter().map(|n| format!("{n},")).collect();
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dimensions}), }}");
    // The data starts at a multiple of 64, after a line break.
    let end = (10 + text.len() + 1).next_multiple_of(64) - 10;
    text += &" ".repeat(end - 1 - text.len());
    text.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend_from_slice(&u16::try_from(text.len()).expect("a short header").to_le_bytes());
    file.extend_from_slice(text.as_bytes());
    file.extend_from_slice(data);
    file
}

/// Reads a safetensors file with the safetensors crate.
///
/// # Panics
/// When the file cannot be read, or that crate refuses it.
pub fn read(path: &Path) -> (Tensors, Metadata) {
    let bytes = std::fs::read(path).expect("read a safetensors file");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("the safetensors crate reads the header");
    let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
    let file = SafeTensors::deserialize(&bytes).expect("the safetensors crate reads the file");
    let tensors = file.iter().map(|(name, view)| {
        let shape: Vec<u64> = view.shape().iter().map(|&n| n as u64).collect();
        (name.to_owned(), FileTensor::new(&view.dtype().to_string(), &shape, view.data()))
    });
    (tensors.collect(), metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_file_reads_back() {
        let tensors = Tensors::from([
            ("a".to_owned(), FileTensor::new("U8", &[3], [1, 2, 3])),
            ("b\n".to_owned(), FileTensor::new("BF16", &[0, 7], [])),
        ]);
        let metadata = Metadata::from([("k".to_owned(), "v".to_owned())]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        std::fs::write(&path, safetensors(&tensors, &metadata)).unwrap();
        assert_eq!(read(&path), (tensors, metadata));
    }

    #[test]
    fn npy_data_is_aligned() {
        for shape in [&[][..], &[3], &[12_345_678, 2]] {
            let file = npy("<f4", shape, b"data");
            assert_eq!((file.len() - 4) % 64, 0);
            assert_eq!(file[file.len() - 5], b'\n');
        }
    }
}
