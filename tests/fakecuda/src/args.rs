//! Pointers that callers of the driver pass, as types that check for null.
//!
//! Each is one pointer in the C interface. Only a caller in C can make one, and the driver asks it for a pointer that
//! is null or valid for the call: that is what every `unsafe` here relies on.
#![expect(unsafe_code, reason = "follows the pointers of callers")]

use std::ffi::{CStr, c_char, c_void};

use crate::code::{Answer, Code};

/// Where a value goes.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    /// Stores `value`; null is an error.
    pub(crate) fn set(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the caller has a place there.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Stores `value` unless the pointer is null, where that is allowed.
    pub(crate) fn set_if_asked(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so the caller has a place there.
            unsafe { self.0.write(value) };
        }
    }

    /// What is there, set by this call or before it.
    pub(crate) fn value(self) -> Option<T> {
        // SAFETY: not null, so the caller has a value there, or this call has set it.
        (!self.0.is_null()).then(|| unsafe { self.0.read() })
    }

    /// Stores the values from there on.
    pub(crate) fn set_all(self, values: &[T]) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the caller has place for what the function is documented to store.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }
}

/// A text that ends with NUL.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn read(self) -> Result<String, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the caller has a text with its NUL there.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// An address in the memory of the host, of something untyped.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Host(*mut c_void);

impl Host {
    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    pub(crate) fn at(address: u64) -> Self {
        let address = usize::try_from(address).expect("addresses have 64 bits");
        Self(std::ptr::with_exposed_provenance_mut(address))
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// As a place for one value of a type that the function's documentation names.
    pub(crate) fn of<T>(self) -> Out<T> {
        Out(self.0.cast())
    }
}

/// An array that the caller fills.
#[repr(transparent)]
pub(crate) struct Array<T>(*const T);

impl<T> Clone for Array<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Array<T> {}

impl<T: Copy> Array<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn read(self, len: usize) -> Result<Vec<T>, Code> {
        if self.0.is_null() {
            return if len == 0 { Ok(Vec::new()) } else { Err(Code::INVALID_VALUE) };
        }
        // SAFETY: not null, so the caller has as many values there as the function is documented to read.
        let values = unsafe { std::slice::from_raw_parts(self.0, len) };
        Ok(values.to_vec())
    }
}
