//! The resource side of the fencing token: a former holder's write is refused.
//!
//! A lease cannot stop a write that is on its way, or a process that was stopped and goes on. Only the resource can. It
//! keeps a **mark**, the largest token that it has seen of an exclusive holder:
//!
//! * an **exclusive** grant (mutex, writer) *raises* it: write only if token ≥ mark, and set mark = token, in the same
//!   atomic step as the write;
//! * a **shared** grant (reader, permit) *checks* it: write only if token ≥ mark. If it raised it, holders that are there by
//!   right would be refused for having come first.
//!
//! A [`Pass`] is what a holder shows: its token and which of the two it does. Get it from [`Lease::pass`](crate::Lease::pass),
//! or, in a child of `tenure run`, from [`Pass::from_env`]. Three kinds of resource are ready made:
//!
//! | Protected | Take | It is |
//! |---|---|---|
//! | a file | [`FencedFile`] | the file, its mark beside it, and a lock while they are used |
//! | rows in PostgreSQL, MySQL, MariaDB or SQLite | [`sql`] | texts of statements, for any driver |
//! | a key in Redis | [`redis`] | a script, for any client |
//!
//! Anything else that can check and write in one step calls [`Pass::judge`].
//!
//! ```
//! use tenure::fence::FencedFile;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("report");
//! let locks = tenure::connect("memory:").await?;
//! let guard = locks.mutex("report").acquire().await?;
//! FencedFile::new(&path).write(guard.pass(), b"this quarter: 12 bolts")?;
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! # How to use it
//! * **Touch before the first read** of what will be written later: `touch` raises the mark without writing. Otherwise a
//!   former holder's write can slip in between the read and the write, with a token that is not refused yet.
//! * **One mark for each protected thing and lock.** Tokens of different locks cannot be compared, nor those of different
//!   stores: after a change of the URL they may start lower. Set the marks back then, while no process holds.
//! * **Refused means over.** Stop; do not try again with the same token.
//!
//! # What is not promised
//! * A mark protects what is written in the same atomic step, in one place. A resource that is spread over several servers
//!   must have raised the mark at each of them before it writes at the first.
//! * A read is not fenced. What was read, or sent out into the world, after a check may be old by the time it is used.
//! * Until a later holder has been there, a former one is not refused: it harms no other holder yet.
//! * Co-holders of a semaphore are not fenced from each other, and a former holder of a permit is not fenced from the one
//!   that got its permit next. Where that matters, take one mutex for each slot.
//! * A writer that does not ask the fence is not refused. The mark must be as durable as the data, and must never go back.

mod file;
mod pass;
pub mod redis;
pub mod sql;

pub use file::{FencedFile, FileError};
pub use pass::{NoToken, Pass, Refused};
