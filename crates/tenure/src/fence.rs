//! The resource side of the fencing token: a former holder's write is refused.
//!
//! A lease cannot stop a write that is on its way, or a process that was stopped and then continues. Only the
//! resource can. It keeps a **mark**, the largest token that it has seen from an exclusive holder:
//!
//! * an **exclusive** grant (mutex, writer) *raises* it: write only if token ≥ mark, and set mark = token, in the same
//!   atomic step as the write;
//! * a **shared** grant (reader, permit) *checks* it: write only if token ≥ mark. If shared grants raised the mark,
//!   the resource would refuse valid holders that were granted earlier.
//!
//! A holder shows a [`Pass`]: its token and which of the two it does. Get it from
//! [`Lease::pass`](crate::Lease::pass), or, in a child of `tenure run`, from [`Pass::from_env`]. Three kinds of
//! resource are ready to use:
//!
//! | Protected | Use | Form |
//! |---|---|---|
//! | a file | [`FencedFile`] | the file, a file with its mark, and a lock file |
//! | rows in PostgreSQL, MySQL, MariaDB or SQLite | [`sql`] | SQL statements, for any driver |
//! | a key in Redis | [`redis`] | a script, for any client |
//!
//! Any other resource that can check and write in one step calls [`Pass::judge`].
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
//! * **Touch before the first read** of data that will be written later: `touch` raises the mark without writing.
//!   Otherwise a former holder can write between the read and the write, with a token that is not refused yet.
//! * **One mark for each protected resource and lock.** Tokens of different locks cannot be compared, nor those of
//!   different stores. After a change of the URL tokens may start lower: reset the marks then, while no process
//!   holds.
//! * **Refused is final.** Stop; do not try again with the same token.
//!
//! # What is not promised
//! * A mark protects data that is written in the same atomic step, in one place. If a resource is spread over
//!   several servers, raise the mark on each of them before the first write.
//! * A read is not fenced. Data that was read or sent after a check may be out of date when it is used.
//! * A former holder is refused only after a later holder has shown its token; before that, it harms no other
//!   holder.
//! * Co-holders of a semaphore are not fenced from each other, and a former holder of a permit is not fenced from
//!   the next holder of that permit. Where that matters, use one mutex for each slot.
//! * A writer that does not check the mark is not refused. The mark must be as durable as the data, and must never
//!   decrease.

mod file;
mod pass;
pub mod redis;
pub mod sql;

pub use file::{FencedFile, FileError};
pub use pass::{NoToken, Pass, Refused};
