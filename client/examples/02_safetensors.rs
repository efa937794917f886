//! Put every tensor of a safetensors file, and compare what comes back.
//!
//! `cargo run -p tierpack-client --example 02_safetensors [FILE]`; without a file, a small one is made up.
//! The daemon is one of the example's own.

use safetensors::tensor::TensorView;
use safetensors::{Dtype as FileDtype, SafeTensors, serialize};
use tierpack_client::{Client, Dtype};
use tierpack_daemon::{Config, Embedded};

#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = match std::env::args_os().nth(1) {
        Some(path) => std::fs::read(path)?,
        None => small_file()?,
    };
    let folder = tempfile::tempdir()?;
    let pool_bytes = 2 * file.len() as u64 + (64 << 20);
    let daemon = Embedded::start(&Config::embedded(folder.path().join("control.sock"), pool_bytes)?)?;
    let client = Client::builder().socket(daemon.socket()).connect()?;

    let tensors = SafeTensors::deserialize(&file)?;
    for (name, tensor) in tensors.iter() {
        // Both name their dtypes alike.
        let dtype: Dtype = tensor.dtype().to_string().parse()?;
        let shape: Vec<u64> = tensor.shape().iter().map(|&len| len as u64).collect();
        client.put(name, dtype, &shape, tensor.data())?;
    }
    for (name, tensor) in tensors.iter() {
        let got = client.get(name)?;
        let verdict = if got.as_bytes() == tensor.data() { "the same" } else { "DIFFERENT" };
        println!("{name:?} {} {:?}: {verdict}", got.dtype(), got.shape());
    }
    Ok(())
}

fn small_file() -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let bytes: Vec<u8> = (0..240).collect();
    let weight = TensorView::new(FileDtype::BF16, vec![10, 12], &bytes)?;
    let scale = TensorView::new(FileDtype::F32, vec![], &bytes[..4])?;
    Ok(serialize([("layer.0.weight", weight), ("layer.0.scale", scale)], None)?)
}
