//! Row numbers in any integer type.

mod sealed {
    pub trait Sealed {}
}

/// An integer that can number a row: `u8` to `u64`, `i8` to `i64`, `usize`.
///
/// Negative numbers are out of range, as numbers past the last row are.
pub trait RowId: Copy + sealed::Sealed {
    /// The row number, `None` when it is negative.
    #[doc(hidden)]
    fn row(self) -> Option<u64>;

    /// The number as it was passed, for errors.
    #[doc(hidden)]
    fn value(self) -> i128;
}

/// Expansion for one type: `impl RowId for u8 { fn row(self) -> Option<u64> { .. } fn value(self) -> i128 { .. } }`
macro_rules! row_ids {
    ($($integer:ty)*) => {$(
        impl sealed::Sealed for $integer {}

        impl RowId for $integer {
            #[inline]
            fn row(self) -> Option<u64> {
                u64::try_from(self).ok()
            }

            fn value(self) -> i128 {
                self as i128
            }
        }
    )*};
}

row_ids! { u8 u16 u32 u64 usize i8 i16 i32 i64 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_gives_its_own_number() {
        assert_eq!((7_u8.row(), 7_i8.row(), 7_usize.row()), (Some(7), Some(7), Some(7)));
        assert_eq!(((-1_i8).row(), (-1_i64).row(), i64::MIN.row()), (None, None, None));
        assert_eq!((u64::MAX.row(), u64::MAX.value()), (Some(u64::MAX), i128::from(u64::MAX)));
        assert_eq!(i64::MIN.value(), i128::from(i64::MIN));
    }
}
