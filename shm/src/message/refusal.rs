//! Why a request was refused: a closed list of codes, and a line for people.

use serde::{Deserialize, Serialize};

macro_rules! error_codes {
    ($($number:literal $variant:ident $doc:literal;)*) => {
        /// Why a request was refused: closed, append-only.
        ///
        /// Expansion of one line: `#[doc = "Try again."] Busy = 1`, which `from_number(1)` returns.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        #[non_exhaustive]
        pub enum ErrorCode { $(#[doc = $doc] $variant = $number,)* }

        impl ErrorCode {
            /// Every code, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code with this number.
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

error_codes! {
    1 Busy "A queue is full: try again.";
    2 PoolFull "The pool has no room: remove tensors, or start the daemon with more.";
    3 NotFound "No tensor or namespace of that name.";
    4 Exists "A tensor of that name exists, and the put does not say to overwrite.";
    5 Invalid "The request contradicts itself: a name, a shape, a chunk.";
    6 Deadline "The request was not done in its time.";
    7 Denied "The caller may not do that.";
    8 Version "Client and daemon are of different versions.";
    9 Limit "Too many sessions, transfers, namespaces or tensors.";
    10 Stopping "The daemon is shutting down.";
    11 Internal "The system refused the daemon something; its log has more.";
    12 Quota "The namespace's quota has no room: remove tensors, or have its owner raise it.";
    13 Replaced "The name holds another tensor than the caller has opened: open it again.";
}

/// A refused request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// An [`ErrorCode`], as a number so that new ones pass.
    pub code: u16,
    /// One line for people: the cause, the numbers, what to do.
    pub text: String,
}

impl Refusal {
    /// A refusal with this code and text.
    pub fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code: code as u16, text: text.into() }
    }

    /// The code, if this build knows it.
    pub fn code(&self) -> Option<ErrorCode> {
        ErrorCode::from_number(self.code)
    }
}
