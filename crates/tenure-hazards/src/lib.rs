//! Ways to get a distributed lock wrong, played on real servers; then the same schedule with Tenure.
//!
//! A *scene* is one way. It is played twice, with the scheme as everybody writes it and with Tenure; each time is a
//! [`Half`]. Clients are processes of their own ([`player`]). What is protected is a *resource* of the
//! referee, which knows neither scheme: it writes down who was inside when and what the resource took, and
//! `judge` says who was hurt.

#![allow(clippy::disallowed_methods, reason = "real servers and processes live in real time")]

mod card;
mod cast;
mod client;
pub mod command;
mod half;
mod hall;
mod judge;
mod monotonic;
mod needs;
pub mod player;
mod process;
mod record;
mod rooms;
mod scene;
mod scenes;
mod schemes;
mod show;
mod stage;
mod words;

pub use card::Card;
pub use cast::{Cast, Fault, Half};
pub use half::{Played, play};
pub use hall::{Hall, Outcome, Shown, Verdict};
pub use judge::{Harm, Rule};
pub use needs::Need;
pub use record::{Event, Kind, What};
pub use scene::Scene;
pub use scenes::all;
pub use show::{json, page, pictures, table};
pub use stage::Stage;
