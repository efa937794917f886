//! The `__metadata__` that a file of several tensors may carry: what all of them agree on.
//!
//! Each tensor keeps the metadata of the file it came from.
//! A key is written when every chosen tensor has it with the same text; the others are named in one warning.

use std::collections::{BTreeMap, BTreeSet};

use crate::escape;

/// Most keys that the warning names.
const NAMED: usize = 8;

/// Folds the metadata of one tensor after another.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    n_tensors: usize,
    agreed: BTreeMap<String, String>,
    differing: BTreeSet<String>,
}

impl Agreement {
    /// Adds the next tensor's metadata.
    pub(crate) fn add(&mut self, metadata: BTreeMap<String, String>) {
        self.n_tensors += 1;
        if self.n_tensors == 1 {
            self.agreed = metadata;
            return;
        }
        let lost: Vec<String> = self
            .agreed
            .iter()
            .filter(|(key, text)| metadata.get(*key) != Some(*text))
            .map(|(key, _)| key.clone())
            .collect();
        for key in lost {
            self.agreed.remove(&key);
            self.differing.insert(key);
        }
        self.differing.extend(metadata.into_keys().filter(|key| !self.agreed.contains_key(key)));
    }

    /// The keys on which all tensors agree.
    pub(crate) fn agreed(&self) -> &BTreeMap<String, String> {
        &self.agreed
    }

    /// What to tell about the other keys.
    pub(crate) fn warning(&self) -> Option<String> {
        if self.differing.is_empty() {
            return None;
        }
        let named: Vec<_> = self.differing.iter().take(NAMED).map(|key| escape::quoted(key)).collect();
        let more = self.differing.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(format!(
            "metadata left out, because the {} tensors do not agree on it: {}{more}",
            self.n_tensors,
            named.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect()
    }

    fn fold(maps: &[&[(&str, &str)]]) -> Agreement {
        let mut agreement = Agreement::default();
        maps.iter().for_each(|pairs| agreement.add(map(pairs)));
        agreement
    }

    #[test]
    fn one_tensor_agrees_with_itself() {
        let agreement = fold(&[&[("a", "1"), ("b", "2")]]);
        assert_eq!(agreement.agreed(), &map(&[("a", "1"), ("b", "2")]));
        assert_eq!(agreement.warning(), None);
        assert_eq!(fold(&[]).agreed(), &map(&[]));
    }

    #[test]
    fn keeps_equal_keys_and_names_the_others() {
        let agreement =
            fold(&[&[("a", "1"), ("b", "2")], &[("a", "1"), ("b", "3"), ("c", "4")], &[("a", "1")]]);
        assert_eq!(agreement.agreed(), &map(&[("a", "1")]));
        let warning = agreement.warning().unwrap();
        assert!(warning.contains("3 tensors") && warning.ends_with("\"b\", \"c\""), "{warning}");
    }

    #[test]
    fn a_key_that_was_lost_does_not_come_back() {
        let agreement = fold(&[&[("a", "1")], &[], &[("a", "1")]]);
        assert!(agreement.agreed().is_empty());
        assert!(agreement.warning().unwrap().contains("\"a\""));
    }

    #[test]
    fn the_warning_stays_short() {
        let keys: Vec<String> = (0..100).map(|idx| format!("{idx:03}\n")).collect();
        let pairs: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "")).collect();
        let warning = fold(&[&pairs, &[]]).warning().unwrap();
        assert!(warning.ends_with(r#""007\n" and 92 more"#), "{warning}");
    }
}
