//! Rooms: the servers of a scene, ready for both schemes, with somebody who looks at them.

mod copies;
mod count;
mod quorum;
mod redis;
mod rows;
mod zookeeper;

pub(crate) use copies::Copies;
pub(crate) use count::Count;
pub(crate) use quorum::Quorum;
pub(crate) use redis::{LANE, RedisRoom, address, free};
pub(crate) use rows::Rows;
pub(crate) use zookeeper::Ensemble;
