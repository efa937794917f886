//! The file that a command writes: complete under its name, or not there.
//!
//! ```text
//! the path            what is written                            at the end
//! no file             an unnamed file in the same folder         is linked to the path
//! a regular file      an unnamed file with its mode and owner    is linked next to it and renamed over it
//! pipe, device        itself, as it comes
//! standard output     the descriptor, wherever it leads
//! mount point, folder, socket, disk: refused before anything is done
//! ```
//!
//! An unnamed file is gone with its process, whatever ends that.
//! Where the file system has none, a file with a name of its own takes its place, and is removed when dropped.
//! A process that has the old file open or mapped keeps the old bytes; nobody sees half a file.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::unistd::linkat;
use tempfile::TempPath;

use crate::output;

/// A new file's mode, before the umask.
const NEW_MODE: u32 = 0o666;
/// Links that a path may lead through, as in the kernel.
const MOST_LINKS: usize = 40;

/// An output that is being written; dropped before [`Target::finish`], it leaves nothing, unless it is a stream.
#[derive(Debug)]
pub(super) struct Target {
    file: File,
    path: PathBuf,
    way: Way,
}

/// How the bytes come to their place.
#[derive(Debug)]
enum Way {
    /// A file without a name, for a path where there is none.
    New,
    /// A file without a name, for one that it replaces.
    Replace,
    /// As both, where the file system has no files without names.
    Named(TempPath),
    Stream,
    Stdout,
}

impl Target {
    /// Starts the output that will be at `path`.
    ///
    /// # Errors
    /// `path` leads to something that can be neither replaced nor written, or its folder cannot be written.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let found = match fs::metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Self::beside(through_links(path)?, None);
            }
            Err(error) => return Err(error).with_context(|| format!("examine {}", path.display())),
        };
        if let Some(stdout) = stdout_if(&found) {
            return Ok(Self { file: stdout, path: path.to_owned(), way: Way::Stdout });
        }
        let (kind, shown) = (found.file_type(), path.display());
        if kind.is_fifo() || kind.is_char_device() {
            let file = OpenOptions::new().write(true).open(path).with_context(|| format!("open {shown}"))?;
            return Ok(Self { file, path: path.to_owned(), way: Way::Stream });
        }
        ensure!(found.is_file(), "{shown} is {}: choose another output", what_it_is(&found));
        let path = fs::canonicalize(path).with_context(|| format!("follow {shown}"))?;
        ensure!(
            !is_mount_point(&path),
            "{shown} is a mount point, which no file can replace: choose another output, or pass -o /dev/stdout and \
             redirect that to it"
        );
        Self::beside(path, Some(&found))
    }

    /// A temporary file in the folder of `path`, with the mode and owner of the file that it will replace.
    fn beside(path: PathBuf, old: Option<&Metadata>) -> Result<Self> {
        ensure!(path.file_name().is_some(), "{} names no file", path.display());
        let folder = folder_of(&path);
        let mode = if old.is_some() { 0o600 } else { NEW_MODE };
        let (file, way) = match unnamed(folder, mode) {
            Ok(file) => (file, if old.is_some() { Way::Replace } else { Way::New }),
            Err(_) => {
                let (file, path) = tempfile::Builder::new()
                    .prefix(&prefix_for(&path))
                    .permissions(Permissions::from_mode(mode))
                    .tempfile_in(folder)
                    .with_context(|| format!("create a temporary file in {}", folder.display()))?
                    .into_parts();
                (file, Way::Named(path))
            }
        };
        if let Some(old) = old {
            keep(&file, old, &path)?;
        }
        Ok(Self { file, path, way })
    }

    /// Where the output will be.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is this process's standard output.
    pub(super) fn is_stdout(&self) -> bool {
        matches!(self.way, Way::Stdout)
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// They cannot be written, for example because the disk is full.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes);
        let is_limited =
            written.as_ref().is_err_and(|error| error.raw_os_error() == Some(Errno::EFBIG as i32));
        written.with_context(|| {
            let remedy = if is_limited { ": raise the limit on file sizes (ulimit -f)" } else { "" };
            format!("write {} bytes to {}{remedy}", bytes.len(), self.path.display())
        })
    }

    /// Names the complete file.
    ///
    /// # Errors
    /// It cannot be saved, linked or renamed.
    pub(super) fn finish(self) -> Result<()> {
        let Self { file, path, way } = self;
        if matches!(way, Way::Stream | Way::Stdout) {
            return Ok(());
        }
        file.sync_data().with_context(|| format!("save {}", path.display()))?;
        let temporary = match way {
            Way::Named(temporary) => temporary,
            Way::New if link(&file, &path).is_ok() => return Ok(()),
            // Where a file has come in between, it is replaced.
            _ => tempfile::Builder::new()
                .prefix(&prefix_for(&path))
                .make_in(folder_of(&path), |path| link(&file, path))
                .with_context(|| format!("name the finished file in {}", folder_of(&path).display()))?
                .into_temp_path(),
        };
        temporary
            .persist(&path)
            .map_err(|failed| failed.error)
            .with_context(|| format!("rename the finished file to {}", path.display()))
    }
}

/// Where `path`, which leads to no file, leads to.
fn through_links(path: &Path) -> Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            Ok(next) => path = folder_of(&path).join(next),
            Err(_) => return Ok(path),
        }
    }
    bail!("{} leads through more than {MOST_LINKS} links", path.display())
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Standard output, if it is what was found.
fn stdout_if(found: &Metadata) -> Option<File> {
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned().ok()?);
    let ours = stdout.metadata().ok()?;
    ((ours.dev(), ours.ino()) == (found.dev(), found.ino())).then_some(stdout)
}

fn what_it_is(found: &Metadata) -> &'static str {
    let kind = found.file_type();
    if kind.is_dir() {
        "a folder"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_block_device() {
        "a disk"
    } else {
        "not a regular file"
    }
}

/// Whether something is mounted on `path` itself; no, where the system does not say.
fn is_mount_point(path: &Path) -> bool {
    let mount = |path: &Path| {
        let file = OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(path).ok()?;
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
        text.lines().find_map(|line| line.strip_prefix("mnt_id:").map(|id| id.trim().to_owned()))
    };
    match (mount(path), mount(folder_of(path))) {
        (Some(of_file), Some(of_folder)) => of_file != of_folder,
        _ => false,
    }
}

/// A file without a name in `folder`, which can get one.
fn unnamed(folder: &Path, mode: u32) -> io::Result<File> {
    let file =
        OpenOptions::new().write(true).mode(mode).custom_flags(OFlag::O_TMPFILE.bits()).open(folder)?;
    fs::symlink_metadata(link_to(&file))?;
    Ok(file)
}

/// The path that leads to an open file.
fn link_to(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Links an unnamed file under a free name.
fn link(file: &File, path: &Path) -> io::Result<()> {
    Ok(linkat(AT_FDCWD, &link_to(file), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)?)
}

/// How temporary names start, so that they say whose they are.
fn prefix_for(path: &Path) -> OsString {
    let mut prefix = OsString::from(".");
    // A name takes 255 bytes at most, and the random part follows.
    if let Some(name) = path.file_name().filter(|name| name.len() <= 200) {
        prefix.push(name);
        prefix.push(".");
    }
    prefix
}

/// Sets the mode of `file` to that of the old one, and as much of its owner as the system allows.
fn keep(file: &File, old: &Metadata, path: &Path) -> Result<()> {
    let ours = file.metadata().with_context(|| format!("examine the file for {}", path.display()))?;
    let is_kept = (ours.uid(), ours.gid()) == (old.uid(), old.gid())
        || fchown(file, Some(old.uid()), Some(old.gid())).is_ok();
    if !is_kept {
        let group = if fchown(file, None, Some(old.gid())).is_ok() { "" } else { " and group" };
        output::warning(&format!(
            "{} does not keep its owner{group}: only root can give files to user {}",
            path.display(),
            old.uid()
        ));
    }
    // After the owner, whose change takes bits away.
    let mode = Permissions::from_mode(old.mode() & 0o7777);
    file.set_permissions(mode).with_context(|| format!("keep the mode of {}", path.display()))
}
