//! Put a tensor, get it back, gather rows, look at it in place.
//!
//! Uses the machine's daemon if there is one, else one of its own: `cargo run -p tierpack-client --example 01_put_get`.

use tierpack_client::{Client, Dtype, Error, PutOptions};
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

    // A table of 1000 rows of 64 floats; row i is full of i.
    let bytes: Vec<u8> = (0..1000_u16).flat_map(|row| f32::from(row).to_le_bytes().repeat(64)).collect();
    let options = PutOptions::new().overwrite(true);
    let entry = client.put_with("features", Dtype::F32, &[1000, 64], &mut &bytes[..], &options)?;
    println!("{} of {} is stored in {} bytes", entry.name, entry.dtype, entry.stored_bytes);

    // The handle asks the daemon once; every read after that is shared memory only.
    let features = client.open("features")?;
    let tensor = features.get()?;
    println!("got {:?}: {} bytes", tensor.shape(), tensor.as_bytes().len());

    let rows = features.gather(&[999, 0, 7])?;
    let firsts: Vec<f32> = rows.as_slice::<f32>()?.iter().step_by(64).copied().collect();
    println!("gathered {:?}, which begin with {firsts:?}", rows.shape());

    let mut buffer = vec![0; 2 * 64 * 4];
    features.gather_into(&[1_u32, 2], &mut buffer)?;

    let view = features.view()?;
    println!("a view of {} blocks, the first has {} bytes", view.n_blocks(), view.block(0)?.len());

    match features.gather(&[1000]) {
        Err(error @ Error::RowOutOfRange { .. }) => println!("{error}"),
        other => println!("unexpected: {other:?}"),
    }
    client.remove("features")?;
    Ok(())
}
