//! Swim lanes of a history as SVG: when clients treated the lock as held, what the store reported, what went wrong.
//!
//! A [`Picture`] is data. [`Picture::svg`] draws it, always in the same way: light or dark as the reader's screen is, and
//! readable on a phone. [`story`] is the content of a picture without its times, so that two pictures can be compared.

use std::time::Duration;

pub use story::story;

mod draw;
mod story;
pub mod terminals;

/// Lanes side by side, from the beginning of a history to its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// Distinguishes it from others on the same page: letters, digits and `-`.
    pub id: String,
    /// In a few words.
    pub title: String,
    /// What is to be seen, in a sentence: for readers who do not see it.
    pub description: String,
    /// How long it lasted.
    pub span: Duration,
    /// How wide it is drawn: 0, or less than a phone is wide, as wide as a phone.
    pub width: f64,
    /// What the axis begins with.
    pub begins: Duration,
    /// From top to bottom.
    pub lanes: Vec<Lane>,
    /// Times at which harm was done.
    pub shades: Vec<Shade>,
}

impl Picture {
    /// The picture as a separate document, or as a part of a page.
    pub fn svg(&self) -> String {
        draw::svg(self)
    }
}

/// A client, a server, or a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    /// What it is called.
    pub name: String,
    /// What lasted.
    pub bars: Vec<Bar>,
    /// What happened at an instant.
    pub marks: Vec<Mark>,
}

/// Something that lasted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// From when.
    pub from: Duration,
    /// Until when.
    pub until: Duration,
    /// What it is.
    pub look: Look,
    /// A word inside it.
    pub label: String,
}

/// What a bar is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A client waits for the lock.
    Waits,
    /// A client treats the lock as held.
    Believes,
    /// A client is stopped.
    Stopped,
    /// A store reports a holder of the lock.
    Holds,
}

/// Something that happened at an instant. It gets a number, and a line below the lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When.
    pub at: Duration,
    /// What it is.
    pub sign: Sign,
    /// What happened, in a few words.
    pub label: String,
}

/// What a mark is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Something goes wrong.
    Fault,
    /// A write that was taken.
    Taken,
    /// A write that was refused.
    Refused,
    /// A write that should not have been taken.
    Harmful,
    /// Anything else that is worth a line.
    Note,
}

/// A time at which harm was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shade {
    /// From when.
    pub from: Duration,
    /// Until when.
    pub until: Duration,
    /// In a few words.
    pub label: String,
}
