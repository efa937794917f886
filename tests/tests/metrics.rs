//! The metrics: what docs/operations.md says of them is what the socket returns, and they count what happened.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tierpack_client::{Client, Dtype, stats_socket};
use tierpack_tests::http::{ask, metrics, sample};
use tierpack_tests::{Daemon, eventually};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const OPERATIONS: &str = include_str!("../../docs/operations.md");

fn start() -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", "32MiB", "--lock", "off"])
}

fn path(daemon: &Daemon) -> PathBuf {
    stats_socket::path_beside(&daemon.socket())
}

/// Puts a tensor, gets it once and gathers three rows.
fn put_and_read(client: &Client) {
    client.put("a", Dtype::U32, &[4, 4], &[7; 64]).expect("a put");
    let handle = client.open("a").expect("it is there");
    handle.get().expect("a get");
    handle.gather(&[1_u8, 2, 3]).expect("a gather");
}

/// The lines of the table in docs/operations.md that these metrics should have.
fn table(metrics: &str) -> Vec<String> {
    let mut help = "";
    // Name, type, text, and the labels of each sample.
    let mut rows = Vec::<(&str, &str, &str, Vec<&str>)>::new();
    for line in metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').expect("a name and a text").1;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            rows.push((name, kind, help, Vec::new()));
        } else {
            let (sample, value) = line.rsplit_once(' ').expect("a sample and its value");
            let (name, .., labels) = rows.last_mut().expect("a type before the sample");
            let found = sample.strip_prefix(*name).expect("samples stand under their name");
            labels.extend(found.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')));
            value.parse::<f64>().expect("a number");
        }
    }
    rows.iter()
        .map(|(name, kind, help, samples)| {
            let labels = labels(samples);
            format!("| `{name}` | {kind} |{}{labels} | {help} |", if labels.is_empty() { "" } else { " " })
        })
        .collect()
}

/// `state`: size, used
fn labels(samples: &[&str]) -> String {
    let mut values: BTreeMap<usize, (&str, Vec<&str>)> = BTreeMap::new();
    for sample in samples {
        for (idx, pair) in sample.split(',').enumerate() {
            let (label, value) = pair.split_once('=').expect("a label and its value");
            values.entry(idx).or_insert((label, Vec::new())).1.push(value.trim_matches('"'));
        }
    }
    let cells = values.values().map(|(label, values)| match *label {
        // Another one in each release.
        "version" => "`version`".to_owned(),
        label => format!("`{label}`: {}", values.join(", ")),
    });
    cells.collect::<Vec<_>>().join("; ")
}

#[test]
fn the_table_of_metrics_is_what_the_socket_returns() {
    let daemon = start();
    let expected = table(&metrics(&path(&daemon)));
    let stated: Vec<&str> = OPERATIONS.lines().filter(|line| line.starts_with("| `tierpack_")).collect();
    assert!(
        stated == expected,
        "the table of metrics in docs/operations.md should be:\n{}",
        expected.join("\n")
    );
    // Names end as their type asks for, and no name a client chose can be a label.
    for row in &expected {
        assert_eq!(row.contains("_total` |"), row.contains("| counter |"), "{row}");
    }
}

#[test]
fn a_table_shows_names_types_labels_and_texts() {
    let text = "# HELP a_total what\n# TYPE a_total counter\na_total{x=\"1\",y=\"p\"} 5\na_total{x=\"2\",y=\"q\"} 6\n\
                # HELP b b's text\n# TYPE b gauge\nb 1.5\n";
    let rows = ["| `a_total` | counter | `x`: 1, 2; `y`: p, q | what |", "| `b` | gauge | | b's text |"];
    assert_eq!(table(text), rows);
}

#[test]
fn metrics_and_both_documents_say_the_same() {
    let daemon = start();
    let client = daemon.client();
    put_and_read(&client);
    client.get("nothing").unwrap_err();
    let (text, stats) = (metrics(&path(&daemon)), daemon.stats());
    for (name, value) in [
        ("tierpack_pool_bytes{state=\"size\"}", 32 << 20),
        ("tierpack_pool_bytes{state=\"raw\"}", 64),
        ("tierpack_pool_bytes{state=\"stored\"}", stats.pool.stored_bytes),
        ("tierpack_pool_bytes{state=\"used\"}", stats.pool.used_bytes),
        ("tierpack_tensors", 1),
        ("tierpack_namespaces", 1),
        ("tierpack_sessions", 1),
        ("tierpack_leases", 0),
        ("tierpack_transfers", 0),
        ("tierpack_requests_total{result=\"refused\"}", stats.requests.refused),
        ("tierpack_requests_total{result=\"done\"}", stats.requests.done),
        ("tierpack_get_total{tier=\"pool\",result=\"hit\"}", 1),
        ("tierpack_gather_total", 1),
        ("tierpack_rows_total", 3),
        ("tierpack_read_bytes_total", 64 + 3 * 16),
    ] {
        assert_eq!(sample(&text, name), value, "{name} in {text}");
    }
    assert!(stats.requests.refused > 0, "{stats:?}");
    assert_eq!(ask(&path(&daemon), b"GET /stats HTTP/1.0\r\n\r\n").body.trim_end().as_bytes()[0], b'{');
}

#[test]
fn counters_outlive_the_sessions_that_counted() {
    let daemon = start();
    for n in 1..=3 {
        let client = daemon.client();
        put_and_read(&client);
        drop(client);
        let gone = || (sample(&metrics(&path(&daemon)), "tierpack_sessions") == 0).then_some(());
        eventually("the end of the session", gone);
        let text = metrics(&path(&daemon));
        assert_eq!(sample(&text, "tierpack_get_total{tier=\"pool\",result=\"hit\"}"), n);
        assert_eq!(sample(&text, "tierpack_rows_total"), 3 * n);
        assert_eq!(daemon.stats().reads.bytes, (64 + 3 * 16) * n);
        daemon.run_ok(&["rm", "a"]);
    }
}
