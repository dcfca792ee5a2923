//! `Pulse`: the latest time at which the leader has certainly touched a session.

use std::{collections::VecDeque, time::Duration};

use tenure_core::Moment;

/// The latest time at which the leader has provably *touched* this session: learned that it is alive, and restarted
/// its timeout. The leader ends the session one timeout after it last touched it.
///
/// # Why a write does not prove it
/// Only the leader ends sessions. The follower that serves this client answers pings and reads by itself. It reports
/// the session to its leader only when the leader asks, every half tick, in its stream of messages. Writes and
/// `sync`s that the follower passes on touch no session. The stream may be held up, for as long as the leader
/// tolerates the follower (`syncLimit`). Then a write is still carried out while the leader counts from an earlier
/// touch. So this code does not assume how long that takes, but proves the touch from the order of messages.
///
/// # Proof
/// A *beat* is a `sync`: the follower notes the session, passes the beat on to the leader, and answers when the
/// leader's answer has come back. Let beat A be answered, then beat B be sent at least half a tick later. After the
/// answer to B, let a write W be sent; all three succeed.
///
/// * **Over one connection**, a follower has one leader. Between its answers to A and B the leader has put a question
///   into the stream to this follower, as it does every half tick. The stream keeps order. So the question arrived
///   after the leader's answer to A, when the follower had noted the session for A, and before the leader's answer to
///   B. The follower answers the question immediately. W takes the same way to the leader, after that answer. So when
///   W is carried out, the leader has touched the session after A was sent.
/// * **If the connection changed in between**, a server asked the leader before it accepted the new one. The leader
///   thereby touched the session, after A was answered.
///
/// Either way, the leader carried out W with the session alive and a quorum behind it. It keeps the session for at
/// least one timeout from when A was *sent* (it rounds up to a tick). A leader that is elected later starts all
/// timeouts anew, and after W: it asks a quorum first, which has W. A leader that was deposed before cannot carry out
/// W. A leader made the session itself after this client began to connect, which counts as a first A.
///
/// # What is assumed
/// The leader asks no more than an eighth of a tick late while it answers others. Clocks run at the same rate (A1:
/// the drift). The tick of the URL is no shorter than the servers'. All members serve sessions of the same length.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// When the last beat was sent after which the leader has touched the session.
    heard: Moment,
    /// Beats since then: when each was sent and answered.
    beats: VecDeque<(Moment, Moment)>,
    /// From the answer to A until B is sent.
    spacing: Duration,
}

impl Pulse {
    /// Of a session that began to connect at `opened` to servers with this tick.
    pub(crate) fn new(opened: Moment, tick: Duration) -> Self {
        // Half a tick, and an eighth for a leader that asks late.
        Self { heard: opened, beats: VecDeque::new(), spacing: tick * 5 / 8 }
    }

    /// A beat was answered.
    pub(crate) fn on_beat(&mut self, sent: Moment, answered: Moment) {
        while let Some(&(earlier, its_answer)) = self.beats.front()
            && sent.boot >= its_answer.boot + self.spacing
        {
            self.heard = self.heard.later(earlier);
            self.beats.pop_front();
        }
        if self.beats.len() == KEPT {
            self.beats.pop_back();
        }
        self.beats.push_back((sent, answered));
    }

    /// The leader that carries out a write sent from now on has touched the session at this time or later.
    pub(crate) fn heard(&self) -> Moment {
        self.heard
    }
}

/// A tick has four beats, and those of the last tick are needed.
const KEPT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(800);

    fn at(ms: u64) -> Moment {
        Moment { boot: Duration::from_millis(ms), wall: Duration::from_millis(ms) }
    }

    fn pulse(beats: &[(u64, u64)]) -> Moment {
        let mut pulse = Pulse::new(at(1000), TICK);
        for (sent, answered) in beats {
            pulse.on_beat(at(*sent), at(*answered));
        }
        pulse.heard()
    }

    /// Hazard 58: what is not proven does not count.
    #[test]
    fn a_beat_counts_once_another_one_was_sent_half_a_tick_after_its_answer() {
        assert_eq!(pulse(&[]), at(1000));
        assert_eq!(pulse(&[(2000, 2010)]), at(1000), "nobody has asked the follower since");
        assert_eq!(pulse(&[(2000, 2010), (2400, 2410)]), at(1000), "too soon");
        assert_eq!(pulse(&[(2000, 2010), (2400, 2410), (2510, 2520)]), at(2000));
        assert_eq!(pulse(&[(2000, 2300), (2510, 2520)]), at(1000), "its answer was late");
        assert_eq!(pulse(&[(2000, 2300), (2810, 9000)]), at(2000));
    }

    #[test]
    fn it_goes_on_with_the_youngest_beat_that_counts() {
        let beats: Vec<_> = (0..50).map(|n| (2000 + n * 200, 2005 + n * 200)).collect();
        let heard = pulse(&beats);
        let (last, _) = beats[49];
        assert!(last - u64::try_from(heard.boot.as_millis()).unwrap() <= 800, "{heard:?} at {last}");
    }

    /// However many beats are too close to each other, the first of them stay until they count.
    #[test]
    fn beats_that_come_too_fast_do_not_displace_each_other() {
        let mut beats: Vec<_> = (0..100).map(|n| (2000 + n, 2000 + n)).collect();
        beats.push((2700, 2710));
        assert!(pulse(&beats).boot >= at(2000).boot);
    }
}
