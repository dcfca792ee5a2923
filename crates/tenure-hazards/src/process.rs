//! A client's process, as its scheme sees it: who it is, and how it speaks with the scene.

use std::{
    error::Error,
    io::{self, BufRead, Write},
    time::Duration,
};

use crate::{
    monotonic,
    words::{Order, Said, Word},
};

/// What a step of a scheme comes to.
pub(crate) type Step<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// A client's process.
#[derive(Clone, Debug)]
pub(crate) struct Player {
    /// Who it is.
    pub(crate) name: String,
    /// The name of the lock.
    pub(crate) lock: String,
    /// Where locks are kept.
    pub(crate) url: String,
    /// How long a lock lasts.
    pub(crate) ttl: Duration,
    /// It stops in gaps.
    pub(crate) pauses: bool,
}

impl Player {
    /// Here the scheme can be interrupted: between two requests that should be one.
    pub(crate) fn gap(&self, gap: &str) -> Step {
        if self.pauses {
            say(Word::Gap(gap.to_owned()));
            order()?;
        }
        Ok(())
    }
}

/// Says something to the scene.
pub(crate) fn say(what: Word) {
    say_at(monotonic::now(), what);
}

/// Says something that was so at another time.
pub(crate) fn say_at(at: Duration, what: Word) {
    let line = serde_json::to_string(&Said { at, what }).expect("BUG: words are JSON");
    // OK to ignore because a scene that is over listens no more.
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// What it is told next; none if it is told nothing more.
pub(crate) fn order() -> Step<Option<Order>> {
    let mut line = String::new();
    if io::stdin().lock().read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}
