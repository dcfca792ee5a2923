//! What is shown of the scenes: a table for people, JSON for programs, pictures, and a page with all of it.

mod draw;
pub mod json;
pub mod page;
pub mod pictures;
pub mod table;
