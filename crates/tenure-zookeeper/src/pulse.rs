//! `Pulse`: the latest time at which the leader has certainly heard of a session.

use std::{collections::VecDeque, time::Duration};

use tenure_core::Moment;

/// The latest time at which the leader has provably heard of our session. It ends the session one timeout
/// after it last heard of it.
///
/// # Why a write does not say it
/// Only the leader ends sessions. A follower that serves us answers pings and reads by itself, and tells its
/// leader of us only when that asks it, every half tick, in its stream of messages. Writes and `sync`s that
/// it passes on tell the leader nothing. The stream may be held up, for as long as the leader bears with the
/// follower (`syncLimit`): then a write is still carried out while the leader counts from what it heard
/// before. So we do not assume how long that takes, but prove it from the order of messages.
///
/// # Proof
/// A *beat* is a `sync`: the follower notes us, passes it on to the leader, and answers when the leader's
/// answer has come back. Let beat A be answered, then beat B be sent at least half a tick later, and then a
/// write W be sent after the answer to B; all three succeed.
///
/// * **Over one connection**, a follower has one leader. Between its answers to A and B the leader has put a
///   question into the stream to our follower, as it does so every half tick. The stream keeps order: the
///   question arrived after the leader's answer to A, so when we had been noted for A, and before its answer
///   to B. The follower answers it immediately. W takes the same way to the leader behind that answer. So when W
///   is carried out, the leader has heard of us after A was sent.
/// * **If the connection changed in between**, the new one was accepted by asking the leader, which thereby
///   heard of us, after A was answered.
///
/// Either way the leader that carried out W, with the session alive and a quorum behind it, lets it live for
/// one time-out from when A was *sent* at least (it rounds up to a tick). One that is elected later starts
/// all time-outs anew, and after W: it asks a quorum first, which has W. One that was deposed before cannot
/// carry out W. The session itself was made by a leader after we began to connect, which counts as a first A.
///
/// # What is assumed
/// The leader asks no more than an eighth of a tick late while it answers others, clocks run at the same rate
/// (A1: the drift), and the tick of the URL is no shorter than the servers'. All members serve sessions of
/// the same length.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// When the last beat was sent of which the leader has heard.
    heard: Moment,
    /// Beats since then: sent, answered.
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

    /// Of what the leader has heard that carries out a write sent from now on.
    pub(crate) fn heard(&self) -> Moment {
        self.heard
    }
}

/// There are four in a tick, and those of the last tick are needed.
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

    /// Hazard 58: what is not proven is not believed.
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
