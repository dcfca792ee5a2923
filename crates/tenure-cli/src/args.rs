//! The command line: names, flags and their meaning are a contract.

use std::{ffi::OsString, time::Duration};

use clap::{Args, Parser, Subcommand, builder::RangedU64ValueParser, value_parser};
use jiff::tz::TimeZone;
use tenure::{
    LockName, OwnerId,
    backend::{Memo, Timing},
};

use crate::calendar::{Period, zone};

const EXIT_CODES: &str = "\
Exit codes:
  that of the command   it ran, and the lock was held throughout (128 + n if signal n ended it)
  1, or -E              another owner holds the lock; of `doctor`: there are warnings or problems
  64                    wrong usage
  69                    the store is unavailable, damaged, read-only, or of a newer version
  70                    the system failed, or tenure has a bug
  79                    the lease was lost, or there was nothing to renew or to unlock
  126, 127              the command cannot be executed, or was not found";

const DOCTOR_CODES: &str = "\
Exit codes:
  0     all is well, or there are notes only
  1     there are warnings or problems
  64    wrong usage
  69    the store cannot be reached, or has no record to adopt";

const BENCH_PARTS: &str = "\
Parts:
  round trip       one request: to look at a free lock
  cycle            acquire and release a lock without contention: one task, then 64 tasks with 64 locks
  change of owner  two, then N waiters pass one lock on, each as soon as it has it
  waiters hold     N waiters hold one lock for 1 ms each; the timer may make 2 ms of it
Jain's index says how evenly turns were shared: 1 if all had as many, 1/N if one had all.
A waiter starved if it had no turn while another had two.";

/// Distributed locks as leases: a `flock` for a cluster
#[derive(Parser, Debug)]
#[command(name = "tenure", version, propagate_version = true, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Args, Debug)]
pub(crate) struct Global {
    /// The store of locks, such as sqlite:/var/lib/app/locks.db [default: a file in the state directory]
    #[arg(long, global = true, env = "TENURE_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Say nothing but errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Say what is going on; twice for more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Verb {
    /// Run a command while holding a lock
    Run(Run),
    /// Run a command on one of many hosts: it is started again each time that the lead is lost
    Lead(Lead),
    /// List the locks that are held or waited for
    Ls(Ls),
    /// Show who holds a lock and who waits
    Show(Show),
    /// Show the locks as they change: a table on a terminal, JSON lines elsewhere; looks once a second
    Watch(WatchArgs),
    /// Take a lock from its holders: they are told to stop, but may overlap with the next holder until then
    Break(Break),
    /// Check the store: what weakens its promises, and what to do about it
    Doctor(Doctor),
    /// Measure how fast the store is, and how fair; it uses locks of its own
    Bench(Bench),
    /// Take a lease for a script, and print its owner and token as JSON; nothing renews it
    Lock(LockArgs),
    /// Renew a lease taken by `lock`
    Renew(Renew),
    /// Give back a lease taken by `lock`
    Unlock(Unlock),
    /// Run a command under a lease taken by `lock`, which is renewed from here on, and given back at the end
    Attach(Attach),
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Args, Debug)]
#[command(
    after_help = EXIT_CODES,
    override_usage = "tenure run [OPTIONS] <NAME> [--] <COMMAND>...\n       tenure run [OPTIONS] --any <NAMES> -- <COMMAND>..."
)]
pub(crate) struct Run {
    /// Do not wait: fail at once if the lock is held
    #[arg(short = 'n', long = "nonblock", conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Wait for at most this long [default: for ever]
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,
    /// Share the lock with others that share it: many readers, one writer
    #[arg(short = 's', long, conflicts_with = "slots")]
    pub(crate) shared: bool,
    /// Let so many run at once
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) slots: Option<u32>,
    /// Hold this lock as well, all or none; may be repeated
    #[arg(long, value_name = "NAME", value_parser = name, conflicts_with_all = ["shared", "slots"])]
    pub(crate) also: Vec<LockName>,
    /// Instead of NAME: hold one of these locks, the first that is free; names with commas between
    #[arg(long, value_name = "NAMES", value_parser = name, value_delimiter = ',', conflicts_with_all = ["also", "shared", "slots"])]
    pub(crate) any: Vec<LockName>,
    /// Length of the lease: after a crash the lock is free this much later [default: 10s, or what the store accepts at
    /// most if that is less]
    #[arg(long, value_name = "DUR", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Timing>,
    /// Hold the lock for at least this long
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) min_hold: Option<Duration>,
    /// Stop the command after this long
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,
    /// How long the command may take to end after TERM, before KILL [default: ttl/4, at most 5s]
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,
    /// Run once per interval over all hosts: skip if the last run that succeeded began less than this long ago. A run may
    /// begin a tenth of it early, at most 60s; the next one is due that much later
    #[arg(long, value_name = "DUR", value_parser = interval, allow_hyphen_values = true, group = "schedule", conflicts_with_all = ["shared", "slots", "also", "any"])]
    pub(crate) every: Option<Duration>,
    /// Run once in each hour, day, week or DUR of the calendar over all hosts: skip if a run in it succeeded
    #[arg(long, value_name = "hour|day|week|DUR", value_parser = Period::read, group = "schedule", conflicts_with_all = ["every", "shared", "slots", "also", "any"])]
    pub(crate) once_per: Option<Period>,
    /// The place by whose clock --once-per counts, such as Europe/Berlin [default: that of this host]
    #[arg(long, value_name = "ZONE", value_parser = zone, requires = "once_per")]
    pub(crate) tz: Option<TimeZone>,
    /// Count a run of --every or --once-per from its start, whatever becomes of it
    #[arg(long, requires = "schedule")]
    pub(crate) even_if_failed: bool,
    /// Exit code if a run of --every or --once-per was skipped
    #[arg(long, value_name = "CODE", default_value_t = 0, requires = "schedule")]
    pub(crate) skip_exit_code: u8,
    /// Exit code if the lock was not acquired
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::CONFLICT)]
    pub(crate) conflict_exit_code: u8,
    /// Exit code if the lease was lost
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::LOST)]
    pub(crate) lost_exit_code: u8,
    /// Run the command through `sh -c`
    #[arg(short = 'c', long)]
    pub(crate) command: bool,
    /// The lock
    #[arg(value_name = "NAME")]
    pub(crate) name: OsString,
    /// What to run
    #[arg(
        value_name = "COMMAND",
        required_unless_present = "any",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) argv: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Lead {
    /// Length of the lease: after a crash another host leads this much later [default: 10s, or what the store accepts at
    /// most if that is less]
    #[arg(long, value_name = "DUR", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Timing>,
    /// How long the command may take to end after TERM, before KILL [default: ttl/4, at most 5s]
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,
    /// What all who ask are told while this host leads, such as its address; `tenure show` shows it
    #[arg(long, value_name = "TEXT", value_parser = memo)]
    pub(crate) proclaim: Option<String>,
    /// Run the command through `sh -c`
    #[arg(short = 'c', long)]
    pub(crate) command: bool,
    /// The election, which is the lock of this name
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
    /// What to run
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) argv: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// Only locks whose names start so
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The lock
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// Only locks whose names start so
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Print JSON lines on a terminal too
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Break {
    /// The lock
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
}

#[derive(Args, Debug)]
#[command(after_help = DOCTOR_CODES)]
pub(crate) struct Doctor {
    /// First replace the settings recorded in the store by those of this URL, once that is safe
    #[arg(long)]
    pub(crate) adopt: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = BENCH_PARTS)]
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
pub(crate) struct LockArgs {
    /// The lock
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
    /// Length of the lease
    #[arg(long, value_name = "DUR", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Timing,
    /// Wait for at most this long [default: for ever]
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,
    /// Ask as this owner, 48 random hex digits, new for every lease: asked again after a lost answer, it is granted the same
    /// lease [default: a new one]
    #[arg(long, value_name = "OWNER", value_parser = owner)]
    pub(crate) owner: Option<OwnerId>,
    /// Exit code if the lock was not acquired
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::CONFLICT)]
    pub(crate) conflict_exit_code: u8,
}

#[derive(Args, Debug)]
pub(crate) struct Attach {
    /// Length of the lease from now, never shortened [default: 10s, or what the store accepts at most if that is less]
    #[arg(long, value_name = "DUR", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Timing>,
    /// Hold the lock for at least this long
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) min_hold: Option<Duration>,
    /// Stop the command after this long
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,
    /// How long the command may take to end after TERM, before KILL [default: ttl/4, at most 5s]
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,
    /// Exit code if the lease is gone or was lost
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::LOST)]
    pub(crate) lost_exit_code: u8,
    /// Run the command through `sh -c`
    #[arg(short = 'c', long)]
    pub(crate) command: bool,
    /// The lock
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
    /// The owner that `lock` printed
    #[arg(value_name = "OWNER", value_parser = owner)]
    pub(crate) owner: OwnerId,
    /// What to run
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) argv: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Renew {
    /// The lock
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
    /// The owner that `lock` printed
    #[arg(value_name = "OWNER", value_parser = owner)]
    pub(crate) owner: OwnerId,
    /// Length of the lease from now
    #[arg(long, value_name = "DUR", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Timing,
    /// Exit code if the lease is gone
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::LOST)]
    pub(crate) lost_exit_code: u8,
}

#[derive(Args, Debug)]
pub(crate) struct Unlock {
    /// The lock
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LockName,
    /// The owner that `lock` printed
    #[arg(value_name = "OWNER", value_parser = owner)]
    pub(crate) owner: OwnerId,
    /// Exit code if the lease is gone
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::LOST)]
    pub(crate) lost_exit_code: u8,
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "write a duration like 500ms, 30s or 5m".to_owned())
}

fn interval(text: &str) -> Result<Duration, String> {
    let every = duration(text)?;
    match Memo::new("", every) {
        Ok(_) => Ok(every),
        Err(_) => Err("an interval is 1ms to 366 days".to_owned()),
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
