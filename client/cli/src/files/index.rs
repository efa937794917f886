//! The index of a checkpoint in shards: which file holds which tensor.
//!
//! `{"metadata": {…}, "weight_map": {"TENSOR": "FILE", …}}`, as `transformers` writes it next to the files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};

use anyhow::{Context as _, Result, ensure};
use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, Visitor};

use super::SourceFile;
use super::safetensors::{MAX_HEADER_BYTES, unique_texts};
use crate::escape;

const MAP_KEY: &str = "weight_map";

/// Tensors by file: those that the index assigns to it.
pub(crate) type Shards = BTreeMap<String, Vec<String>>;

/// Whether `source` is an index: JSON by its name and its first byte.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn is_index(source: &SourceFile) -> Result<bool> {
    let has_name = source.path().extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let mut first = [0];
    if has_name && source.len() > 0 {
        source.read_exact_at(&mut first, 0)?;
    }
    Ok(has_name && (first[0] == b'{' || first[0].is_ascii_whitespace()))
}

/// Reads an index.
///
/// # Errors
/// It is no index, assigns a tensor twice, or names a file outside its folder.
pub(crate) fn read(source: &SourceFile) -> Result<Shards> {
    parse(source).with_context(|| format!("read {} as an index of shards", source.path().display()))
}

fn parse(source: &SourceFile) -> Result<Shards> {
    let len = source.len();
    ensure!(len <= MAX_HEADER_BYTES, "{len} bytes are above the limit of {MAX_HEADER_BYTES}");
    let mut text = vec![0; usize::try_from(len)?];
    source.read_exact_at(&mut text, 0)?;
    let mut json = serde_json::Deserializer::from_slice(&text);
    let map = json.deserialize_map(IndexVisitor).context("the index is malformed")?;
    json.end().context("text follows the index's closing brace")?;
    let map = map.context("it has no \"weight_map\", which says in which file each tensor is")?;
    ensure!(!map.is_empty(), "its \"weight_map\" is empty");
    let mut shards = Shards::new();
    for (tensor, file) in map {
        let mut parts = Path::new(&file).components();
        let is_inside = !file.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)));
        ensure!(
            is_inside,
            "it assigns tensor {} to {}, which is no file of its folder",
            escape::quoted(&tensor),
            escape::quoted(&file)
        );
        shards.entry(file).or_default().push(tensor);
    }
    Ok(shards)
}

struct IndexVisitor;

impl<'de> Visitor<'de> for IndexVisitor {
    type Value = Option<BTreeMap<String, String>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with \"weight_map\"")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != MAP_KEY {
                map.next_value::<IgnoredAny>()?;
            } else if found.replace(unique_texts(MAP_KEY, &mut map)?).is_some() {
                return Err(A::Error::custom("\"weight_map\" appears twice"));
            }
        }
        Ok(found)
    }
}
