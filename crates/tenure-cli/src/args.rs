//! The command line: names, flags and their meaning are a contract.

use std::{ffi::OsString, num::NonZeroU32, str::FromStr, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum, builder::RangedU64ValueParser, value_parser};
use jiff::tz::TimeZone;
use tenure::{
    LockName, OwnerId, Priority,
    backend::{Memo, Timing},
    view::Mode,
};

use crate::{
    calendar::{Period, zone},
    exit::Stop,
};

/// What follows the help of a verb: its examples, and its exit codes.
macro_rules! after_help {
    ($examples:literal) => {
        after_help!(
            $examples,
            "\
Exit codes:
  that of the command   it ran, and the lock was held throughout (128 + n if signal n ended it)
  1, or -E              another owner holds the lock; of `doctor`: there are warnings or problems
  64                    wrong usage
  69                    the store is unavailable, damaged, read-only, or of a newer version
  70                    the system failed, or tenure has a bug
  79                    the lease was lost, or there was nothing to renew or to unlock
  126, 127              the command cannot be executed, or was not found"
        )
    };
    ($examples:literal, $rest:expr) => {
        concat!("Examples:\n", $examples, "\n\n", $rest)
    };
}

/// The help, with its verbs in groups. A test holds it to the verbs.
const HELP: &str = "\
{about-with-newline}
{usage-heading} {usage}

Run:
  run          Run a command while holding a lock
  lead         Run a command on one host of many; start it again after a lost lead
  attach       Run a command under a lease that `lock` took; renew it, and release it at the end

Inspect:
  ls           List the locks that are held or waited for
  show         Show who holds a lock and who waits
  watch        Show the locks as they change: a table, or JSON lines in a pipe

Scripts:
  hold         Hold a lock for the rest of a script: eval \"$(tenure hold NAME || echo exit 70)\"
  lock         Take a lease for a script: prints owner and token as JSON; nothing renews it
  renew        Renew a lease taken by `lock`
  unlock       Release a lease taken by `lock`
  ownership    Print the SQL by which a transaction commits only while the run around it has the lock

Maintenance:
  break        Take a lock from its holders; they may overlap with the next one until they stop
  doctor       Check the store: what weakens its promises, and what to do about it
  bench        Measure how fast and how fair the store is, with locks of its own
  completions  Print completions for a shell
  help         Print this message or the help of a verb

Options:
{options}

{after-help}";

const RUN_EXAMPLES: &str = after_help!(
    "  tenure run backup -- ./backup.sh                      Wait for the lock, then run
  tenure run -n deploy -- ./deploy.sh                   Fail immediately if it is held
  tenure run --every 1h report -- ./report.sh           Once an hour over all hosts
  tenure run --url redis://db job -- ./job.sh           With the locks of all hosts in a Redis"
);

const DOCTOR_HELP: &str = after_help!(
    "  tenure doctor                                         The store of this host
  tenure doctor --url redis://db --json                 Findings as JSON",
    "\
Exit codes:
  0     all is well, or there are notes only
  1     there are warnings or problems
  64    wrong usage
  69    the store cannot be reached, or has no record to adopt"
);

const BENCH_HELP: &str = after_help!(
    "  tenure bench --url redis://db                         Six parts, 2 s each
  tenure bench --waiters 64 --duration 10s --json       More waiters, for longer, as JSON",
    "\
Parts:
  round trip       one request: to look at a free lock
  cycle            acquire and release a lock without contention: one task, then 64 tasks with 64 locks
  change of owner  two, then N waiters pass one lock on, each as soon as it has it
  waiters hold     N waiters hold one lock for 1 ms each; the timer may make 2 ms of it
Jain's index says how evenly turns were shared: 1 if all had as many, 1/N if one had all.
A waiter starved if it had no turn while another had two."
);

/// Whether this build is slower than the one that `cargo install` makes.
pub(crate) const IS_UNOPTIMISED: bool = cfg!(debug_assertions);

const VERSION: &str = match IS_UNOPTIMISED {
    true => concat!(env!("CARGO_PKG_VERSION"), " (unoptimised build)"),
    false => env!("CARGO_PKG_VERSION"),
};

/// Distributed locks as leases: a `flock` for a cluster
#[derive(Parser, Debug)]
#[command(name = "tenure", version = VERSION, propagate_version = true, max_term_width = 100, help_template = HELP, after_help = after_help!(
    "  tenure run deploy -- ./deploy.sh                      Run a command while holding the lock `deploy`
  tenure run -w 5m deploy -- ./deploy.sh                Give up after 5 minutes
  tenure show deploy                                    Who holds it, and who waits"
))]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Args, Debug)]
pub(crate) struct Global {
    /// The store of locks, such as sqlite:/var/lib/app/locks.db [default: TENURE_URL, a file of settings, or a file of
    /// this account]
    #[arg(long, global = true, help_heading = "Global", value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Print errors only
    #[arg(short, long, global = true, help_heading = "Global")]
    pub(crate) quiet: bool,
    /// Print progress; -vv for debug logs
    #[arg(short, long, global = true, help_heading = "Global", action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Verb {
    /// Run a command while holding a lock
    Run(Run),
    /// Run a command on one host of many; start it again after a lost lead
    Lead(Lead),
    /// List the locks that are held or waited for
    Ls(Ls),
    /// Show who holds a lock and who waits
    Show(Show),
    /// Show the locks as they change: a table, or JSON lines in a pipe
    Watch(WatchArgs),
    /// Take a lock from its holders; they may overlap with the next one until they stop
    Break(Break),
    /// Check the store: what weakens its promises, and what to do about it
    Doctor(Doctor),
    /// Measure how fast and how fair the store is, with locks of its own
    Bench(Bench),
    /// Hold a lock for the rest of a script: eval "$(tenure hold NAME || echo exit 70)"
    Hold(Hold),
    /// Take a lease for a script: prints owner and token as JSON; nothing renews it
    Lock(LockArgs),
    /// Renew a lease taken by `lock`
    Renew(Renew),
    /// Release a lease taken by `lock`
    Unlock(Unlock),
    /// Print the SQL by which a transaction commits only while the run around it has the lock
    Ownership(OwnershipArgs),
    /// Run a command under a lease that `lock` took; renew it, and release it at the end
    Attach(Attach),
    /// Print completions for a shell
    #[command(after_help = after_help!(
        "  tenure completions bash >/etc/bash_completion.d/tenure
  tenure completions zsh >~/.zfunc/_tenure"
    ))]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// How long the lock is held, whatever the command does.
#[derive(Args, Clone, Copy, Default, Debug)]
pub(crate) struct HoldArgs {
    /// Hold the lock for at least this long
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = "Lease")]
    pub(crate) min_hold: Option<Duration>,
    /// Stop the command after this long
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = "Lease")]
    pub(crate) max_hold: Option<Duration>,
    /// How long the command may take to end after TERM, before KILL [default: ttl/4, at most 5s]
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = "Lease")]
    pub(crate) grace: Option<Duration>,
    /// If the command does not end well, keep the lock for at least this long afterwards: what it began on other hosts
    /// or servers may go on
    #[arg(long, value_name = "DUR", value_parser = ttl, allow_hyphen_values = true, help_heading = "Lease")]
    pub(crate) linger: Option<Timing>,
    #[command(flatten)]
    pub(crate) death: DeathArgs,
}

/// What becomes of the lock if `tenure` is killed.
#[derive(Args, Clone, Copy, Default, Debug)]
pub(crate) struct DeathArgs {
    /// If tenure is killed, free the lock as soon as all that the command started has ended, or leave it to the ttl
    #[arg(
        long,
        value_name = "yes|no",
        value_enum,
        hide_possible_values = true,
        default_value_t,
        help_heading = "Lease"
    )]
    pub(crate) free_at_death: FreeAtDeath,
}

impl DeathArgs {
    /// Whether a death frees the lock.
    pub(crate) fn frees(self) -> bool {
        self.free_at_death == FreeAtDeath::Yes
    }
}

/// Its answers.
#[derive(ValueEnum, Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) enum FreeAtDeath {
    #[default]
    Yes,
    No,
}

/// How one lock is held.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModeArgs {
    /// Share the lock with others that share it: many readers, one writer
    #[arg(short = 's', long, conflicts_with = "slots", help_heading = "Locks")]
    shared: bool,
    /// Let holders run at the same time while they take no more than N slots (semaphore)
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..), help_heading = "Locks")]
    slots: Option<u32>,
    /// How many of the slots this one takes [default: 1]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..), requires = "slots", help_heading = "Locks")]
    take: Option<u32>,
}

/// The class in the queue.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct PriorityArgs {
    /// Wait before waiters of lower classes: low, normal, high or urgent. Of nine grants in a row, one goes to the
    /// waiter that has waited longest
    #[arg(long, value_name = "CLASS", value_parser = Priority::from_str, default_value = "normal", hide_default_value = true, help_heading = "Waiting")]
    pub(crate) priority: Priority,
}

impl ModeArgs {
    /// # Errors
    /// It takes more slots than there are.
    pub(crate) fn mode(&self) -> Result<Mode, Stop> {
        let Some(slots) = self.slots.and_then(NonZeroU32::new) else {
            return Ok(if self.shared { Mode::READ } else { Mode::Exclusive });
        };
        let take = self.take.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
        let refused = || Stop::usage(format!("--take {take}: there are {slots} slots (--slots)"));
        Mode::several(slots, take).ok_or_else(refused)
    }
}

#[derive(Args, Debug)]
#[command(
    after_help = RUN_EXAMPLES,
    override_usage = "tenure run [OPTIONS] <NAME> [--] <COMMAND>...\n       tenure run [OPTIONS] --any <NAMES> -- <COMMAND>..."
)]
pub(crate) struct Run {
    /// Do not wait: fail immediately if the lock is held
    #[arg(short = 'n', long = "nonblock", conflicts_with = "wait", help_heading = "Waiting")]
    pub(crate) nonblock: bool,
    /// Wait for at most this long [default: indefinitely]
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = "Waiting")]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) class: PriorityArgs,
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
    /// Hold this lock as well, all or none; may be repeated
    #[arg(long, value_name = "NAME", value_parser = name_of_several, conflicts_with_all = ["shared", "slots"], help_heading = "Locks")]
    pub(crate) also: Vec<LockName>,
    /// Instead of NAME: hold one of these locks, the first that is free; names with commas between
    #[arg(long, value_name = "NAMES", value_parser = name_of_several, value_delimiter = ',', conflicts_with_all = ["also", "shared", "slots"], help_heading = "Locks")]
    pub(crate) any: Vec<LockName>,
    /// Wait only until a newer run of --latest or --replace waits: it takes this one's place
    #[arg(long, group = "skips", conflicts_with_all = ["replace", "nonblock", "priority", "shared", "slots", "also", "any", "schedule"], help_heading = "Waiting")]
    pub(crate) latest: bool,
    /// The same, and ask the holder to stop: if it runs with --replace too, its command gets a TERM
    #[arg(long, group = "skips", conflicts_with_all = ["latest", "nonblock", "priority", "shared", "slots", "also", "any", "schedule"], help_heading = "Waiting")]
    pub(crate) replace: bool,
    /// Length of the lease: after a crash the lock is free this much later [default: 10s, or the
    /// store's maximum]
    #[arg(long, value_name = "DUR", value_parser = ttl, allow_hyphen_values = true, help_heading = "Lease")]
    pub(crate) ttl: Option<Timing>,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// Run once per interval over all hosts: skip if the last successful run began less than this long ago. A run may
    /// begin a tenth of it early, at most 60s; the next one is due that much later
    #[arg(long, value_name = "DUR", value_parser = interval, allow_hyphen_values = true, groups = ["schedule", "skips"], conflicts_with_all = ["shared", "slots", "also", "any"], help_heading = "Interval")]
    pub(crate) every: Option<Duration>,
    /// Run once in each hour, day, week or DUR of the calendar over all hosts: skip if a run in it succeeded
    #[arg(long, value_name = "hour|day|week|DUR", value_parser = Period::read, groups = ["schedule", "skips"], conflicts_with_all = ["every", "shared", "slots", "also", "any"], help_heading = "Interval")]
    pub(crate) once_per: Option<Period>,
    /// The time zone of --once-per, such as Europe/Berlin [default: that of this host]
    #[arg(long, value_name = "ZONE", value_parser = zone, requires = "once_per", help_heading = "Interval")]
    pub(crate) tz: Option<TimeZone>,
    /// Count a run of --every or --once-per from its start, even if it fails
    #[arg(long, requires = "schedule", help_heading = "Interval")]
    pub(crate) even_if_failed: bool,
    /// Exit code if a run of --every, --once-per, --latest or --replace was skipped
    #[arg(long, value_name = "CODE", default_value_t = 0, requires = "skips", help_heading = "Interval")]
    pub(crate) skip_exit_code: u8,
    /// Exit code if the lock was not acquired
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::CONFLICT, help_heading = "Waiting")]
    pub(crate) conflict_exit_code: u8,
    /// Exit code if the lease was lost
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::LOST, help_heading = "Lease")]
    pub(crate) lost_exit_code: u8,
    /// Run the command through `sh -c`
    #[arg(short = 'c', long)]
    pub(crate) command: bool,
    /// Name of the lock: up to 512 bytes of text, such as deploy or db/backup
    #[arg(value_name = "NAME")]
    pub(crate) name: OsString,
    /// The command and its arguments: everything after NAME, or after `--`
    #[arg(
        value_name = "COMMAND",
        required_unless_present = "any",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) argv: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = after_help!(
    "  eval \"$(tenure hold backup || echo exit 70)\"         Hold it until the script ends
  eval \"$(tenure hold -n backup || echo exit 70)\"      Exit with 1 if it is held",
    "\
Exit codes, with which the script exits too:
  1, or -E  another owner holds the lock
  64        wrong usage
  69        the store is unavailable, damaged, read-only, or of a newer version
  70        the system failed, or tenure has a bug"
))]
pub(crate) struct Hold {
    /// Do not wait: fail immediately if the lock is held
    #[arg(short = 'n', long = "nonblock", conflicts_with = "wait", help_heading = "Waiting")]
    pub(crate) nonblock: bool,
    /// Wait for at most this long [default: indefinitely]
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = "Waiting")]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) class: PriorityArgs,
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
    /// Length of the lease: after a crash of this host the lock is free this much later [default: 10s, or the
    /// store's maximum]
    #[arg(long, value_name = "DUR", value_parser = ttl, allow_hyphen_values = true, help_heading = "Lease")]
    pub(crate) ttl: Option<Timing>,
    /// Stop the script after this long
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = "Lease")]
    pub(crate) max_hold: Option<Duration>,
    /// How long the script may take to end after TERM, before KILL, if the lease is lost [default: ttl/4, at most 5s]
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = "Lease")]
    pub(crate) grace: Option<Duration>,
    /// Exit code if the lock was not acquired
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::CONFLICT, help_heading = "Waiting")]
    pub(crate) conflict_exit_code: u8,
    /// The process for which the lock is held: this one is the run of its guard
    #[arg(long, hide = true)]
    pub(crate) script: Option<u32>,
    /// Name of the lock
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
}

#[derive(Args, Debug)]
#[command(after_help = after_help!(
    "  tenure lead scheduler -- ./scheduler                  One of many hosts runs it
  tenure lead --proclaim 10.0.0.7:80 web -- ./serve     The others find its address by tenure show"
))]
pub(crate) struct Lead {
    /// Length of the lease: after a crash another host leads this much later [default: 10s, or the
    /// store's maximum]
    #[arg(long, value_name = "DUR", value_parser = ttl, allow_hyphen_values = true, help_heading = "Lease")]
    pub(crate) ttl: Option<Timing>,
    /// How long the command may take to end after TERM, before KILL [default: ttl/4, at most 5s]
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = "Lease")]
    pub(crate) grace: Option<Duration>,
    /// Stop the command after this long, and campaign again: another host leads next, if one waits
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = "Lease")]
    pub(crate) max_hold: Option<Duration>,
    #[command(flatten)]
    pub(crate) death: DeathArgs,
    /// A line for `sh -c` that says whether the leader works: if it fails, the command is stopped, and this host campaigns
    /// again
    #[arg(long, value_name = "CMD", help_heading = "Health")]
    pub(crate) health: Option<OsString>,
    /// From one health check to the next, and how long one may take
    #[arg(
        long,
        value_name = "DUR",
        value_parser = duration,
        allow_hyphen_values = true,
        default_value = "10s",
        requires = "health",
        help_heading = "Health"
    )]
    pub(crate) health_every: Duration,
    /// Text to publish while this host leads, such as its address; `tenure show` shows it
    #[arg(long, value_name = "TEXT", value_parser = memo)]
    pub(crate) proclaim: Option<String>,
    /// Run the command through `sh -c`
    #[arg(short = 'c', long)]
    pub(crate) command: bool,
    /// The election, which is the lock of this name
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) argv: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = after_help!(
    "  tenure ls                                             All locks
  tenure ls deploy/ --json                              Those of one prefix, as JSON"
))]
pub(crate) struct Ls {
    /// Only locks whose name starts with PREFIX
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = after_help!(
    "  tenure show deploy                                    Who holds it, since when, and who waits
  tenure show deploy --json | jq .holders               The same for a script"
))]
pub(crate) struct Show {
    /// Name of the lock: up to 512 bytes of text, such as deploy or db/backup
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = after_help!(
    "  tenure watch                                          A table that follows the locks
  tenure watch deploy/ | jq .name                       Lines of JSON for a script"
))]
pub(crate) struct WatchArgs {
    /// Only locks whose name starts with PREFIX
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Print JSON lines on a terminal too
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = after_help!(
    "  tenure show deploy                                    First see who holds it
  tenure break deploy                                   Then end all its leases"
))]
pub(crate) struct Break {
    /// Only from this holder, whose owner `show` prints; nothing happens if it does not hold the lock
    #[arg(long, value_name = "OWNER", value_parser = owner, conflicts_with = "foreign")]
    pub(crate) owner: Option<OwnerId>,
    /// Also from a client that is not Tenure: its key is deleted, whatever data it is
    #[arg(long)]
    pub(crate) foreign: bool,
    /// Name of the lock: up to 512 bytes of text, such as deploy or db/backup
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
}

#[derive(Args, Debug)]
#[command(after_help = DOCTOR_HELP)]
pub(crate) struct Doctor {
    /// Make this URL's settings (guard, max_ttl) the store's, or its table, after all old leases have expired
    #[arg(long)]
    pub(crate) adopt: bool,
    /// With --adopt, for a larger max_ttl: you say that no client with the smaller one runs or will be started
    #[arg(long, requires = "adopt")]
    pub(crate) raise: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = BENCH_HELP)]
pub(crate) struct Bench {
    /// How long each of the six parts lasts, 10ms to 24h
    #[arg(long, value_name = "DUR", default_value = "2s", value_parser = lasting, allow_hyphen_values = true)]
    pub(crate) duration: Duration,
    /// How many wait for one lock, each with a connection of its own, 2 to 512
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = RangedU64ValueParser::<usize>::new().range(2..=512))]
    pub(crate) waiters: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = after_help!(
    "  lease=$(tenure lock job --ttl 1m)                     Take it; $lease is JSON
  tenure lock job --ttl 1m -w 10s -E 75                 Wait 10 s, else exit 75"
))]
pub(crate) struct LockArgs {
    /// Name of the lock: up to 512 bytes of text, such as deploy or db/backup
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
    #[command(flatten)]
    pub(crate) class: PriorityArgs,
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
    /// Length of the lease
    #[arg(long, value_name = "DUR", value_parser = ttl, allow_hyphen_values = true, help_heading = "Lease")]
    pub(crate) ttl: Timing,
    /// Wait for at most this long [default: indefinitely]
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = "Waiting")]
    pub(crate) wait: Option<Duration>,
    /// Use this owner id (48 hex digits), so that the request can be repeated safely; new for every lease
    #[arg(long, value_name = "OWNER", value_parser = owner)]
    pub(crate) owner: Option<OwnerId>,
    /// Exit code if the lock was not acquired
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::CONFLICT, help_heading = "Waiting")]
    pub(crate) conflict_exit_code: u8,
}

#[derive(Args, Debug)]
#[command(after_help = after_help!(
    "  tenure attach job \"$owner\" -- ./part-two.sh          Go on under a lease of another process
  tenure attach --max-hold 1h job \"$owner\" -- ./x.sh    Stop it after an hour"
))]
pub(crate) struct Attach {
    /// Length of the lease from now, never shortened [default: 10s, or the store's maximum]
    #[arg(long, value_name = "DUR", value_parser = ttl, allow_hyphen_values = true, help_heading = "Lease")]
    pub(crate) ttl: Option<Timing>,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// Exit code if the lease is gone or was lost
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::LOST, help_heading = "Lease")]
    pub(crate) lost_exit_code: u8,
    /// Run the command through `sh -c`
    #[arg(short = 'c', long)]
    pub(crate) command: bool,
    /// Name of the lock: up to 512 bytes of text, such as deploy or db/backup
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
    /// The owner that `lock` printed
    #[arg(value_name = "OWNER", value_parser = owner)]
    pub(crate) owner: OwnerId,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) argv: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = after_help!(
    "  tenure renew job \"$owner\" --ttl 1m                   One minute from now
  tenure renew job \"$owner\" --ttl 1m || exit            Stop the script if the lease is gone"
))]
pub(crate) struct Renew {
    /// Name of the lock: up to 512 bytes of text, such as deploy or db/backup
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
    /// The owner that `lock` printed
    #[arg(value_name = "OWNER", value_parser = owner)]
    pub(crate) owner: OwnerId,
    /// Length of the lease from now
    #[arg(long, value_name = "DUR", value_parser = ttl, allow_hyphen_values = true, help_heading = "Lease")]
    pub(crate) ttl: Timing,
    /// Exit code if the lease is gone
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::LOST, help_heading = "Lease")]
    pub(crate) lost_exit_code: u8,
}

#[derive(Args, Debug)]
#[command(after_help = after_help!(
    "  tenure unlock job \"$owner\"                           End the lease
  trap 'tenure unlock job \"$owner\"' EXIT               When the script ends"
))]
pub(crate) struct Unlock {
    /// Name of the lock: up to 512 bytes of text, such as deploy or db/backup
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
    /// The owner that `lock` printed
    #[arg(value_name = "OWNER", value_parser = owner)]
    pub(crate) owner: OwnerId,
    /// Exit code if the lease is gone
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::LOST, help_heading = "Lease")]
    pub(crate) lost_exit_code: u8,
}

#[derive(Args, Debug)]
#[command(after_help = after_help!(
    "  owns=$(tenure ownership) || exit                      In a command of `tenure run`
  tenure ownership --json | jq -r .literal              For a program that looks at the rows itself"
))]
pub(crate) struct OwnershipArgs {
    /// How long the transaction may stand still, on PostgreSQL [default: 10s]
    #[arg(long, value_name = "DUR", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) rest: Option<Timing>,
    /// Print JSON: the statement with and without its parameters
    #[arg(long)]
    pub(crate) json: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| {
        let like = "write a duration like 500ms, 30s or 5m";
        match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => format!("{like} ({text} seconds are {text}s)"),
            false => like.to_owned(),
        }
    })
}

fn interval(text: &str) -> Result<Duration, String> {
    let every = duration(text)?;
    match Memo::new("", every) {
        Ok(_) => Ok(every),
        Err(_) => Err("an interval must be 1ms to 366 days".to_owned()),
    }
}

fn memo(text: &str) -> Result<String, String> {
    let memo = Memo::new(text, Duration::from_secs(1)).map_err(|error| error.to_string())?;
    Ok(memo.text().to_owned())
}

fn lasting(text: &str) -> Result<Duration, String> {
    let (least, most) = (Duration::from_millis(10), Duration::from_secs(24 * 3600));
    let lasting = duration(text)?;
    if lasting < least || lasting > most {
        return Err("each part must last between 10ms and 24h".to_owned());
    }
    Ok(lasting)
}

fn ttl(text: &str) -> Result<Timing, String> {
    Timing::new(duration(text)?).map_err(|error| error.to_string())
}

pub(crate) fn name(text: &str) -> Result<LockName, String> {
    LockName::new(text).map_err(|error| error.to_string())
}

/// A name beside others. One with a blank at an end would be another lock, as in `--any "a, b"`.
fn name_of_several(text: &str) -> Result<LockName, String> {
    let name = name(text)?;
    match text.trim() == text {
        true => Ok(name),
        false => Err("a name begins or ends with a blank, which makes it another lock".to_owned()),
    }
}

fn owner(text: &str) -> Result<OwnerId, String> {
    text.parse().map_err(|error: tenure::backend::OwnerError| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The verbs in groups are those that there are, each with what it does.
    #[test]
    fn the_help_lists_every_verb_in_a_group() {
        let mut command = Cli::command();
        command.build();
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
            let line = format!("\n  {:<11}  {}\n", verb.get_name(), verb.get_about().unwrap());
            assert!(HELP.contains(&line), "{line}");
        }
        let listed = HELP.lines().filter(|line| line.starts_with("  ")).count();
        assert_eq!(listed, command.get_subcommands().count());
    }

    /// The help of a verb shows how it is called.
    #[test]
    fn each_verb_shows_two_examples_that_are_right() {
        let mut command = Cli::command();
        command.build();
        for verb in command.get_subcommands_mut().filter(|verb| verb.get_name() != "help") {
            let help = verb.render_help().to_string();
            let (_, examples) = help.split_once("\nExamples:\n").unwrap_or_else(|| panic!("{help}"));
            let examples: Vec<&str> = examples.lines().take_while(|line| !line.is_empty()).collect();
            assert!((2..=4).contains(&examples.len()), "{examples:?}");
            for example in examples {
                let Some((_, call)) = example.split_once("tenure ") else { panic!("{example}") };
                let call = call.split("  ").next().unwrap().split([')', '|', '>', '\'']).next().unwrap();
                let words = call.split_whitespace().filter(|word| *word != "exit");
                let words =
                    words.map(|word| if word == "\"$owner\"" { "0".repeat(48) } else { word.to_owned() });
                let parsed = Cli::try_parse_from(["tenure".to_owned()].into_iter().chain(words));
                assert!(parsed.is_ok(), "{example}: {parsed:?}");
            }
        }
    }

    /// L1: `--any "a, b"` held ` b`, which is another lock than `b`.
    #[test]
    fn names_of_several_have_no_blanks_around_them() {
        let calls: [&[&str]; 2] =
            [&["run", "--any", "a, b", "--", "true"], &["run", "--also", "b ", "a", "--", "true"]];
        for call in calls {
            assert!(Cli::try_parse_from(["tenure"].iter().chain(call)).is_err(), "{call:?}");
        }
    }

    #[test]
    fn what_follows_the_command_belongs_to_it() {
        let cli =
            Cli::try_parse_from(["tenure", "run", "-w", "5s", "job", "--", "grep", "-n", "--", "x"]).unwrap();
        let Verb::Run(run) = cli.verb else { panic!("run") };
        assert_eq!(run.argv, ["grep", "-n", "--", "x"]);
        assert!(!run.nonblock);
        let cli = Cli::try_parse_from(["tenure", "run", "job", "grep", "-n", "x"]).unwrap();
        let Verb::Run(run) = cli.verb else { panic!("run") };
        assert_eq!((run.argv.len(), run.nonblock), (3, false));
    }
}
