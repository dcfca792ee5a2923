//! `Variant`: known ways to get a lock wrong, which can be switched on to show that the checkers bite.
//!
//! Each one leaves out or turns round a single rule. Without the feature `fatal-variants`, which nothing published has,
//! [`is_on`](Variant::is_on) is the constant `false` and the wrong branch is not even compiled in.

/// One rule broken on purpose; the hole it opens is in safety.md S3.0 and S5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Variant {
    /// Redlock takes the largest token of one round and raises nobody (S5 `redlock.no_second_round`).
    NoSecondRound,
    /// An answer that comes after the end of validity lets in all the same (H3.2, hazards 12 and 47).
    NoRecheck,
    /// An attempt that gave grants back asks again under its old owner (H3.4, hazard 44).
    OwnerReused,
    /// A quorum is a majority of the nodes that answered (H3.5, hazard 43).
    QuorumOfReachable,
    /// A node raises its counter for whoever asks (H3.3).
    RaiseUnguarded,
    /// The quorum is raised to the first token of a block instead of its end (H3.6).
    RaiseToFirst,
    /// A server that restarted or was promoted grants at once.
    NoRestartGuard,
    /// A counter that was lost starts anew instead of at the floor (H3.1).
    CountersLost,
    /// Counters are floored with the server's time only when the gate opens: a server that was rewound under the same run
    /// and history counts the same tokens twice.
    FloorAtGateOnly,
    /// A waiter enters on the message that its turn has come (H1.1).
    EnterOnMessage,
    /// Validity counts from the answer instead of the request (H2.2, hazard 16).
    ValidityFromReply,
    /// A renewal that succeeds after the loss mends it (H2.3).
    LateRenewalResurrects,
    /// An owner that holds already is granted again without being extended (H1.3).
    RetryNotExtended,
    /// An owner that holds already is granted again with the token it had (H1.4, H1.5).
    TokenNotMinted,
    /// A release takes the lock from whoever holds it (hazard 5).
    BlindRelease,
    /// A renewal takes a lock that is gone again (hazard 23).
    RenewalRecreates,
    /// A promoted server is believed after it has been up for long (model `guard.uptime_shortcut_for_promoted`).
    UptimeForPromoted,
    /// A missing record is always taken as that of an unused server (model `guard.missing_is_unused`).
    MissingIsUnused,
    /// A backlog that ran out ends a wait (model `guard.backlog_rule_clears_a_wait`).
    BacklogClearsWait,
    /// A hand-off counts for nothing until it is entered (model `shared.handed_places_not_counted`).
    HandedNotCounted,
    /// Only the limit of who claims counts, not those of the holders (model `shared.limit of the claim only`).
    LimitOfClaimOnly,
    /// All waiters that share are handed the lock, beyond the limit (model `shared.handoff_to_all_shared`).
    HandOffToAllShared,
    /// A waiter asks again only when it is told to (H1.6, H1.7).
    NoTimers,
    /// A server that may have forgotten leases waits for an eighth of the longest (H4.5, model `guard.ttl above max_ttl`).
    WaitTooShort,
    /// A promoted server waits for the longest lease only, not for what the master before it still grants.
    NoDemotionWait,
    /// A server that has been up for long is taken for one that served this address all the time.
    UnusedByUptime,
}

impl Variant {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::NoSecondRound,
        Self::NoRecheck,
        Self::OwnerReused,
        Self::QuorumOfReachable,
        Self::RaiseUnguarded,
        Self::RaiseToFirst,
        Self::NoRestartGuard,
        Self::CountersLost,
        Self::FloorAtGateOnly,
        Self::EnterOnMessage,
        Self::ValidityFromReply,
        Self::LateRenewalResurrects,
        Self::RetryNotExtended,
        Self::TokenNotMinted,
        Self::BlindRelease,
        Self::RenewalRecreates,
        Self::UptimeForPromoted,
        Self::MissingIsUnused,
        Self::BacklogClearsWait,
        Self::HandedNotCounted,
        Self::LimitOfClaimOnly,
        Self::HandOffToAllShared,
        Self::NoTimers,
        Self::WaitTooShort,
        Self::NoDemotionWait,
        Self::UnusedByUptime,
    ];

    /// Whether this thread breaks that rule.
    #[cfg(feature = "fatal-variants")]
    pub fn is_on(self) -> bool {
        switch::ON.get() == Some(self)
    }

    /// Whether this thread breaks that rule: never.
    #[cfg(not(feature = "fatal-variants"))]
    pub const fn is_on(self) -> bool {
        false
    }

    /// Has this thread break one rule from here on, or none.
    #[cfg(feature = "fatal-variants")]
    pub fn switch(to: Option<Self>) {
        switch::ON.set(to);
    }
}

#[cfg(feature = "fatal-variants")]
mod switch {
    thread_local! {
        pub(super) static ON: std::cell::Cell<Option<super::Variant>> = const { std::cell::Cell::new(None) };
    }
}
