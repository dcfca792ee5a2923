//! Messages from `tenure` to its watcher process: which processes to watch, and until when.

use std::{
    io::{self, ErrorKind, Stdin, stdin},
    os::fd::AsFd,
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::read,
};
use serde::{Deserialize, Serialize};
use tenure::Moment;

/// One line of JSON.
#[derive(Serialize, Deserialize, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Watch(Watched),
    /// When to act, unless another message comes before.
    Until(Deadline),
}

/// The processes to watch.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) command: i32,
    pub(crate) tenure: i32,
    pub(crate) adopts: bool,
    /// The owner, which is in the environment of all that the command starts.
    pub(crate) owner: String,
}

/// When the watcher process ends the command: a little later than `tenure` does it itself.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// TERM; `None` if that has been sent.
    term: Option<Reading>,
    kill: Reading,
}

/// A moment in a message to another process of this machine.
type Reading = (Duration, Duration);

fn moment((boot, wall): Reading) -> Moment {
    Moment { boot, wall }
}

impl Deadline {
    pub(crate) fn new(term: Option<Moment>, kill: Moment) -> Self {
        Self { term: term.map(|term| (term.boot, term.wall)), kill: (kill.boot, kill.wall) }
    }

    /// Whether TERM has to be sent.
    pub(crate) fn wants_term(self) -> bool {
        self.term.is_some()
    }

    pub(crate) fn first(self) -> Moment {
        moment(self.term.unwrap_or(self.kill))
    }

    pub(crate) fn kill(self) -> Moment {
        moment(self.kill)
    }

    /// True if the difference is only that of two measurements.
    pub(crate) fn is_about(self, other: Self) -> bool {
        let near = |a: Duration, b: Duration| a.abs_diff(b) < Duration::from_millis(1);
        self.wants_term() == other.wants_term()
            && near(self.kill.0, other.kill.0)
            && near(self.kill.1, other.kill.1)
    }
}

/// The receiving end of the messages: the standard input of the watcher process.
pub(crate) struct Inbox {
    line: Stdin,
    heard: Vec<u8>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { line: stdin(), heard: Vec::new() }
    }

    /// Waits for the next message; `None` if none comes within `patience`. An error if the pipe was closed.
    pub(crate) fn receive(&mut self, patience: Duration) -> io::Result<Option<Message>> {
        loop {
            if let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                return Ok(serde_json::from_slice(&line).ok());
            }
            let mut ready = [PollFd::new(self.line.as_fd(), PollFlags::POLLIN)];
            let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
            match poll(&mut ready, patience) {
                Ok(0) | Err(Errno::EINTR) => return Ok(None),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let mut some = [0; 512];
            match read(&self.line, &mut some) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.heard.extend(&some[..count]),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_short_line_and_read_as_it_was_written() {
        let at = |seconds| Moment { boot: Duration::from_secs(seconds), wall: Duration::new(seconds, 1) };
        let watched = Watched { command: 7, tenure: 1, adopts: true, owner: "0".repeat(48) };
        for message in [Message::Watch(watched), Message::Until(Deadline::new(Some(at(u64::MAX)), at(9)))] {
            let line = serde_json::to_string(&message).unwrap();
            assert!(
                line.len() < 512 && !line.contains('\n'),
                "shorter than what a pipe takes at once: {line}"
            );
            assert_eq!(serde_json::from_str::<Message>(&line).unwrap(), message);
        }
    }

    #[test]
    fn a_deadline_is_the_same_if_it_was_only_measured_again() {
        let at = |micros| Moment { boot: Duration::from_micros(micros), wall: Duration::from_micros(micros) };
        let deadline = |micros| Deadline::new(Some(at(micros)), at(micros));
        assert!(deadline(5000).is_about(deadline(5900)));
        assert!(!deadline(5000).is_about(deadline(6000)));
        assert!(!deadline(5000).is_about(Deadline::new(None, at(5000))), "TERM has been sent meanwhile");
        assert_eq!(Deadline::new(None, at(7)).first(), at(7));
    }
}
