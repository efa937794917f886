//! Hostile messages: an error, or a value that survives its own encoding.

use core::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tierpack_shm::message::{
    ClientMessage, DaemonMessage, Hello, HelloReply, check_descriptors, decode, decode_hello, encode,
};

use crate::input::Input;

/// A message of every type; bit 0 of the first byte leaves the checksum to the fuzzer.
///
/// # Panics
/// Where something is wrong.
pub fn message(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.u8();
    let rest = input.rest();
    let bytes = match flags & 1 {
        0 => [&crc32c::crc32c(rest).to_le_bytes(), rest].concat(),
        _ => rest.to_vec(),
    };
    hello::<Hello>(&bytes);
    hello::<HelloReply>(&bytes);
    if let Some(message) = exact::<ClientMessage>(&bytes) {
        let needed = message.descriptors();
        assert!(needed <= 1 && check_descriptors(needed, needed).is_ok());
        assert!(check_descriptors(needed, needed + 1).is_err());
    }
    if let Some(message) = exact::<DaemonMessage>(&bytes) {
        // Each descriptor that is named took bytes of the message.
        assert!(message.descriptors() <= bytes.len());
    }
}

/// A message that must end where its bytes do.
fn exact<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let value = decode::<T>(bytes).ok()?;
    let again = encode(&value).expect("what came in a message fits one");
    assert!(again.len() <= bytes.len(), "the encoder's form is the shortest");
    assert_eq!(decode::<T>(&again).as_ref().ok(), Some(&value));
    Some(value)
}

/// A message that may go on, as those of a later version do.
fn hello<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    let lenient = decode_hello::<T>(bytes);
    let strict = exact::<T>(bytes);
    let Ok(value) = lenient else { return assert_eq!(strict, None) };
    assert!(strict.is_none_or(|strict| strict == value));
    let again = encode(&value).expect("what came in a message fits one");
    assert_eq!(decode_hello::<T>(&again).ok(), Some(value));
}
