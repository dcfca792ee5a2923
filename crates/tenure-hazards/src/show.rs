//! What is shown of the scenes: a table for people, JSON for programs.

pub mod json;
pub mod table;
