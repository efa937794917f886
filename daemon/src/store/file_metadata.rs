//! Metadata of the files that tensors came from, each text kept once.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tierpack_shm::message::{ErrorCode, FileMetadata, MAX_FILE_METADATA_BYTES, Refusal};

use super::Outcome;
use crate::size::{ByteSize, MIB};

/// A file's metadata as JSON, shared by the tensors that came from it.
pub(crate) type SharedText = Arc<[u8]>;

/// The texts in use; bounded, since they are not in the pool.
#[derive(Debug)]
pub(crate) struct FileMetadataSet {
    limit_bytes: u64,
    texts: Mutex<HashSet<SharedText>>,
}

impl FileMetadataSet {
    pub(crate) fn new(pool_bytes: u64) -> Self {
        Self { limit_bytes: (pool_bytes / 16).max(64 * MIB), texts: Mutex::default() }
    }

    /// The shared copy of a text, which must be a JSON object of strings.
    pub(crate) fn intern(&self, text: Vec<u8>) -> Outcome<SharedText> {
        let refuse =
            |code, fault: String| Err(Refusal::new(code, format!("file metadata is refused: {fault}")));
        if text.len() as u64 > MAX_FILE_METADATA_BYTES {
            let fault = format!("{} bytes are over the limit of {MAX_FILE_METADATA_BYTES}", text.len());
            return refuse(ErrorCode::Invalid, fault);
        }
        if let Some(found) = self.texts.lock().get(&text[..]) {
            return Ok(Arc::clone(found));
        }
        if let Err(error) = serde_json::from_slice::<FileMetadata>(&text) {
            return refuse(ErrorCode::Invalid, format!("not a JSON object of strings: {error}"));
        }
        let mut texts = self.texts.lock();
        texts.retain(|text| Arc::strong_count(text) > 1);
        let total = texts.iter().map(|text| text.len() as u64).sum::<u64>() + text.len() as u64;
        if total > self.limit_bytes {
            let fault =
                format!("{} with the others, the limit is {}", ByteSize(total), ByteSize(self.limit_bytes));
            return refuse(ErrorCode::Limit, fault);
        }
        let shared: SharedText = text.into();
        texts.insert(Arc::clone(&shared));
        Ok(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_one_copy_of_a_text_while_it_is_used() {
        let set = FileMetadataSet::new(0);
        let a = set.intern(br#"{"a":"b"}"#.to_vec()).unwrap();
        let b = set.intern(br#"{"a":"b"}"#.to_vec()).unwrap();
        assert!(Arc::ptr_eq(&a, &b));
        drop((a, b));
        set.intern(b"{}".to_vec()).unwrap();
        assert_eq!(set.texts.lock().len(), 1);
    }

    #[test]
    fn refuses_what_is_not_an_object_of_strings() {
        let set = FileMetadataSet::new(0);
        for bad in [&b""[..], b"[]", b"{\"a\":1}", b"{\"a\":", b"\xFF", b"null"] {
            assert_eq!(set.intern(bad.to_vec()).unwrap_err().code(), Some(ErrorCode::Invalid));
        }
    }
}
