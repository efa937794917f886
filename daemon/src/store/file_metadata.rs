//! Metadata of the files that tensors came from, each text kept once for each user.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tierpack_shm::message::{ErrorCode, FileMetadata, MAX_FILE_METADATA_BYTES, Refusal};

use super::Outcome;
use super::budget::Charge;
use super::shares::User;
use crate::size::{ByteSize, MIB};

/// What a text takes besides its bytes.
const TEXT_BYTES: u64 = 256;

/// A file's metadata as JSON, shared by the tensors of one user that came from it; it goes with the last of them.
pub(crate) type SharedText = Arc<Text>;

/// The bytes of a user's text, as the table finds them.
type Key = (u32, Arc<[u8]>);

/// One text.
#[derive(Debug)]
pub(crate) struct Text {
    number: u64,
    key: Key,
    texts: Arc<Mutex<Texts>>,
    _charge: Charge,
}

impl Text {
    /// A number that no other text of this daemon ever has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.key.1
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        self.texts.lock().remove(self);
    }
}

/// The texts in use, and their bytes.
#[derive(Debug, Default)]
struct Texts {
    by_key: HashMap<Key, Weak<Text>>,
    total_bytes: u64,
    last_number: u64,
    by_user: HashMap<u32, u64>,
}

impl Texts {
    fn remove(&mut self, text: &Text) {
        let (uid, len) = (text.key.0, text.len() as u64);
        self.total_bytes -= len;
        if let Some(own) = self.by_user.get_mut(&uid) {
            *own -= len;
            if *own == 0 {
                self.by_user.remove(&uid);
            }
        }
        // The same text may have come again since the last user of this one was gone.
        if self.by_key.get(&text.key).is_some_and(|found| std::ptr::eq(found.as_ptr(), text)) {
            self.by_key.remove(&text.key);
        }
    }
}

/// The texts in use, bounded, and half of the bound for one user.
#[derive(Debug)]
pub(crate) struct FileMetadataSet {
    limit_bytes: u64,
    texts: Arc<Mutex<Texts>>,
}

impl FileMetadataSet {
    pub(crate) fn new(pool_bytes: u64) -> Self {
        Self { limit_bytes: (pool_bytes / 16).max(64 * MIB), texts: Arc::default() }
    }

    /// The shared copy of a user's text, which must be a JSON object of strings; `charge` charges heap for a new one.
    pub(crate) fn intern(
        &self,
        text: Vec<u8>,
        user: User,
        charge: impl FnOnce(u64) -> Outcome<Charge>,
    ) -> Outcome<SharedText> {
        let refuse =
            |code, fault: String| Err(Refusal::new(code, format!("file metadata is refused: {fault}")));
        let len = text.len() as u64;
        if len > MAX_FILE_METADATA_BYTES {
            let fault = format!("{len} bytes are over the limit of {MAX_FILE_METADATA_BYTES}");
            return refuse(ErrorCode::Invalid, fault);
        }
        let key: Key = (user.uid, text.into());
        if let Some(found) = self.texts.lock().by_key.get(&key).and_then(Weak::upgrade) {
            return Ok(found);
        }
        if let Err(error) = serde_json::from_slice::<FileMetadata>(&key.1) {
            return refuse(ErrorCode::Invalid, format!("not a JSON object of strings: {error}"));
        }
        let charge = charge(len + TEXT_BYTES)?;
        let mut texts = self.texts.lock();
        if let Some(found) = texts.by_key.get(&key).and_then(Weak::upgrade) {
            return Ok(found);
        }
        let own = texts.by_user.get(&user.uid).copied().unwrap_or_default() + len;
        let share = if user.is_operator { self.limit_bytes } else { self.limit_bytes / 2 };
        let total = texts.total_bytes + len;
        if own > share || total > self.limit_bytes {
            let fault = format!(
                "user {} would have {}, of which the share is {}, and all users {}, of which the limit is {}",
                user.uid,
                ByteSize(own),
                ByteSize(share),
                ByteSize(total),
                ByteSize(self.limit_bytes)
            );
            return refuse(ErrorCode::Limit, fault);
        }
        texts.total_bytes = total;
        texts.by_user.insert(user.uid, own);
        texts.last_number += 1;
        let (number, texts_of) = (texts.last_number, Arc::clone(&self.texts));
        let shared = Arc::new(Text { number, key: key.clone(), texts: texts_of, _charge: charge });
        texts.by_key.insert(key, Arc::downgrade(&shared));
        Ok(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::budget::Budget;

    const USER: User = User { uid: 7, is_operator: false };

    fn intern(set: &FileMetadataSet, text: &[u8], user: User) -> Outcome<SharedText> {
        let budget = Arc::new(Budget::new(1 << 30));
        set.intern(text.to_vec(), user, |len| Ok(budget.charge_anyway(&Arc::default(), len)))
    }

    #[test]
    fn keeps_one_copy_of_a_text_while_it_is_used() {
        let set = FileMetadataSet::new(0);
        let a = intern(&set, br#"{"a":"b"}"#, USER).unwrap();
        let b = intern(&set, br#"{"a":"b"}"#, USER).unwrap();
        assert!(Arc::ptr_eq(&a, &b));
        drop(a);
        assert_eq!(set.texts.lock().total_bytes, 9);
        drop(b);
        let texts = set.texts.lock();
        assert_eq!((texts.by_key.len(), texts.total_bytes, texts.by_user.len()), (0, 0, 0));
    }

    #[test]
    fn one_user_does_not_use_up_the_limit_for_all() {
        let set = FileMetadataSet { limit_bytes: 30, texts: Arc::default() };
        let other = User { uid: 8, is_operator: false };
        let kept = intern(&set, br#"{"a":"bcd"}"#, USER).unwrap();
        let refused = intern(&set, br#"{"b":"b"}"#, USER).unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::Limit), "{}", refused.text);
        let own = intern(&set, br#"{"a":"bcd"}"#, other).unwrap();
        assert!(!Arc::ptr_eq(&kept, &own), "each user has copies of their own");
        assert!(intern(&set, br#"{"b":"b"}"#, User { uid: 0, is_operator: true }).is_err(), "all is used");
        drop(own);
        assert!(intern(&set, br#"{"b":"b"}"#, User { uid: 0, is_operator: true }).is_ok());
    }

    #[test]
    fn refuses_what_is_not_an_object_of_strings() {
        let set = FileMetadataSet::new(0);
        for bad in [&b""[..], b"[]", b"{\"a\":1}", b"{\"a\":", b"\xFF", b"null"] {
            assert_eq!(intern(&set, bad, USER).unwrap_err().code(), Some(ErrorCode::Invalid));
        }
    }
}
