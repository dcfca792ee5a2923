//! `Lane`: one direction of one connection, with the bytes that are on their way.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use crate::proxy::dice::Dice;

/// Where bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// What happens to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Flow {
    /// They are delivered.
    #[default]
    Pass,
    /// They are taken and kept.
    Hold,
    /// They are taken and lost.
    Drop,
    /// They are not even taken.
    Stall,
}

/// One direction.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) flow: Flow,
    dice: Dice,
    /// Pieces, each with its delivery time, which is never before that of the piece in front of it.
    queue: VecDeque<(Instant, Vec<u8>)>,
    size: usize,
    /// The source has ended.
    has_ended: bool,
    /// The target gets no more bytes.
    is_over: bool,
    is_torn: bool,
    /// Bytes that were delivered.
    pub(super) delivered: u64,
    /// Bytes that were dropped.
    pub(super) dropped: u64,
}

impl Lane {
    pub(super) fn new(flow: Flow, dice: Dice) -> Self {
        Self {
            flow,
            dice,
            queue: VecDeque::new(),
            size: 0,
            has_ended: false,
            is_over: false,
            is_torn: false,
            delivered: 0,
            dropped: 0,
        }
    }

    /// How many bytes are on their way.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Whether bytes are missing, so that what follows would make no sense.
    pub(super) fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// Whether nothing will come, and nothing is to be delivered.
    pub(super) fn is_over(&self) -> bool {
        self.is_over || (self.has_ended && self.is_torn)
    }

    /// Whether it would take bytes.
    pub(super) fn reads(&self) -> bool {
        self.flow != Flow::Stall && !self.has_ended && !self.is_over && self.size < ROOM
    }

    /// When the next bytes are due, if it can deliver any.
    pub(super) fn due(&self) -> Option<Instant> {
        let is_flowing = self.flow == Flow::Pass && !self.is_torn;
        self.queue.front().filter(|_| is_flowing).map(|(due, _)| *due)
    }

    /// Reads what has arrived, one piece at most.
    ///
    /// # Errors
    /// If the source was reset.
    pub(super) fn read(
        &mut self,
        mut from: &TcpStream,
        now: Instant,
        delay: &RangeInclusive<Duration>,
    ) -> io::Result<()> {
        if !self.reads() {
            return Ok(());
        }
        let mut bytes = vec![0; PIECE];
        match from.read(&mut bytes) {
            Ok(0) => self.has_ended = true,
            Ok(count) if self.flow == Flow::Drop || self.is_torn => self.lose(count),
            Ok(count) => {
                bytes.truncate(count);
                let due = now + self.dice.within(delay);
                let due = self.queue.back().map_or(due, |(before, _)| due.max(*before));
                self.queue.push_back((due, bytes));
                self.size += count;
            }
            Err(error) if is_for_later(&error) => {}
            Err(error) => {
                self.has_ended = true;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Delivers what is due, up to `limit` bytes, and the source's end after the last of them.
    ///
    /// # Errors
    /// If the target was reset.
    pub(super) fn write(&mut self, mut to: &TcpStream, now: Instant, limit: u64) -> io::Result<u64> {
        let mut written = 0;
        while self.due().is_some_and(|due| due <= now) && written < limit {
            let Some((_, piece)) = self.queue.front_mut() else { break };
            let room = usize::try_from(limit - written).unwrap_or(usize::MAX);
            let count = match to.write(&piece[..piece.len().min(room)]) {
                Ok(count) => count,
                Err(error) if is_for_later(&error) => break,
                Err(error) => {
                    self.finish();
                    return Err(error);
                }
            };
            if count == piece.len() {
                self.queue.pop_front();
            } else {
                piece.drain(..count);
            }
            self.size -= count;
            self.delivered += count as u64;
            written += count as u64;
        }
        let is_flowing = self.flow == Flow::Pass && !self.is_torn && !self.is_over;
        if is_flowing && self.has_ended && self.queue.is_empty() {
            self.finish();
            // OK to ignore because a target that has ended too needs no notice.
            let _ = to.shutdown(Shutdown::Write);
        }
        Ok(written)
    }

    /// Treats its bytes in another way from now on.
    pub(super) fn switch(&mut self, flow: Flow) {
        self.flow = flow;
        if flow == Flow::Drop {
            self.queue.clear();
            let count = std::mem::take(&mut self.size);
            if count > 0 {
                self.lose(count);
            }
        }
    }

    /// Makes all delayed pieces due.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.queue.iter_mut().for_each(|(due, _)| *due = now);
    }

    fn lose(&mut self, count: usize) {
        self.is_torn = true;
        self.dropped += count as u64;
    }

    fn finish(&mut self) {
        self.queue.clear();
        self.size = 0;
        self.is_over = true;
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The most bytes of one read.
const PIECE: usize = 16 * 1024;
/// The most bytes on their way; a side that sends more has to wait.
const ROOM: usize = 16 * 1024 * 1024;
