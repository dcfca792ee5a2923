//! `Card`: what is known of a scene before it is played.

use crate::{
    judge::Rule,
    needs::Need,
    schemes::{TENURE, named},
};

/// What is known of a scene before it is played.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// Its number, from 1.
    pub number: u8,
    /// What it is called.
    pub title: &'static str,
    /// Hazards of `docs/hazards.md` that it shows.
    pub hazards: &'static [u8],
    /// The scheme as everybody writes it: a file in `schemes/`.
    pub naive: &'static str,
    /// Programs and servers that it needs.
    pub needs: &'static [Need],
    /// When somebody is hurt.
    pub rules: &'static [Rule],
    /// The fault: without it the scheme does no harm.
    pub fault: &'static str,
    /// What happens with the scheme as everybody writes it.
    pub harm: &'static str,
    /// What Tenure does instead.
    pub instead: &'static str,
}

impl Card {
    /// The code of both schemes: as everybody writes it, and with Tenure.
    pub fn code(&self) -> [String; 2] {
        let functions: &[&str] = match self.rules {
            [Rule::NoLostUpdate] => &["add"],
            [Rule::NoLateWrite] => &["lock", "believes", "token", "unlock"],
            _ => &["lock", "unlock"],
        };
        let ours = if self.naive == "flock" { "tenure_run" } else { TENURE };
        [self.naive, ours].map(|name| named(name).map_or_else(String::new, |scheme| scheme.code(functions)))
    }
}
