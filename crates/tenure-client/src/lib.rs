#![doc = include_str!("../README.md")]

mod connections;
mod locked;
#[cfg(feature = "socket")]
mod socket;
mod stall;
#[cfg(feature = "socket")]
pub mod tls;

pub use connections::{Connections, End, Link, Opening};
pub use locked::locked;
#[cfg(feature = "socket")]
pub use socket::Socket;
pub use stall::{Awaited, StallDetector};
