//! What `put` is to store: the tensors of all files, opened and checked before anything is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::Args;
use crate::commands::n_tensors;
use crate::files::index::{self, Shards};
use crate::files::{self, FileTensor, SourceFile};
use crate::{escape, output};

/// Most names that an error lists.
const NAMED: usize = 8;

/// The files, ready to be stored.
#[derive(Debug)]
pub(super) struct Import {
    pub(super) parts: Vec<Part>,
    /// What errors call all of it.
    pub(super) label: String,
}

/// One file and those of its tensors that are to be stored.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) source: SourceFile,
    pub(super) tensors: Vec<FileTensor>,
    pub(super) metadata: BTreeMap<String, String>,
}

impl Import {
    /// Opens and checks the files; nothing is stored yet.
    ///
    /// # Errors
    /// A file is malformed or missing, or two hold a tensor of the same name.
    pub(super) fn open(args: &Args) -> Result<Self> {
        let mut parts = Vec::with_capacity(args.files.len());
        for path in &args.files {
            let source = SourceFile::open(path)?;
            if args.read_as.format.is_none() && index::is_index(&source)? {
                parts.extend(shards(&source, args)?);
            } else {
                parts.push(Part::read(source, args)?);
            }
        }
        let label = match args.files.as_slice() {
            [file] => file.display().to_string(),
            files => format!("{} files", files.len()),
        };
        let mut import = Self { parts, label };
        import.check_names()?;
        if let Some(name) = &args.name {
            import.rename(name)?;
        }
        if let Some(row_elems) = args.row_elems {
            import.check_row_elems(row_elems)?;
        }
        Ok(import)
    }

    /// Every tensor.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &FileTensor> {
        self.parts.iter().flat_map(|part| &part.tensors)
    }

    /// How many there are.
    pub(super) fn n_tensors(&self) -> usize {
        self.parts.iter().map(|part| part.tensors.len()).sum()
    }

    /// Bytes of all tensors.
    pub(super) fn raw_bytes(&self) -> u64 {
        self.tensors().map(FileTensor::raw_bytes).sum()
    }

    /// Refuses a name that two files hold.
    fn check_names(&self) -> Result<()> {
        let (mut seen, mut twice) = (BTreeMap::new(), Vec::new());
        for part in &self.parts {
            let path = part.source.path();
            for tensor in &part.tensors {
                if let Some(other) = seen.insert(tensor.name.as_str(), path) {
                    let (name, other) = (escape::quoted(&tensor.name), other.display());
                    twice.push(format!("{name} in {other} and {}", path.display()));
                }
            }
        }
        ensure!(
            twice.is_empty(),
            "{} in more than one file: {}: put one of the files, or the index that assigns them",
            names_are(twice.len()),
            listed(&twice)
        );
        Ok(())
    }

    /// Names the one tensor.
    fn rename(&mut self, name: &str) -> Result<()> {
        let n = self.n_tensors();
        let mut tensors = self.parts.iter_mut().flat_map(|part| &mut part.tensors);
        let (Some(tensor), None) = (tensors.next(), tensors.next()) else {
            bail!("--name needs a file with one tensor, {} has {n}", self.label);
        };
        tensor.rename(name.to_owned())
    }

    /// Refuses a row length that no tensor can have.
    fn check_row_elems(&self, row_elems: NonZeroU64) -> Result<()> {
        let mut flat = self.tensors().filter(|tensor| tensor.shape.len() < 2).peekable();
        ensure!(
            flat.peek().is_some(),
            "--row-elems {row_elems} applies to no tensor: all have two or more dimensions"
        );
        for tensor in flat {
            let elems = tensor.n_elems();
            ensure!(
                elems.is_multiple_of(row_elems.get()),
                "tensor {}: its {elems} elements are no multiple of --row-elems {row_elems}",
                escape::quoted(&tensor.name)
            );
        }
        Ok(())
    }
}

impl Part {
    fn read(source: SourceFile, args: &Args) -> Result<Self> {
        let path = source.path().to_owned();
        let (tensors, metadata) = files::read(&source, args.read_as, || {
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let name = args.name.as_deref().or(stem);
            let name =
                name.with_context(|| format!("the file name {} is not UTF-8: pass --name", path.display()))?;
            Ok(name.to_owned())
        })?;
        Ok(Self { source, tensors, metadata })
    }
}

/// The shards that an index names, with the tensors that it assigns to each.
fn shards(index: &SourceFile, args: &Args) -> Result<Vec<Part>> {
    let (shards, folder) = (index::read(index)?, index.path().parent().unwrap_or(Path::new("")));
    check_present(index, &shards, folder)?;
    let (mut parts, mut absent, mut unassigned) = (Vec::with_capacity(shards.len()), Vec::new(), 0);
    for (file, names) in &shards {
        let mut part = Part::read(SourceFile::open(&folder.join(file))?, args)?;
        let mut names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let held = part.tensors.len();
        part.tensors.retain(|tensor| names.remove(tensor.name.as_str()));
        unassigned += held - part.tensors.len();
        let quoted = |name| format!("{} in {}", escape::quoted(name), escape::quoted(file));
        absent.extend(names.into_iter().map(quoted));
        parts.push(part);
    }
    ensure!(
        absent.is_empty(),
        "{} not where {} says: {}: fetch index and shards of the same checkpoint",
        names_are(absent.len()),
        index.path().display(),
        listed(&absent)
    );
    if unassigned > 0 {
        let (tensors, index) = (n_tensors(unassigned), index.path().display());
        output::warning(&format!("{index} does not name {tensors} of its shards, which are left out"));
    }
    Ok(parts)
}

/// Refuses an index some of whose shards are missing, all of which are named.
fn check_present(index: &SourceFile, shards: &Shards, folder: &Path) -> Result<()> {
    let is_missing = |file: &&String| {
        let found = fs::metadata(folder.join(file));
        found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    let missing: Vec<String> = shards.keys().filter(is_missing).map(|file| escape::quoted(file)).collect();
    let shown = if folder == Path::new("") { PathBuf::from(".") } else { folder.to_owned() };
    ensure!(
        missing.is_empty(),
        "{} of the {} shards of {} are not in {}: {}",
        missing.len(),
        shards.len(),
        index.path().display(),
        shown.display(),
        listed(&missing)
    );
    Ok(())
}

fn names_are(n: usize) -> String {
    format!("{} {}", n_tensors(n), if n == 1 { "is" } else { "are" })
}

/// The first of them, and how many more there are.
fn listed(names: &[String]) -> String {
    let shown = names.len().min(NAMED);
    let more = names.len() - shown;
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", names[..shown].join(", "))
}
