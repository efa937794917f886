//! Update rows of a tensor, see them through an old handle, and refit its metadata to the new values.
//!
//! Uses the machine's daemon if there is one, else one of its own: `cargo run -p tierpack-client --example 03_update`.

use tierpack_client::{Client, Dtype, Error, PutOptions, RefitMode};
use tierpack_daemon::{Config, Embedded};

#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let mut own_daemon = None;
    let client = match Client::connect() {
        Err(Error::NoDaemon { .. }) => {
            let config = Config::embedded(folder.path().join("control.sock"), 64 << 20)?;
            let daemon = own_daemon.insert(Embedded::start(&config)?);
            Client::builder().socket(daemon.socket()).connect()?
        }
        connected => connected?,
    };
    let client = client.namespace("example")?;

    // An embedding table of 1000 rows of 64 floats, all zero.
    let options = PutOptions::new().overwrite(true);
    client.put_with("embedding", Dtype::F32, &[1000, 64], &mut std::io::repeat(0), &options)?;
    let embedding = client.open("embedding")?;

    // Row 7 becomes all 7, row 999 all 999. When the call returns, every later read of every process sees it.
    let rows = [7_u16, 999];
    let values: Vec<u8> = rows.iter().flat_map(|&row| f32::from(row).to_le_bytes().repeat(64)).collect();
    let revision = embedding.update(&rows, &values)?;
    let gathered = embedding.gather(&[999, 7, 0])?;
    let firsts: Vec<f32> = gathered.as_slice::<f32>()?.iter().step_by(64).copied().collect();
    println!("revision {revision}: rows 999, 7 and 0 begin with {firsts:?}");

    // Who polls finds out by a word of shared memory whether anything has changed.
    println!("no update since: {}", embedding.revision()? == revision);

    // New values may call for new metadata; the daemon looks for itself now and then, or when it is asked.
    let drift = client
        .refit("embedding", RefitMode::IfBetter, |left, all| println!("{left} of {all} blocks left"))?;
    println!("stored in {} bytes, a refit would make it {}", drift.stored_bytes, drift.predicted_bytes);

    client.remove("embedding")?;
    Ok(())
}
