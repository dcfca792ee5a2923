//! A lock in rows answers as the ledger does that keeps its whole queue in memory.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use proptest::prelude::*;
use tempfile::TempDir;
use tenure_core::{
    Backend, BackendError, BreakScope, Claim, ClaimAnswer, Grant, Host, Label, LockName, Mode, OwnerId,
    Priority, ProcessId, WaitMode,
};
use tenure_ledger::{Change, Ledger, LedgerError, Rules};
use tenure_sqlite::{Config, Sqlite};
use tenure_testkit::host::{PausedHost, pass};

/// More clients than places that are read at first, and several times so.
const CLIENTS: usize = 40;
const TTL: Duration = Duration::from_secs(5);

/// As the file has them: behind 32 others a waiter looks rarely, and has longer to enter.
fn rules() -> Rules {
    Rules { far: Some(32), rare_turns: 2, ..Rules::default() }
}

#[derive(Clone, Debug)]
enum Step {
    Claim {
        client: usize,
        wait: WaitMode,
    },
    /// Many at once, so that queues become long, and die together.
    All,
    Renew {
        client: usize,
    },
    Release {
        client: usize,
    },
    Break,
    Pass {
        ms: u64,
    },
}

fn steps() -> impl Strategy<Value = Step> {
    let client = 0..CLIENTS;
    let wait = prop_oneof![8 => Just(WaitMode::Turn), 4 => Just(WaitMode::No), 1 => Just(WaitMode::Wake)];
    prop_oneof![
        8 => (client.clone(), wait).prop_map(|(client, wait)| Step::Claim { client, wait }),
        1 => Just(Step::All),
        2 => client.clone().prop_map(|client| Step::Renew { client }),
        5 => client.prop_map(|client| Step::Release { client }),
        1 => Just(Step::Break),
        3 => (0u64..2500).prop_map(|ms| Step::Pass { ms }),
        1 => Just(Step::Pass { ms: 6000 }),
    ]
}

fn modes() -> impl Strategy<Value = Vec<Mode>> {
    let mode = prop_oneof![
        2 => Just(Mode::Exclusive),
        2 => Just(Mode::READ),
        1 => (1u32..5).prop_flat_map(|limit| (1..=limit).prop_map(move |permits| {
            let [limit, permits] = [limit, permits].map(|number| NonZeroU32::new(number).unwrap());
            Mode::several(limit, permits).unwrap()
        })),
    ];
    // Of one mode, or of all.
    prop_oneof![mode.clone().prop_map(|mode| vec![mode; CLIENTS]), prop::collection::vec(mode, CLIENTS)]
}

/// Of one class, or of all.
fn classes() -> impl Strategy<Value = Vec<Priority>> {
    let class = prop::sample::select(Priority::ALL.to_vec());
    prop_oneof![Just(vec![Priority::Normal; CLIENTS]), prop::collection::vec(class, CLIENTS)]
}

struct Twins {
    folder: TempDir,
    host: Arc<PausedHost>,
    name: LockName,
    ledger: Ledger,
    owners: Vec<(OwnerId, Mode)>,
    classes: Vec<Priority>,
    attempts: u128,
    /// It remembers the rows that it wrote last, and is not asked by those who wait.
    lasting: Sqlite,
}

impl Twins {
    fn new(modes: Vec<Mode>, classes: Vec<Priority>) -> Self {
        let process = ProcessId::from_random([7; 8]);
        let owners = (0_u128..).zip(modes);
        let owners = owners.map(|(n, mode)| (OwnerId::from_random(process, n.to_be_bytes()), mode));
        let (folder, host) = (tempfile::tempdir().unwrap(), PausedHost::new(1));
        Self {
            lasting: Sqlite::new(Config::new(folder.path().join("locks.db")), host.clone()),
            folder,
            host,
            name: LockName::new("job").unwrap(),
            ledger: Ledger::new(0),
            owners: owners.collect(),
            classes,
            attempts: 1000,
        }
    }

    /// A handle that remembers nobody: it makes every claim in a transaction, which keeps the place as the ledger does.
    fn rows(&self) -> Sqlite {
        Sqlite::new(Config::new(self.folder.path().join("locks.db")), self.host.clone())
    }

    fn whole<A>(&mut self, verb: impl FnOnce(&mut Ledger, &Rules) -> Change<A>) -> A {
        verb(&mut self.ledger, &rules()).answer
    }

    async fn play(&mut self, step: &Step) {
        let now = self.host.now();
        match *step {
            Step::Claim { client, wait } => self.claim(client, wait).await,
            Step::All => {
                for client in 0..CLIENTS {
                    self.claim(client, WaitMode::Turn).await;
                }
            }
            Step::Renew { client } => {
                let (owner, name) = (self.owners[client].0, self.name.clone());
                let token = tenure_core::FencingToken::new(1);
                let grant = Grant::new(name, owner, token, TTL);
                let rows = self.lasting.renew(&[grant]).await.remove(0).unwrap();
                assert_eq!(rows, self.whole(|ledger, rules| ledger.renew(now, rules, owner, TTL)));
            }
            Step::Release { client } => {
                let owner = self.owners[client].0;
                let rows = self.lasting.release(&self.name, owner).await.unwrap();
                assert_eq!(rows, self.whole(|ledger, rules| ledger.release(now, rules, owner)));
                // Owners are not used twice.
                self.attempts += 1;
                self.owners[client].0 = OwnerId::from_random(owner.process(), self.attempts.to_be_bytes());
            }
            Step::Break => {
                let rows = self.rows().break_lock(&self.name, BreakScope::Leases).await.unwrap();
                assert_eq!(
                    rows,
                    self.whole(|ledger, rules| ledger.break_lock(now, rules, BreakScope::Leases).unwrap())
                );
            }
            Step::Pass { ms } => pass(Duration::from_millis(ms)).await,
        }
        let rows = self.rows().inspect(&self.name).await.unwrap();
        assert_eq!(rows, self.ledger.view(self.name.clone(), self.host.now()), "after {step:?}");
    }

    async fn claim(&mut self, client: usize, wait: WaitMode) {
        let (owner, mode) = self.owners[client];
        let label = Arc::new(Label::new("host", 1, "user", "command"));
        let claim = Claim::new(self.name.clone(), owner, mode, TTL).with_label(label).with_wait(wait);
        let claim = if wait == WaitMode::Wake { claim } else { claim.with_priority(self.classes[client]) };
        let rows = match wait {
            WaitMode::No => self.lasting.claim(&claim).await,
            _ => self.rows().claim(&claim).await,
        };
        let whole = self.ledger.claim(self.host.now(), &rules(), &claim);
        assert_same(rows, whole.map(|change| change.answer));
    }
}

fn assert_same(rows: Result<ClaimAnswer, BackendError>, whole: Result<ClaimAnswer, LedgerError>) {
    let (rows, whole) = (rows.unwrap(), whole.unwrap());
    match (&rows, &whole) {
        (
            ClaimAnswer::Queued { ahead, retry_after, holder },
            ClaimAnswer::Queued { ahead: expected, retry_after: sooner, holder: same },
        ) => {
            // Behind 32 others the number may be too large where somebody gave up.
            assert!(
                if *expected < 32 { ahead == expected } else { ahead >= expected },
                "{rows:?}, {whole:?}"
            );
            assert_eq!(holder, same);
            // The death of a place that is far from the front is no reason to ask.
            assert!(
                retry_after >= sooner && *retry_after <= Rules::default().retry_max,
                "{rows:?}, {whole:?}"
            );
        }
        (ClaimAnswer::Busy { holder, .. }, ClaimAnswer::Busy { holder: same, .. }) => {
            assert_eq!(holder, same)
        }
        _ => assert_eq!(rows, whole),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// L1, L2, L7: only the front of the queue is read, and the answers are those of the whole queue.
    #[test]
    fn rows_and_the_whole_ledger_answer_alike(
        modes in modes(), classes in classes(), steps in prop::collection::vec(steps(), 1..50)
    ) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut twins = Twins::new(modes, classes);
            for step in &steps {
                twins.play(step).await;
            }
        });
    }
}

/// L6: the last of the places that are read first had ended, and its owner took it anew. It was taken for the old one, so the
/// verb did not look behind it, where the next owner waited: the lock was not handed over until that one asked.
#[tokio::test(start_paused = true)]
async fn an_owner_that_takes_its_place_anew_does_not_hide_those_behind() {
    let mut twins = Twins::new(vec![Mode::Exclusive; CLIENTS], vec![Priority::Normal; CLIENTS]);
    let claim = |client| Step::Claim { client, wait: WaitMode::Turn };
    let (first, last) = (Step::Pass { ms: 4000 }, Step::Pass { ms: 2000 });
    for step in [claim(1), claim(2), claim(3), claim(4), claim(0), first, claim(5), last, claim(0)] {
        twins.play(&step).await;
    }
}

/// L7: the row of a place that is taken anew in another mode was removed, and no other one was written.
#[tokio::test(start_paused = true)]
async fn an_owner_that_asks_in_another_mode_is_queued_anew() {
    let mut twins = Twins::new(vec![Mode::Exclusive; CLIENTS], vec![Priority::Normal; CLIENTS]);
    let claim = |client| Step::Claim { client, wait: WaitMode::Turn };
    for client in [0, 1, 2] {
        twins.play(&claim(client)).await;
    }
    twins.owners[1].1 = Mode::READ;
    twins.play(&claim(1)).await;
    twins.owners[2].1 = Mode::READ;
    for step in [claim(2), claim(1), Step::Release { client: 0 }, claim(1), claim(2)] {
        twins.play(&step).await;
    }
}
