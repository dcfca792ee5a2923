//! Ways to get a distributed lock wrong, played on real servers; then the same schedule with Tenure.
//!
//! A *scene* is one way. It is played twice, with the scheme as everybody writes it and with Tenure; each time is a
//! [`Half`]. Clients are processes of their own ([`client`]). What is protected is a *resource* of the
//! referee, which knows neither scheme: it writes down who was inside when and what the resource took, and
//! `judge` says who was hurt.

#![allow(clippy::disallowed_methods, reason = "real servers and processes live in real time")]

pub mod client;
pub mod command;
mod half;
mod judge;
mod needs;
mod process;
mod protocol;
mod record;

mod runner;
mod scenes;
mod schedules;
mod schemes;
mod servers;
mod setup;
mod show;
mod world;

pub use half::{Played, play};
pub use judge::{Harm, Rule};
pub use needs::Need;
pub use record::{Event, Kind, What};
pub use runner::{Outcome, Report, Runner, Verdict};
pub use scenes::{SCENES, Scene};
pub use setup::{Fault, Half, Setup};
pub use show::{json, page, pictures, table};
pub use world::World;
