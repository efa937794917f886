//! The header of a safetensors file: parsed, and checked against the bytes it describes.
//!
//! A visitor notices what a map would hide: two equal keys.
//! The depth of the JSON is checked first: `serde_json` bounds what it parses, but not what it skips.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::fmt;

use anyhow::{Context as _, Result, ensure};
use safetensors::tensor::TensorInfo;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use tierpack_client::Dtype;

use super::super::{FileTensor, raw_len};
use super::from_file_dtype;
use crate::escape;

/// The key that holds text instead of a tensor.
pub(super) const METADATA_KEY: &str = "__metadata__";

/// Deepest nesting of a header: tensors need 3, and `serde_json` parses 127.
const MAX_DEPTH: usize = 127;

/// A parsed header, not yet checked against the data.
#[derive(Debug, Default)]
pub(super) struct Header {
    pub(super) tensors: Vec<(String, TensorInfo)>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// Parses the JSON of a header.
///
/// # Errors
/// Not UTF-8, not JSON, not a header, nested too deep, or a key appears twice.
pub(super) fn parse(text: &[u8]) -> Result<Header> {
    let text = std::str::from_utf8(text)
        .with_context(|| format!("the header of {} bytes is not UTF-8", text.len()))?;
    ensure!(text.starts_with('{'), "the header does not start with {{: this is not a safetensors file");
    check_depth(text)?;
    let mut json = serde_json::Deserializer::from_str(text);
    let mut header = json
        .deserialize_map(HeaderVisitor)
        .with_context(|| format!("the header of {} bytes is malformed", text.len()))?;
    json.end().context("text follows the header's closing brace")?;
    header.tensors.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
    for pair in header.tensors.windows(2) {
        if let [(left, _), (right, _)] = pair {
            ensure!(left != right, "tensor {} appears twice in the header", escape::quoted(left));
        }
    }
    Ok(header)
}

/// Refuses JSON that is nested deeper than any header.
fn check_depth(text: &str) -> Result<()> {
    let mut depth = 0_usize;
    let mut bytes = text.bytes().enumerate();
    while let Some((offset, byte)) = bytes.next() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                // To the end of the string: brackets in it do not nest.
                while let Some((_, byte)) = bytes.next() {
                    match byte {
                        b'\\' => drop(bytes.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        ensure!(depth <= MAX_DEPTH, "the header is nested deeper than {MAX_DEPTH} at byte {offset}");
    }
    Ok(())
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header::default();
        let mut has_metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA_KEY {
                if has_metadata {
                    return Err(A::Error::custom("\"__metadata__\" appears twice in the header"));
                }
                has_metadata = true;
                header.metadata = map.next_value_seed(TextMap(METADATA_KEY))?;
            } else {
                let info = map.next_value::<TensorInfo>().map_err(|error| {
                    A::Error::custom(format_args!("tensor {}: {error}", escape::quoted(&name)))
                })?;
                header.tensors.push((name, info));
            }
        }
        Ok(header)
    }
}

/// Reads an object of strings that is the value of `key`, and in which no key appears twice.
pub(in crate::files) fn unique_texts<'de, A: MapAccess<'de>>(
    key: &'static str,
    map: &mut A,
) -> Result<BTreeMap<String, String>, A::Error> {
    map.next_value_seed(TextMap(key))
}

/// Reads an object of strings, the value of this key; `None` and null are an empty one, as in the safetensors crate.
struct TextMap(&'static str);

impl<'de> DeserializeSeed<'de> for TextMap {
    type Value = BTreeMap<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TextMap {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of strings for {:?}", self.0)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut texts = BTreeMap::new();
        while let Some((key, text)) = map.next_entry::<String, String>()? {
            match texts.entry(key) {
                btree_map::Entry::Vacant(free) => free.insert(text),
                btree_map::Entry::Occupied(taken) => {
                    return Err(A::Error::custom(format_args!(
                        "key {} appears twice in {:?}",
                        escape::quoted(taken.key()),
                        self.0
                    )));
                }
            };
        }
        Ok(texts)
    }
}

/// Sorts `tensors` by their bytes and checks that they cover `data_len` bytes from `data_start` exactly once.
///
/// # Errors
/// A range runs backwards, overlaps, leaves a hole, passes the end, or disagrees with dtype and shape.
pub(super) fn place(
    mut tensors: Vec<(String, TensorInfo)>,
    data_start: u64,
    data_len: u64,
) -> Result<Vec<FileTensor>> {
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let mut placed = Vec::with_capacity(tensors.len());
    let mut covered = 0;
    for (name, info) in tensors {
        let (begin, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        let (dtype, shape) = check_range(begin, end, covered, data_len)
            .and_then(|()| check_size(&info, end - begin))
            .with_context(|| format!("tensor {}", escape::quoted(&name)))?;
        covered = end;
        placed.push(FileTensor { name, dtype, shape, range: data_start + begin..data_start + end });
    }
    ensure!(
        covered == data_len,
        "the file holds {data_len} bytes of data, but the header describes {covered}: the rest belongs to no tensor"
    );
    Ok(placed)
}

/// Refuses a range that does not start where the last one ended, or passes the end.
fn check_range(begin: u64, end: u64, covered: u64, data_len: u64) -> Result<()> {
    let offsets = format_args!("its data offsets [{begin}, {end}]");
    ensure!(begin <= end, "{offsets} run backwards");
    ensure!(end <= data_len, "{offsets} pass the end of the data, which has {data_len} bytes");
    ensure!(begin >= covered, "{offsets} overlap another tensor, which ends at {covered}");
    ensure!(begin == covered, "{offsets} leave a hole: bytes {covered} to {begin} belong to no tensor");
    Ok(())
}

/// The dtype and shape of `info`, if they need exactly `held` bytes.
fn check_size(info: &TensorInfo, held: u64) -> Result<(Dtype, Vec<u64>)> {
    let dtype = from_file_dtype(info.dtype)?;
    let shape: Vec<u64> = info.shape.iter().map(|&n| n as u64).collect();
    let needed = raw_len(dtype, &shape).with_context(|| {
        format!("{dtype} with {} dimensions is not a whole number of bytes below 2^61", shape.len())
    })?;
    ensure!(needed == held, "its shape needs {needed} bytes as {dtype}, its data offsets hold {held}");
    Ok((dtype, shape))
}
