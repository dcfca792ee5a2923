//! All tests of the command from outside, in one program, which is linked once.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, and real servers and processes live in real time"
)]

mod attach;
mod bench;
mod book;
mod breaks;
mod command;
mod completions;
mod containers;
mod contention;
mod damage;
mod deaths;
mod demo;
mod doctor;
mod entrypoint;
#[cfg(feature = "etcd")]
mod etcd;
mod every;
mod exit_codes;
mod fairness;
mod first_run;
mod hold;
mod input;
mod jobs;
mod lead;
mod lines;
mod lookers;
mod loss;
mod manual;
mod matrix;
#[cfg(feature = "mysql")]
mod mysql;
mod nested;
mod newest;
mod notices;
mod postgres;
mod procfs;
mod recipes;
mod redis;
mod redlock;
mod release;
mod rotation;
mod screen;
mod scripts;
mod several;
mod signals;
mod stage;
mod store;
mod terminal;
mod threads;
mod view;
mod watch;
mod worlds;
mod zookeeper;
