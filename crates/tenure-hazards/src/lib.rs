//! Ways to get a distributed lock wrong, played on real servers; then the same schedule with Tenure.
//!
//! A *scene* is one way. It is played twice, with the usual recipe and with Tenure; each time is a [`Half`]. Clients are
//! separate processes ([`client`]). What is protected is a *resource* of the referee, which knows neither scheme. It records
//! which client was inside at which time and what the resource took, and `judge` reports the harm.

#![allow(clippy::disallowed_methods, reason = "real servers and processes live in real time")]

pub mod client;
mod judge;
pub mod output;
pub mod page;
pub mod pictures;
mod process;
pub mod programs;
mod protocol;
mod record;
mod runner;
mod scenes;
mod schedules;
mod schemes;
mod servers;
mod world;

pub use judge::{Harm, Rule};
pub use programs::Need;
pub use record::{Event, Kind, What};
pub use runner::{Outcome, Played, Report, Runner, Verdict, play};
pub use scenes::{SCENES, Scene};
pub use world::{Half, Setup};
