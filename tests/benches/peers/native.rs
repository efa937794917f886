//! Peers that are crates.

use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use pco::ChunkConfig;
use pco::data_types::Number;
use pco::standalone::{simple_compress_into, simple_decompress_into};
use tierpack_cli::measure::throughput;

use super::rows::Row;
use super::{PIECE_BYTES, PLACES, Tensor, memcpy_gib_per_s};

/// A compressor, with what it keeps between calls.
trait Peer: Sized + Send {
    /// What it takes and gives back: bytes or numbers.
    type Element: Copy + Default + Send + Sync;

    fn new() -> Result<Self>;
    fn elements(bytes: &[u8]) -> Vec<Self::Element>;
    fn bytes(elements: &[Self::Element]) -> Vec<u8>;
    /// Replaces the content of `out`.
    fn encode(&mut self, piece: &[Self::Element], out: &mut Vec<u8>) -> Result<()>;
    /// Fills `out`, which is as long as the piece.
    fn decode(&mut self, encoded: &[u8], out: &mut [Self::Element]) -> Result<()>;
}

/// Rows of every peer that takes the tensor's dtype.
pub(crate) fn measure(tensor: &Tensor) -> Result<Vec<Row>> {
    let mut rows = match tensor.dtype.as_str() {
        // 16-bit floats as integers: pco 1.1 saves as much of them so, and bfloat16 is not among its types.
        "BF16" | "F16" | "U16" | "I16" => rows_of::<Pco<u16>>("pco", tensor)?,
        "F32" => rows_of::<Pco<f32>>("pco", tensor)?,
        "U32" | "I32" => rows_of::<Pco<u32>>("pco", tensor)?,
        "F64" => rows_of::<Pco<f64>>("pco", tensor)?,
        "U64" | "I64" => rows_of::<Pco<u64>>("pco", tensor)?,
        _ => rows_of::<Pco<u8>>("pco", tensor)?,
    };
    rows.extend(rows_of::<Zstd>("zstd:1", tensor)?);
    rows.extend(rows_of::<Lz4>("lz4", tensor)?);
    Ok(rows)
}

fn rows_of<P: Peer>(codec: &str, tensor: &Tensor) -> Result<Vec<Row>> {
    writeln!(std::io::stderr(), "{codec}: {} ...", tensor.name)?;
    let mut stored_bytes = 0;
    let (mut peer, mut encoded) = (P::new()?, Vec::new());
    for piece in tensor.pieces(PIECE_BYTES, tensor.bytes.len()) {
        let elements = P::elements(piece);
        peer.encode(&elements, &mut encoded)?;
        stored_bytes += encoded.len() as u64;
        let mut decoded = vec![P::Element::default(); elements.len()];
        peer.decode(&encoded, &mut decoded)?;
        ensure!(P::bytes(&decoded) == piece, "{codec} changes {}", tensor.name);
    }
    let mut rows = Vec::new();
    for (place, least_bytes) in PLACES {
        for threads in [1, 2] {
            let works = (0..threads).map(|_| Work::<P>::new(tensor, least_bytes));
            let mut works = works.collect::<Result<Vec<_>>>()?;
            let (bytes, n_steps) = (works[0].bytes, works[0].pieces.len());
            let mut row = tensor.row(codec, place, threads, stored_bytes);
            row.memcpy_gib_per_s = memcpy_gib_per_s(&tensor.pieces(PIECE_BYTES, least_bytes), threads);
            let decodes = works.iter_mut().map(|work| move |step| work.decode(step));
            row.decode_gib_per_s = throughput(bytes, n_steps, decodes.collect());
            let encodes = works.iter_mut().map(|work| move |step| work.encode(step));
            row.encode_gib_per_s = throughput(bytes, n_steps, encodes.collect());
            rows.push(row);
        }
    }
    Ok(rows)
}

/// A piece: raw, encoded, and where it is decoded to.
struct Piece<T> {
    raw: Vec<T>,
    encoded: Vec<u8>,
    out: Vec<T>,
}

/// What one thread works on.
struct Work<P: Peer> {
    peer: P,
    bytes: u64,
    pieces: Vec<Piece<P::Element>>,
    encoded: Vec<u8>,
}

impl<P: Peer> Work<P> {
    fn new(tensor: &Tensor, least_bytes: usize) -> Result<Self> {
        let (mut peer, mut bytes, mut pieces) = (P::new()?, 0, Vec::new());
        let mut encoded: Vec<Vec<u8>> = Vec::new();
        let per_tensor = tensor.pieces(PIECE_BYTES, tensor.bytes.len()).len();
        for (n, piece) in tensor.pieces(PIECE_BYTES, least_bytes).into_iter().enumerate() {
            let elements = P::elements(piece);
            if n < per_tensor {
                let mut first = Vec::new();
                peer.encode(&elements, &mut first)?;
                encoded.push(first);
            }
            bytes += piece.len() as u64;
            let out = vec![P::Element::default(); elements.len()];
            pieces.push(Piece { raw: elements, encoded: encoded[n % per_tensor].clone(), out });
        }
        Ok(Self { peer, bytes, pieces, encoded: Vec::new() })
    }

    fn decode(&mut self, step: usize) {
        let Piece { encoded, out, .. } = &mut self.pieces[step];
        self.peer.decode(std::hint::black_box(encoded), out).expect("decoded before");
        std::hint::black_box(out);
    }

    fn encode(&mut self, step: usize) {
        let elements = std::hint::black_box(&self.pieces[step].raw);
        self.peer.encode(elements, &mut self.encoded).expect("encoded before");
        std::hint::black_box(&mut self.encoded);
    }
}

struct Pco<T>(ChunkConfig, std::marker::PhantomData<T>);

/// A number of a file.
trait LittleEndian: Number + Copy + Default + Send + Sync {
    fn read(bytes: &[u8]) -> Vec<Self>;
    fn write(self, bytes: &mut Vec<u8>);
}

/// Expansion for one type: `impl LittleEndian for u16 { fn read(..) -> Vec<u16> { .. } fn write(self, ..) { .. } }`
macro_rules! little_endian {
    ($($number:ty)*) => {$(
        impl LittleEndian for $number {
            fn read(bytes: &[u8]) -> Vec<Self> {
                bytes.as_chunks().0.iter().map(|word| Self::from_le_bytes(*word)).collect()
            }

            fn write(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

little_endian! { u8 u16 u32 u64 f32 f64 }

impl<T: LittleEndian> Peer for Pco<T> {
    type Element = T;

    fn new() -> Result<Self> {
        Ok(Self(ChunkConfig::default().with_compression_level(8), std::marker::PhantomData))
    }

    fn elements(bytes: &[u8]) -> Vec<T> {
        T::read(bytes)
    }

    fn bytes(elements: &[T]) -> Vec<u8> {
        let mut bytes = Vec::new();
        elements.iter().for_each(|element| element.write(&mut bytes));
        bytes
    }

    fn encode(&mut self, piece: &[T], out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        simple_compress_into(piece, &self.0, out).context("pco encodes")?;
        Ok(())
    }

    fn decode(&mut self, encoded: &[u8], out: &mut [T]) -> Result<()> {
        simple_decompress_into(encoded, out).context("pco decodes")?;
        Ok(())
    }
}

struct Zstd(zstd::bulk::Compressor<'static>, zstd::bulk::Decompressor<'static>);

impl Peer for Zstd {
    type Element = u8;

    fn new() -> Result<Self> {
        Ok(Self(zstd::bulk::Compressor::new(1)?, zstd::bulk::Decompressor::new()?))
    }

    fn elements(bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }

    fn bytes(elements: &[u8]) -> Vec<u8> {
        elements.to_vec()
    }

    fn encode(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        out.reserve(zstd::zstd_safe::compress_bound(piece.len()));
        self.0.compress_to_buffer(piece, out).context("zstd encodes")?;
        Ok(())
    }

    fn decode(&mut self, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        self.1.decompress_to_buffer(encoded, out).context("zstd decodes")?;
        Ok(())
    }
}

struct Lz4;

impl Peer for Lz4 {
    type Element = u8;

    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn elements(bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }

    fn bytes(elements: &[u8]) -> Vec<u8> {
        elements.to_vec()
    }

    fn encode(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<()> {
        out.resize(lz4_flex::block::get_maximum_output_size(piece.len()), 0);
        let len = lz4_flex::block::compress_into(piece, out).context("lz4 encodes")?;
        out.truncate(len);
        Ok(())
    }

    fn decode(&mut self, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        lz4_flex::block::decompress_into(encoded, out).context("lz4 decodes")?;
        Ok(())
    }
}
