//! The clock by which leases in the file end.

use tenure_core::{Host, Moment};

/// Points in time in the file count on this clock; they mean nothing under another id.
pub(crate) struct LeaseClock {
    boot: Option<String>,
}

impl LeaseClock {
    pub(crate) fn new() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        Self { boot: boot.map(|id| id.trim().to_owned()).filter(|id| !id.is_empty()) }
    }

    /// False where there should be a boot id and is none: another process would count on another clock.
    pub(crate) fn is_known(&self) -> bool {
        self.boot.is_some() || !cfg!(target_os = "linux")
    }

    /// Another id: another boot, and every lease of the former one is over.
    pub(crate) fn id(&self) -> &str {
        self.boot.as_deref().unwrap_or("wall")
    }

    /// Without a boot id the wall clock is the only one that all processes of all boots share.
    pub(crate) fn now(&self, host: &dyn Host) -> Moment {
        let now = host.now();
        if self.boot.is_some() { now } else { Moment { boot: now.wall, wall: now.wall } }
    }
}
