//! `Setup`: who plays, and whose scheme.

use std::path::PathBuf;

/// Whose scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// As everybody writes it.
    Naive,
    /// With Tenure.
    Tenure,
}

/// Whether the fault comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// As the scene says.
    Comes,
    /// Nothing goes wrong: then nobody may be hurt.
    StaysAway,
}

/// Who plays.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The program that is a client when its first word is `__client`.
    pub program: PathBuf,
    /// The command `tenure`, where it was found.
    pub tenure: Option<PathBuf>,
    /// A Redis that was given for the scenes that need no more.
    pub url: Option<String>,
    /// Whether the fault comes.
    pub fault: Fault,
    /// In Tenure's half, the scheme that everybody writes plays its part: the half must notice.
    pub has_impostor: bool,
}

impl Setup {
    /// Those who play as the scenes say, in this program.
    pub fn of(program: PathBuf) -> Self {
        Self { program, tenure: None, url: None, fault: Fault::Comes, has_impostor: false }
    }
}
