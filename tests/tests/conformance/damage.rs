//! Damaged blocks.
