//! `.npy` files of `NumPy`: one plain array, little-endian, C order.
//!
//! `npyz` parses the header, but it takes memory for whatever length the file claims, nests as deep as the text does
//! and multiplies the shape unchecked.
//! So the header is cut out, and limited to what a plain array can need, before `npyz` sees it.

use anyhow::{Context as _, Result, bail, ensure};
use npyz::{DType, Endianness, NpyHeader, Order, TypeChar, TypeStr};
use tierpack_client::Dtype;

use super::{FileTensor, SourceFile, check_limits, raw_len};

/// Longest header that is read: a plain array needs 118 bytes, and `NumPy` itself reads 10,000 by default.
const MAX_HEADER_BYTES: u64 = 65_536;
/// Most opening brackets in a header: a plain array has two; parsing takes up to 4 times longer with each.
const MAX_BRACKETS: usize = 8;

/// Reads and checks the header of `source`; the tensor is called `name`.
///
/// `asked` says what elements are that `NumPy` knows as bytes alone, or as unsigned integers of that width.
///
/// # Errors
/// The file is not a `.npy` file, its array is not plain, or its data is not exactly what the header says.
pub(crate) fn read(source: &SourceFile, name: String, asked: Option<Dtype>) -> Result<FileTensor> {
    parse(source, name, asked).with_context(|| format!("read {} as npy", source.path().display()))
}

fn parse(source: &SourceFile, name: String, asked: Option<Dtype>) -> Result<FileTensor> {
    let (mut front, starts) = front(source)?;
    simplify(&mut front[starts.text..]);
    name_order(&mut front, starts.text)?;
    check_text(&front[starts.text..])?;
    let header = NpyHeader::from_reader(front.as_slice()).context("the header is malformed")?;
    let dtype = dtype(&header.dtype(), asked)?;
    let shape = header.shape().to_vec();
    check_limits(&name, shape.len())?;
    check_order(&header)?;
    let needed = raw_len(dtype, &shape).with_context(|| format!("the shape {shape:?} passes 64 bits"))?;
    let held = source.len() - starts.data;
    ensure!(
        needed == held,
        "the header describes {dtype} {shape:?}, which is {needed} bytes, but {held} bytes follow it"
    );
    Ok(FileTensor { name, dtype, shape, range: starts.data..starts.data + needed })
}

/// Where the header's text and the data start.
struct Starts {
    text: usize,
    data: u64,
}

/// Everything before the data, checked for its length.
fn front(source: &SourceFile) -> Result<(Vec<u8>, Starts)> {
    let len = source.len();
    ensure!(len >= 12, "the file has {len} bytes, which is too short for an npy header");
    let mut fixed = [0; 12];
    source.read_exact_at(&mut fixed, 0)?;
    ensure!(fixed.starts_with(b"\x93NUMPY"), "the file does not start with npy's magic bytes");
    let (text, text_len) = match (fixed[6], fixed[7]) {
        (1, 0) => (10, u64::from(u16::from_le_bytes([fixed[8], fixed[9]]))),
        (2 | 3, 0) => (12, u64::from(u32::from_le_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]))),
        (major, minor) => bail!("npy version {major}.{minor} is unknown: 1.0, 2.0 and 3.0 are read"),
    };
    ensure!(
        text_len <= MAX_HEADER_BYTES,
        "a header of {text_len} bytes is above the limit of {MAX_HEADER_BYTES}: is the array structured?"
    );
    let data = text + text_len;
    ensure!(data <= len, "a header of {text_len} bytes does not fit the file, which has {len} bytes");
    let mut front = vec![0; usize::try_from(data)?];
    source.read_exact_at(&mut front, 0)?;
    Ok((front, Starts { text: usize::try_from(text)?, data }))
}

/// Makes what `NumPy` reads and `npyz` does not into what both read: line breaks between values, and `3L` for 3, as
/// Python 2 wrote long integers.
fn simplify(text: &mut [u8]) {
    for at in 1..text.len().saturating_sub(1) {
        if text[at].is_ascii_whitespace() {
            text[at] = b' ';
        }
        if text[at] == b'L' && text[at - 1].is_ascii_digit() && b",) ".contains(&text[at + 1]) {
            text[at] = b' ';
        }
    }
}

/// Names the byte order where the dtype leaves it out or calls it native, as `NumPy` reads it: this machine's is little.
fn name_order(front: &mut Vec<u8>, text: usize) -> Result<()> {
    let key = b"descr";
    let Some(found) = front[text..].windows(key.len()).position(|window| window == key) else {
        return Ok(());
    };
    // The quote behind the key, a colon, and the quote before the value.
    let Some(rest) = front.get(text + found + key.len() + 1..) else { return Ok(()) };
    let skipped = rest.iter().take_while(|byte| b": ".contains(byte)).count();
    let at = front.len() - rest.len() + skipped + 1;
    let Some(value) = front.get(at..).filter(|_| b"'\"".contains(&front[at - 1])) else { return Ok(()) };
    let is_native = value.first() == Some(&b'=');
    let [kind, digit, after, ..] = value[usize::from(is_native)..] else { return Ok(()) };
    if !kind.is_ascii_alphabetic() || !digit.is_ascii_digit() {
        return Ok(());
    }
    let is_bytes = kind == b'V' || digit == b'1' && !after.is_ascii_digit();
    let order = if is_bytes { b'|' } else { b'<' };
    if is_native {
        front[at] = order;
        return Ok(());
    }
    front.insert(at, order);
    // The length of the text, of two bytes or four.
    if front[6] == 1 {
        let len =
            u16::try_from(front.len() - text).context("the header is as long as one of version 1 can be")?;
        front[8..10].copy_from_slice(&len.to_le_bytes());
    } else {
        let len = u32::try_from(front.len() - text)?;
        front[8..12].copy_from_slice(&len.to_le_bytes());
    }
    Ok(())
}

/// Refuses text that a plain array's header never has, and what would overflow or overwork `npyz`.
fn check_text(text: &[u8]) -> Result<()> {
    ensure!(text.is_ascii(), "the header is not ASCII: structured arrays are not supported");
    let brackets = text.iter().filter(|byte| b"([{".contains(byte)).count();
    ensure!(
        brackets <= MAX_BRACKETS,
        "the header has {brackets} opening brackets, a plain array has 2: structured arrays are not supported"
    );
    let mut product: u64 = 1;
    let mut rest = text;
    while let Some(start) = rest.iter().position(u8::is_ascii_digit) {
        let digits = rest[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, after) = rest[start..].split_at(digits);
        // 0x10, 1_000, 1e5 and 2+3 are numbers to a Python parser, but NumPy writes none of them.
        let ends = after.first().is_none_or(|byte| b",)}'\" [".contains(byte));
        let number = std::str::from_utf8(number)?;
        ensure!(ends, "the number {number} in the header does not end there: NumPy writes plain decimals");
        let value: u64 = number.parse().with_context(|| format!("the dimension {number} is too large"))?;
        product = product.checked_mul(value.max(1)).with_context(|| {
            format!("the shape passes 64 bits at dimension {value}: {product} elements come before it")
        })?;
        rest = after;
    }
    ensure!(
        !text.iter().any(|byte| b"+-".contains(byte)),
        "the header holds a sign: NumPy writes plain decimals"
    );
    Ok(())
}

/// The dtype of a plain array.
fn dtype(found: &DType, asked: Option<Dtype>) -> Result<Dtype> {
    let DType::Plain(plain) = found else {
        bail!("structured arrays are not supported: save each field as an array of its own");
    };
    if plain.endianness() == Endianness::Big {
        bail!("dtype {plain} is big-endian: save array.astype(array.dtype.newbyteorder('<')) instead");
    }
    let (own, bits) = (plain_dtype(plain), plain.size_field().saturating_mul(8));
    match (own, plain.type_char(), asked) {
        (Some(own), _, None) => Ok(own),
        (Some(own), _, Some(asked)) if own == asked => Ok(own),
        (_, TypeChar::RawData | TypeChar::Uint, Some(asked)) => {
            ensure!(
                u64::from(asked.bits()) == bits,
                "dtype {plain} has elements of {bits} bits, --dtype {asked} of {}: pass what the array was made of",
                asked.bits()
            );
            Ok(asked)
        }
        (Some(own), _, Some(asked)) => {
            bail!("the array has dtype {own}, not --dtype {asked}: leave --dtype out, or convert the array")
        }
        (None, TypeChar::RawData, None) => {
            let example = if bits == 8 { "f8_e4m3" } else { "bf16" };
            bail!(
                "dtype {plain} names bytes only, as ml_dtypes saves bf16 and fp8: say what they are by --dtype, such \
                 as --dtype {example}"
            )
        }
        (None, ..) => bail!(
            "dtype {plain} has no counterpart here: bool, integers, f2, f4, f8 and c8 are supported, and by --dtype \
             what ml_dtypes saves"
        ),
    }
}

fn plain_dtype(plain: &TypeStr) -> Option<Dtype> {
    Some(match (plain.type_char(), plain.size_field()) {
        (TypeChar::Bool, 1) => Dtype::Bool,
        (TypeChar::Int, 1) => Dtype::I8,
        (TypeChar::Int, 2) => Dtype::I16,
        (TypeChar::Int, 4) => Dtype::I32,
        (TypeChar::Int, 8) => Dtype::I64,
        (TypeChar::Uint, 1) => Dtype::U8,
        (TypeChar::Uint, 2) => Dtype::U16,
        (TypeChar::Uint, 4) => Dtype::U32,
        (TypeChar::Uint, 8) => Dtype::U64,
        (TypeChar::Float, 2) => Dtype::F16,
        (TypeChar::Float, 4) => Dtype::F32,
        (TypeChar::Float, 8) => Dtype::F64,
        (TypeChar::Complex, 8) => Dtype::C64,
        _ => return None,
    })
}

/// Refuses Fortran order where it differs from C order.
fn check_order(header: &NpyHeader) -> Result<()> {
    let shape = header.shape();
    let same = shape.contains(&0) || shape.iter().filter(|&&n| n > 1).count() < 2;
    ensure!(
        header.order() == Order::C || same,
        "the array {shape:?} is in Fortran order: save numpy.ascontiguousarray(array) instead"
    );
    Ok(())
}

#[cfg(test)]
mod tests;
