//! Layering, checks, and the round trip through `--print-config`.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;

use clap::{CommandFactory, Parser};
use tempfile::TempDir;

use super::*;
use crate::size::GIB;

/// The command that takes the flags.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn args(flags: &[&str]) -> Args {
    Cli::try_parse_from(["tierpackd"].iter().chain(flags)).unwrap().args
}

/// A system of 8 GiB of free memory, with a configuration file and variables.
struct System {
    directory: TempDir,
    variables: HashMap<&'static str, OsString>,
}

impl System {
    fn new(file: &str) -> System {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("tierpack.toml");
        fs::write(&config, file).unwrap();
        fs::create_dir(directory.path().join("proc")).unwrap();
        let meminfo = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n";
        fs::write(directory.path().join("proc/meminfo"), meminfo).unwrap();
        let variables = HashMap::from([
            ("TIERPACK_SOCKET", OsString::from("/env/control.sock")),
            ("TIERPACK_CONFIG", OsString::from(config)),
        ]);
        System { directory, variables }
    }

    fn set(mut self, name: &'static str, value: &str) -> System {
        self.variables.insert(name, OsString::from(value));
        self
    }

    fn load(&self, flags: &[&str], socket: Option<&Path>) -> Result<Config> {
        let layers = Layers::collect(&args(flags), socket, &|name| self.variables.get(name).cloned())?;
        Config::from_layers(&layers, self.directory.path())
    }

    fn error(&self, flags: &[&str]) -> String {
        self.load(flags, None).unwrap_err().to_string()
    }
}

#[test]
fn defaults_are_as_documented() {
    let config = System::new("").load(&[], None).unwrap();
    assert_eq!(config.socket(), Path::new("/env/control.sock"));
    assert_eq!(config.stats_socket(), Path::new("/env/stats.sock"));
    assert_eq!(config.pool_bytes(), 4 * GIB);
    assert_eq!(config.segment_bytes(), 64 * MIB);
    assert_eq!(config.lock(), LockMode::Try);
    assert!((1..=4).contains(&config.workers()));
    assert_eq!(config.max_sessions(), 1024);
    assert_eq!(config.max_held_percent(), 5);
    assert_eq!(config.deadline(), Duration::from_secs(30));
    assert_eq!(config.log(), "info");
}

#[test]
fn each_layer_covers_the_one_below() {
    let file = "socket = \"/file/control.sock\"\npool_size = \"1GiB\"\nlock = \"off\"\nworkers = 1\nlog = \"warn\"\n";
    let system = System::new(file);
    let config = system.load(&[], None).unwrap();
    assert_eq!((config.pool_bytes(), config.lock(), config.workers()), (GIB, LockMode::Off, 1));
    assert_eq!(config.socket(), Path::new("/env/control.sock"));

    let system = system.set("TIERPACK_POOL_SIZE", "2GiB").set("TIERPACK_LOCK", "require");
    let system = system.set("TIERPACK_WORKERS", "2").set("TIERPACK_LOG", "");
    let config = system.load(&[], None).unwrap();
    assert_eq!((config.pool_bytes(), config.lock(), config.workers()), (2 * GIB, LockMode::Require, 2));
    assert_eq!(config.log(), "warn");

    let flags = ["--pool-size", "3GiB", "--lock", "try", "--workers", "3", "--log", "debug"];
    let config = system.load(&flags, Some(Path::new("/flag/x.sock"))).unwrap();
    assert_eq!((config.pool_bytes(), config.lock(), config.workers()), (3 * GIB, LockMode::Try, 3));
    assert_eq!(config.log(), "debug");
    assert_eq!(config.socket(), Path::new("/flag/x.sock"));
    assert_eq!(config.stats_socket(), Path::new("/flag/x.sock.stats"));
}

#[test]
fn flag_names_the_file() {
    let system = System::new("pool_size = \"1GiB\"");
    let other = system.directory.path().join("other.toml");
    fs::write(&other, "pool_size = 5242880\nmax_held_percent = 7\ndeadline_ms = 250\n").unwrap();
    let config = system.load(&["--config", other.to_str().unwrap()], None).unwrap();
    assert_eq!(config.pool_bytes(), 5 * MIB);
    assert_eq!(config.max_held_percent(), 7);
    assert_eq!(config.deadline(), Duration::from_millis(250));
}

#[test]
fn printed_configuration_loads_to_the_same() {
    let mut system = System::new("");
    system.variables.remove("TIERPACK_SOCKET");
    let cases: [&[&str]; 3] = [
        &[],
        &["--pool-size", "1073741825", "--lock", "off", "--log", "info,tierpack_shm=trace"],
        &["--pool-size", "64GiB", "--segment-size", "2MiB", "--max-sessions", "256", "--workers", "9"],
    ];
    for flags in cases {
        let config = system.load(flags, None).unwrap();
        let printed = system.directory.path().join("printed.toml");
        fs::write(&printed, config.to_toml().unwrap()).unwrap();
        let again = system.load(&["--config", printed.to_str().unwrap()], None).unwrap();
        assert_eq!(again, config);
        assert_eq!(again.to_toml().unwrap(), config.to_toml().unwrap());
    }
}

#[test]
fn socket_path_that_toml_cannot_hold_is_an_error() {
    let raw = Path::new(OsStr::from_bytes(b"/tmp/\xff.sock"));
    let config = System::new("").load(&[], Some(raw)).unwrap();
    assert_eq!(config.socket(), raw);
    assert!(matches!(config.to_toml(), Err(Error::ConfigShow { .. })));
}

#[test]
fn file_errors_name_file_line_and_key() {
    let cases = [
        ("pool_size = 1048576\npool_sise = 5\n", "line 2", "pool_sise"),
        ("\n\nworkers = \"many\"\n", "line 3", "string"),
        ("lock = \"maybe\"", "line 1", "maybe"),
        ("pool_size = -1", "line 1", "-1"),
        ("pool_size = \"1G\"", "line 1", "1G"),
        ("workers = [", "line 1", "array"),
        ("workers = 1\nworkers = 2", "line 2", "duplicate"),
    ];
    for (file, line, part) in cases {
        let error = System::new(file).error(&[]);
        assert!(error.contains("tierpack.toml") && error.contains(line) && error.contains(part), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn file_that_cannot_be_read_is_an_error() {
    let system = System::new("");
    let path = system.directory.path().join("tierpack.toml");
    fs::write(&path, b"# \xff\n").unwrap();
    assert!(system.error(&[]).contains("not UTF-8"));
    fs::File::create(&path).unwrap().set_len(1 << 33).unwrap();
    assert!(matches!(system.load(&[], None), Err(Error::ConfigRead { .. })));
    fs::remove_file(&path).unwrap();
    let error = system.error(&[]);
    assert!(error.contains("tierpack.toml"), "{error}");
    assert!(matches!(system.load(&["--config", "/"], None), Err(Error::ConfigRead { .. })));
}

#[test]
fn values_out_of_range_name_their_origin() {
    let flags: [(&[&str], &str); 11] = [
        (&["--pool-size", "0"], "--pool-size: 0 bytes is not between 2 MiB and 2 TiB"),
        (&["--pool-size", "3TiB"], "--pool-size: 3 TiB"),
        (&["--segment-size", "3MiB"], "--segment-size: 3 MiB is not a power of two"),
        (&["--segment-size", "128MiB"], "--segment-size: 128 MiB"),
        (&["--segment-size", "1MiB"], "--segment-size: 1 MiB is not a power of two between 2 MiB and 64 MiB"),
        (
            &["--pool-size", "65GiB", "--segment-size", "2MiB"],
            "--segment-size: a namespace has at most 32768 segments, and so many of 2 MiB are 64 GiB, less than the pool \
             of 65 GiB: give at least 4 MiB",
        ),
        (
            &["--pool-size", "2MiB", "--segment-size", "4MiB"],
            "--segment-size: 4 MiB is more than the whole pool",
        ),
        (&["--workers", "0"], "--workers: 0 is not between 1 and 256"),
        (&["--max-sessions", "255"], "--max-sessions: 255 is not between 256 and 65536"),
        (&["--max-sessions", "18446744073709551615"], "--max-sessions: 18446744073709551615"),
        (&["--log", "a=b=c"], "--log: log filter \"a=b=c\""),
    ];
    for (flags, text) in flags {
        let error = System::new("").error(flags);
        assert!(error.contains(text), "{error}");
    }
    let variables = [
        ("TIERPACK_POOL_SIZE", "12", "12 bytes"),
        ("TIERPACK_POOL_SIZE", "lots", "lots"),
        ("TIERPACK_WORKERS", "-3", "-3"),
        ("TIERPACK_LOCK", "Maybe", "Maybe"),
        ("TIERPACK_MAX_HELD_PERCENT", "101", "101"),
        ("TIERPACK_DEADLINE_MS", "0", "0 is not between"),
    ];
    for (name, value, text) in variables {
        let error = System::new("").set(name, value).error(&[]);
        assert!(error.starts_with(&format!("{name}: ")) && error.contains(text), "{error}");
    }
    let error = System::new("max_held_percent = 0").error(&[]);
    assert!(error.contains("max_held_percent in ") && error.contains("tierpack.toml"), "{error}");
}

#[test]
fn variable_that_is_not_utf8_is_an_error() {
    let mut system = System::new("");
    system.variables.insert("TIERPACK_WORKERS", OsStr::from_bytes(b"\xff").to_owned());
    assert!(system.error(&[]).contains("TIERPACK_WORKERS"));
}

#[test]
fn socket_path_is_refused_first_and_by_the_name_of_its_option() {
    let long = format!("/{}", "x".repeat(107));
    let system = System::new("").set("TIERPACK_SOCKET", &long).set("TIERPACK_POOL_SIZE", "0");
    let error = system.error(&[]);
    assert!(error.contains("TIERPACK_SOCKET") && error.contains("108") && error.contains("107"), "{error}");
    let error = system.load(&[], Some(Path::new(&long))).unwrap_err().to_string();
    assert!(error.contains("from --socket"), "{error}");
    let mut system = System::new(&format!("socket = {long:?}"));
    system.variables.remove("TIERPACK_SOCKET");
    assert!(system.error(&[]).contains("socket in "), "{}", system.error(&[]));
}

#[test]
fn bad_flags_are_named_by_the_parser() {
    for flags in [["--pool-size", "1G"], ["--lock", "maybe"], ["--workers", "x"]] {
        let error = Cli::try_parse_from(["tierpackd"].iter().chain(&flags)).unwrap_err().to_string();
        assert!(error.contains(flags[0]) && error.contains(flags[1]), "{error}");
    }
    assert!(args(&["--print-config"]).print_config);
    assert_eq!(Cli::command().get_about().unwrap().to_string(), "The command that takes the flags");
}

#[test]
fn a_small_pool_has_small_segments() {
    for (pool, segment) in [("2MiB", 2 * MIB), ("3MiB", 2 * MIB), ("63MiB", 32 * MIB), ("65MiB", 64 * MIB)] {
        let config = System::new("").load(&["--pool-size", pool], None).unwrap();
        assert_eq!(config.segment_bytes(), segment, "{pool}");
    }
}

#[test]
fn embedded_configuration_is_checked_too() {
    let socket = PathBuf::from("/tmp/embedded.sock");
    let config = Config::embedded(socket.clone(), 8 * MIB).unwrap();
    assert_eq!((config.socket(), config.pool_bytes()), (socket.as_path(), 8 * MIB));
    let config = config.with_segment_bytes(2 * MIB).unwrap().with_lock(LockMode::Off);
    let config = config.with_workers(2).unwrap().with_deadline(Duration::from_millis(1500)).unwrap();
    assert_eq!((config.segment_bytes(), config.lock(), config.workers()), (2 * MIB, LockMode::Off, 2));
    assert_eq!(config.deadline(), Duration::from_millis(1500));
    assert!(config.clone().with_segment_bytes(16 * MIB).is_err());
    assert!(config.clone().with_deadline(Duration::MAX).is_err());
    assert!(config.with_workers(0).is_err());
    assert!(Config::embedded(socket, 5).is_err());
    assert!(Config::embedded(PathBuf::from("x".repeat(200)), MIB).is_err());
}

#[test]
fn the_least_segment_size_is_what_the_help_says() {
    let help = Cli::command().render_long_help().to_string();
    let range = format!("from {}MiB to {}MiB", MIN_SEGMENT_BYTES / MIB, MAX_SEGMENT_BYTES / MIB);
    assert!(help.contains(&range), "{help}");
    let config = System::new("").load(&["--pool-size", "64GiB", "--segment-size", "2MiB"], None).unwrap();
    assert_eq!(config.segment_bytes(), MIN_SEGMENT_BYTES);
}
