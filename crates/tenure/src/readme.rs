//! The README's program, compiled by the doc tests.

#![doc = include_str!("../../../README.md")]
