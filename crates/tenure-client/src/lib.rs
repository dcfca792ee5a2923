#![doc = include_str!("../README.md")]

mod channels;
mod connections;
mod contended;
pub mod doctor;
pub mod durations;

mod refusal;
mod secret;
mod settings;
mod single_flight;
mod slot;
#[cfg(feature = "socket")]
mod socket;
mod stall;
#[cfg(feature = "socket")]
pub mod tls;
pub mod url;

pub use channels::Channels;
pub use connections::{Connections, End, Link, Opening};
pub use contended::Contended;

pub use secret::{Login, Secret};
pub use single_flight::SingleFlight;
pub use slot::{Slot, Slots};
#[cfg(feature = "socket")]
pub use socket::Socket;
pub use stall::{Awaited, StallDetector};
