//! Reading plain arrays, and refusing every other header.

use npyz::WriterBuilder as _;

use super::*;

/// A version 1.0 file with this header text and `data_len` bytes of data.
fn file(text: &str, data_len: usize) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(vec![7; data_len]);
    bytes
}

fn header(descr: &str, order: &str, shape: &str) -> String {
    format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}          \n")
}

fn read_bytes(bytes: &[u8]) -> Result<FileTensor> {
    read_bytes_as(bytes, None)
}

fn read_bytes_as(bytes: &[u8], asked: Option<Dtype>) -> Result<FileTensor> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), bytes)?;
    read(&SourceFile::open(file.path())?, "x".to_owned(), asked)
}

fn refusal(bytes: &[u8]) -> String {
    let text = crate::escape::one_line(&format!("{:#}", read_bytes(bytes).unwrap_err()));
    assert!(text.len() < 1000, "{text}");
    text
}

#[test]
fn reads_plain_arrays_of_every_supported_dtype() {
    let cases = [
        ("|b1", Dtype::Bool),
        ("|i1", Dtype::I8),
        ("<i2", Dtype::I16),
        ("<i4", Dtype::I32),
        ("<i8", Dtype::I64),
        ("|u1", Dtype::U8),
        ("<u2", Dtype::U16),
        ("<u4", Dtype::U32),
        ("<u8", Dtype::U64),
        ("<f2", Dtype::F16),
        ("<f4", Dtype::F32),
        ("<f8", Dtype::F64),
        ("<c8", Dtype::C64),
    ];
    for (descr, dtype) in cases {
        for (shape, dims) in
            [("()", vec![]), ("(5,)", vec![5]), ("(2, 3)", vec![2, 3]), ("(0, 3)", vec![0, 3])]
        {
            let needed = usize::try_from(raw_len(dtype, &dims).unwrap()).unwrap();
            let text = header(&format!("'{descr}'"), "False", shape);
            let bytes = file(&text, needed);
            let tensor = read_bytes(&bytes).unwrap();
            assert_eq!((tensor.dtype, &tensor.shape), (dtype, &dims));
            assert_eq!(tensor.range, (10 + text.len()) as u64..bytes.len() as u64);
        }
    }
}

#[test]
fn reads_what_npyz_writes() {
    let mut bytes = Vec::new();
    let mut writer =
        npyz::WriteOptions::new().default_dtype().shape(&[2, 3]).writer(&mut bytes).begin_nd().unwrap();
    writer.extend((0..6).map(|n| n as f32)).unwrap();
    writer.finish().unwrap();
    let tensor = read_bytes(&bytes).unwrap();
    assert_eq!(
        (tensor.dtype, tensor.shape.as_slice(), tensor.raw_bytes()),
        (Dtype::F32, [2, 3].as_slice(), 24)
    );
    let data = &bytes[usize::try_from(tensor.range.start).unwrap()..];
    assert_eq!(data[20..], 5.0_f32.to_le_bytes());
}

#[test]
fn refuses_arrays_that_are_not_plain() {
    let cases = [
        (header("'>f4'", "False", "(1,)"), 4, "dtype >f4 is big-endian"),
        (header("'<f4'", "True", "(2, 3)"), 24, "[2, 3] is in Fortran order"),
        (header("'|O'", "False", "(1,)"), 8, "dtype |O has no counterpart"),
        (header("'<c16'", "False", "(1,)"), 16, "dtype <c16 has no counterpart"),
        (header("'<f16'", "False", "(1,)"), 16, "dtype <f16 has no counterpart"),
        (header("'<M8[D]'", "False", "(1,)"), 8, "dtype <M8[D] has no counterpart"),
        (header("'|S3'", "False", "(1,)"), 3, "dtype |S3 has no counterpart"),
        (header("'|V2'", "False", "(1,)"), 2, "such as --dtype bf16"),
        (header("'|V1'", "False", "(1,)"), 1, "such as --dtype f8_e4m3"),
        (header("[('a', '<f4'), ('b', '<i4')]", "False", "(1,)"), 8, "structured arrays are not supported"),
        (header("[('é', '<f4')]", "False", "(1,)"), 4, "structured arrays are not supported"),
        (header("'<f4'", "False", "(2,)"), 7, "which is 8 bytes, but 7 bytes follow it"),
        (header("'<f4'", "False", "(2,)"), 9, "which is 8 bytes, but 9 bytes follow it"),
    ];
    for (text, data_len, message) in cases {
        let refused = refusal(&file(&text, data_len));
        assert!(refused.contains(message), "{refused}");
    }
    assert!(read_bytes(&file(&header("'<f4'", "True", "(1, 3)"), 12)).is_ok());
}

#[test]
fn reads_dtypes_without_a_byte_order_as_numpy_does() {
    for (descr, dtype) in [
        ("f4", Dtype::F32),
        ("=f8", Dtype::F64),
        ("i8", Dtype::I64),
        ("u1", Dtype::U8),
        ("=b1", Dtype::Bool),
        ("c8", Dtype::C64),
    ] {
        for text in [
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (3,), }}   \n"),
            format!("{{\"shape\":(3,),\"fortran_order\":False,\"descr\":\"{descr}\"}}"),
        ] {
            for version in [1, 2] {
                let len = usize::try_from(raw_len(dtype, &[3]).unwrap()).unwrap();
                let mut bytes = file(&text, len);
                bytes[6] = version;
                if version > 1 {
                    bytes.splice(10..10, [0, 0]);
                }
                let tensor = read_bytes(&bytes).map_err(|error| format!("{text}: {error:#}")).unwrap();
                assert_eq!((tensor.dtype, tensor.range.end), (dtype, bytes.len() as u64), "{text}");
            }
        }
    }
    let bytes = file(&header("'V2'", "False", "(3,)"), 6);
    assert_eq!(read_bytes_as(&bytes, Some(Dtype::Bf16)).unwrap().dtype, Dtype::Bf16);
    assert!(refusal(&file(&header("'x4'", "False", "(3,)"), 12)).contains("header is malformed"));
}

#[test]
fn reads_headers_as_numpy_writes_and_reads_them() {
    let texts = [
        // Keys in another order, double quotes, no padding, no comma at the end, Python 2's long integers.
        "{'shape': (2, 3), 'descr': '<f4', 'fortran_order': False}",
        "{\"fortran_order\": False, \"descr\": \"<f4\", \"shape\": (2, 3,), }\n",
        "{'descr':'<f4','fortran_order':False,'shape':(2,3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }",
        "  {'descr': '<f4', 'fortran_order': False, 'shape': (2 ,\n3), }\t  \n",
    ];
    for text in texts {
        for version in [1, 2, 3] {
            let mut bytes = file(text, 24);
            bytes[6] = version;
            if version > 1 {
                bytes.splice(10..10, [0, 0]);
            }
            let tensor = read_bytes(&bytes).map_err(|error| format!("{text}: {error:#}")).unwrap();
            assert_eq!((tensor.dtype, &tensor.shape[..], tensor.raw_bytes()), (Dtype::F32, &[2, 3][..], 24));
        }
    }
}

#[test]
fn reads_bytes_as_what_they_are_said_to_be() {
    let cases = [
        ("|V2", Dtype::Bf16, 2),
        ("<V2", Dtype::Bf16, 2),
        ("|V1", Dtype::F8E4m3, 1),
        ("|V1", Dtype::F8E5m2, 1),
        ("<u2", Dtype::Bf16, 2),
        ("<f4", Dtype::F32, 4),
    ];
    for (descr, asked, len) in cases {
        let bytes = file(&header(&format!("'{descr}'"), "False", "(3,)"), 3 * len);
        assert_eq!(read_bytes_as(&bytes, Some(asked)).unwrap().dtype, asked, "{descr}");
    }
    for (descr, asked, message) in [
        ("|V2", Dtype::F8E4m3, "elements of 16 bits, --dtype F8_E4M3 of 8"),
        ("|V1", Dtype::F4, "elements of 8 bits, --dtype F4 of 4"),
        ("<f4", Dtype::I32, "the array has dtype F32, not --dtype I32"),
        ("<i2", Dtype::Bf16, "the array has dtype I16, not --dtype BF16"),
    ] {
        let bytes = file(&header(&format!("'{descr}'"), "False", "(3,)"), 12);
        let error = format!("{:#}", read_bytes_as(&bytes, Some(asked)).unwrap_err());
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn refuses_hostile_headers() {
    let max = u64::MAX.to_string();
    let cases = [
        (header("'<f4'", "False", "(4294967296, 4294967296)"), "the shape passes 64 bits"),
        (header("'<f4'", "False", &format!("({max}, {max}, 0)")), "the shape passes 64 bits"),
        (header("'<f4'", "False", &format!("({max}0,)")), "is too large"),
        (header("'<f4'", "False", "(0x7fffffffffffffff, 16)"), "does not end there"),
        (header("'<f4'", "False", "(1_0,)"), "does not end there"),
        (header("'<f4'", "False", "(9223372036854775807 +9223372036854775807, 16)"), "passes 64 bits"),
        (header("'<f4'", "False", "(1 +1,)"), "holds a sign"),
        (header("'<f4'", "False", "(-1,)"), "holds a sign"),
        (
            header("'<f4'", "False", &format!("({})", "1,".repeat(65))),
            "65 dimensions are above the limit of 64",
        ),
        (header("'<f4'", "False", &"(".repeat(5000)), "5001 opening brackets"),
        (header("'<f4'", "False", "[[[[[["), "could not parse"),
        (header("'<f4'", "False", "{{{{{{1}}}}}}"), "shape must be list or tuple"),
        (header("'<f4'", "1", "(1,)"), "not a bool"),
        ("{'shape': (1,)}".to_owned(), "missing key"),
        ("[]".to_owned(), "expected a python dict"),
        ("\n".to_owned(), "could not parse"),
        (String::new(), "could not parse"),
    ];
    for (text, message) in cases {
        let refused = refusal(&file(&text, 4));
        assert!(refused.contains(message), "{text}: {refused}");
    }
}

#[test]
fn refuses_lengths_and_versions_that_lie() {
    assert!(refusal(b"\x93NUMPY").contains("too short"));
    assert!(refusal(&[0; 64]).contains("magic bytes"));
    let mut bytes = file("{}", 100);
    bytes[8..10].copy_from_slice(&[0xFF, 0xFF]);
    assert!(refusal(&bytes).contains("a header of 65535 bytes does not fit the file, which has 112 bytes"));
    bytes[6] = 2;
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(refusal(&bytes).contains("a header of 4294967295 bytes is above the limit of 65536"));
    bytes[6] = 9;
    assert!(refusal(&bytes).contains("npy version 9.0 is unknown"));
}

/// Every truncation and every changed byte leads to an error or a checked tensor, never a panic.
#[test]
fn survives_every_changed_byte() {
    let good = file(&header("'<f4'", "False", "(2, 3)"), 24);
    assert!(read_bytes(&good).is_ok());
    for idx in 0..good.len() {
        assert!(read_bytes(&good[..idx]).is_err(), "{idx} bytes");
        for change in [1_u8, 2, 4, 8, 16, 0x80] {
            let mut bytes = good.clone();
            bytes[idx] ^= change;
            if let Ok(tensor) = read_bytes(&bytes) {
                assert_eq!(raw_len(tensor.dtype, &tensor.shape), Some(tensor.raw_bytes()));
                assert_eq!(tensor.range.end, bytes.len() as u64);
            }
        }
    }
}
