//! The clock by which leases in the file end.

use std::{fs, time::Duration};

use tenure_core::{Host, Moment};

/// Points in time in the file are on this clock; they mean nothing under another id.
pub(crate) struct LeaseClock {
    boot: Option<String>,
    /// By how much this process's boot clock is ahead of the machine's (a time namespace).
    shift: Option<Shift>,
}

/// Seconds, which may be negative, and nanoseconds, which are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shift {
    seconds: i64,
    nanos: u32,
}

impl LeaseClock {
    pub(crate) fn new() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        Self { boot: boot.map(|id| id.trim().to_owned()).filter(|id| !id.is_empty()), shift: shift() }
    }

    /// Why this clock is refused, if another process would count on another one.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        // Other systems have neither boot ids nor time namespaces, and count by the wall clock.
        if self.boot.is_none() && cfg!(target_os = "linux") {
            return Some(
                "the id of this boot cannot be read from /proc/sys/kernel/random, and without it leases cannot be counted: \
                 mount the whole of /proc (systemd: without ProcSubset=pid), or use a store with a server",
            );
        }
        self.shift.is_none().then_some(
            "this process is outside the time namespace that it made, and its boot clock cannot be compared; start it \
             with `unshare --fork`",
        )
    }

    /// Whether this process reads another boot clock than the machine's.
    pub(crate) fn is_shifted(&self) -> bool {
        self.shift.is_some_and(|shift| shift != Shift::default())
    }

    /// Another id: perhaps another boot.
    pub(crate) fn id(&self) -> &str {
        self.boot.as_deref().unwrap_or("wall")
    }

    /// Without a boot id the wall clock is the only one that all processes of all boots share.
    pub(crate) fn now(&self, host: &dyn Host) -> Moment {
        let now = host.now();
        if self.boot.is_none() {
            return Moment { boot: now.wall, wall: now.wall };
        }
        Moment { boot: self.shift.unwrap_or_default().undone(now.boot), ..now }
    }
}

impl Shift {
    /// As in `/proc/self/timens_offsets`: clock, seconds, nanoseconds.
    fn read(offsets: &str) -> Self {
        let line = offsets.lines().find_map(|line| line.strip_prefix("boottime"));
        let mut numbers = line.unwrap_or_default().split_whitespace();
        let seconds = numbers.next().and_then(|n| n.parse().ok()).unwrap_or(0);
        Self { seconds, nanos: numbers.next().and_then(|n| n.parse().ok()).unwrap_or(0) }
    }

    /// What the machine's clock shows when this process's shows `boot`.
    fn undone(self, boot: Duration) -> Duration {
        let seconds = Duration::from_secs(self.seconds.unsigned_abs());
        let nanos = Duration::from_nanos(self.nanos.into());
        let machine = if self.seconds < 0 {
            (boot + seconds).checked_sub(nanos)
        } else {
            boot.checked_sub(seconds + nanos)
        };
        // OK: a host whose clock is younger than the namespace does not read this clock at all.
        machine.unwrap_or(boot)
    }
}

/// The shift of this process's time namespace; `None` if the kernel shows that of another namespace.
fn shift() -> Option<Shift> {
    // The kernel shows the offsets for children. Right after `unshare` these are in another namespace.
    let namespace = |name| fs::read_link(format!("/proc/self/ns/{name}")).ok();
    if namespace("time") != namespace("time_for_children") {
        return None;
    }
    Some(Shift::read(&fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default()))
}

pub(crate) fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_namespace_is_read() {
        let read = |seconds, nanos| Shift { seconds, nanos };
        assert_eq!(Shift::read(""), read(0, 0), "an older kernel");
        assert_eq!(
            Shift::read("monotonic           7         0\nboottime            0         0\n"),
            read(0, 0)
        );
        assert_eq!(Shift::read("monotonic 0 0\nboottime      86400         0\n"), read(86_400, 0));
        assert_eq!(Shift::read("boottime -2 500000000\n"), read(-2, 500_000_000));
    }

    /// The kernel adds both parts: -2 s and half a second are one and a half seconds back.
    #[test]
    fn the_offset_is_taken_off_again() {
        let undone = |seconds, nanos| Shift { seconds, nanos }.undone(Duration::from_secs(100)).as_millis();
        assert_eq!([undone(0, 0), undone(60, 0), undone(-60, 0)], [100_000, 40_000, 160_000]);
        assert_eq!([undone(1, 500_000_000), undone(-2, 500_000_000)], [98_500, 101_500]);
        assert_eq!(undone(101, 0), 100_000, "a clock of a test");
    }
}
