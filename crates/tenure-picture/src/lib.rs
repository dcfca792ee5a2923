//! Swim lanes of a history as SVG: who believed what and when, what the store said, what went wrong.
//!
//! A [`Picture`] is data. [`Picture::svg`] draws it, always in the same way: light or dark as the reader's screen is, and
//! readable on a phone. [`story`] is what a picture tells without its times, so that two of them can be compared.

mod brush;
mod legend;
mod picture;
mod story;
mod style;

pub use picture::{Bar, Lane, Look, Mark, Picture, Shade, Sign};
pub use story::story;
