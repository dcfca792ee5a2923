//! `Scene`: one way to get a lock wrong.

use crate::{card::Card, world::World};

/// One way to get a lock wrong. The schedule is the same for both schemes.
pub trait Scene: Sync {
    /// What is known of it.
    fn card(&self) -> &Card;

    /// Plays it once: who does what, in which order, and where the fault comes.
    fn play(&self, world: &mut World<'_>);
}
