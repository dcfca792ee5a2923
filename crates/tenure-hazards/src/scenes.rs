//! The scenes, by number. One file each.

mod s01_get_then_set;
mod s02_no_end;
mod s03_setnx_expire;
mod s04_stamp;
mod s05_blind_del;
mod s06_get_del;
mod s07_watch;
mod s08_too_long;
mod s09_watchdog;
mod s10_hour;
mod s11_failover;
mod s12_amnesia;
mod s13_clock;
mod s14_late_write;
mod s15_late_answer;
mod s16_halves;
mod s17_read_write_back;
mod s18_herd;
mod s19_session;
mod s20_script;
mod schedules;

use crate::scene::Scene;

/// All of them.
pub fn all() -> Vec<&'static dyn Scene> {
    vec![
        &s01_get_then_set::GetThenSet,
        &s02_no_end::NoEnd,
        &s03_setnx_expire::SetnxExpire,
        &s04_stamp::Stamp,
        &s05_blind_del::BlindDel,
        &s06_get_del::GetDel,
        &s07_watch::Watch,
        &s08_too_long::TooLong,
        &s09_watchdog::Watchdog,
        &s10_hour::Hour,
        &s11_failover::Failover,
        &s12_amnesia::Amnesia,
        &s13_clock::ClockSteps,
        &s14_late_write::LateWrite,
        &s15_late_answer::LateAnswer,
        &s16_halves::Halves,
        &s17_read_write_back::ReadWriteBack,
        &s18_herd::Herd,
        &s19_session::Session,
        &s20_script::Script,
    ]
}
