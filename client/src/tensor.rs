//! A tensor that a client owns.

use std::fmt;

use tierpack_shm::types::Dtype;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::buffers::Buffer;
use crate::error::{Error, Result};

/// A tensor's dtype, shape and bytes: what `get` and `gather` return.
///
/// The bytes are row-major, little-endian, and aligned to 64 bytes.
/// They lie in a buffer that the client uses again once the tensor is dropped.
pub struct Tensor {
    dtype: Dtype,
    shape: Vec<u64>,
    buffer: Buffer,
}

impl Tensor {
    pub(crate) fn new(dtype: Dtype, shape: Vec<u64>, buffer: Buffer) -> Self {
        Self { dtype, shape, buffer }
    }

    pub(crate) fn as_mut_bytes(&mut self) -> &mut [u8] {
        self.buffer.as_mut_bytes()
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Shape, outermost dimension first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// All bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.buffer.as_bytes()
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    /// The elements, where Rust has a type for them.
    ///
    /// `F16` and `BF16` are `u16` words, `BOOL` and all 8-bit floats are `u8`.
    ///
    /// # Errors
    /// [`Error::DtypeMismatch`] when the tensor's elements are not `T`.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        let mismatch = || Error::DtypeMismatch { dtype: self.dtype, asked: std::any::type_name::<T>() };
        if !T::holds(self.dtype) {
            return Err(mismatch());
        }
        <[T]>::ref_from_bytes(self.as_bytes()).map_err(|_| mismatch())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .field("len", &self.as_bytes().len())
            .finish_non_exhaustive()
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that some dtypes' elements are.
pub trait Element: sealed::Sealed + FromBytes + IntoBytes + KnownLayout + Immutable + Copy {
    /// Whether an element of `dtype` is one of these.
    #[doc(hidden)]
    fn holds(dtype: Dtype) -> bool;
}

/// Expansion of one line: `impl Element for i8 { fn holds(dtype: Dtype) -> bool { matches!(dtype, Dtype::I8) } }`
macro_rules! elements {
    ($($element:ty: $($dtype:ident)|*;)*) => {$(
        impl sealed::Sealed for $element {}

        impl Element for $element {
            fn holds(dtype: Dtype) -> bool {
                matches!(dtype, $(Dtype::$dtype)|*)
            }
        }
    )*};
}

elements! {
    u8: U8 | Bool | F8E5m2 | F8E4m3 | F8E8m0 | F8E4m3Fnuz | F8E5m2Fnuz;
    i8: I8;
    u16: U16 | F16 | Bf16;
    i16: I16;
    u32: U32;
    i32: I32;
    f32: F32;
    u64: U64;
    i64: I64;
    f64: F64;
}

#[cfg(test)]
mod tests {
    use tierpack_shm::fork::ForkCookie;

    use super::*;
    use crate::buffers::Buffers;

    #[test]
    fn elements_are_what_the_dtype_says() {
        let buffers = Buffers::new(0, ForkCookie::current().unwrap());
        let mut tensor = Tensor::new(Dtype::F32, vec![2], buffers.take(8).unwrap());
        tensor.as_mut_bytes().copy_from_slice([1.5_f32, f32::NAN].as_bytes());
        let values = tensor.as_slice::<f32>().unwrap();
        assert_eq!((values[0], values[1].to_bits()), (1.5, f32::NAN.to_bits()));
        let error = tensor.as_slice::<u32>().unwrap_err().to_string();
        assert_eq!(error, "the tensor has dtype F32, its elements are not u32");
        assert!(!format!("{tensor:?}").contains("1.5"));
        let empty = Tensor::new(Dtype::I64, vec![0], buffers.take(0).unwrap());
        assert_eq!(empty.as_slice::<i64>().unwrap(), &[] as &[i64]);
    }

    #[test]
    fn an_element_has_the_bits_of_its_dtypes() {
        fn bits<T: Element>() {
            for &dtype in Dtype::ALL.iter().filter(|dtype| T::holds(**dtype)) {
                assert_eq!(dtype.bits() as usize, size_of::<T>() * 8, "{dtype}");
            }
        }
        bits::<u8>();
        bits::<i8>();
        bits::<u16>();
        bits::<i16>();
        bits::<u32>();
        bits::<i32>();
        bits::<f32>();
        bits::<u64>();
        bits::<i64>();
        bits::<f64>();
    }
}
