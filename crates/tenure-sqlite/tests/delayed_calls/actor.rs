//! `play`: what each process does: it takes the lock, holds it for a while, and gives it back.

use std::{
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use tenure_core::{
    BackendError, BackendHandle, BoxFuture, ClaimAnswer, ErrorKind, Grant, Host, Memo, Moment, Renewal, Start,
};
use tenure_sqlite::{Config, Sqlite};
use tenure_testkit::{conformance::player::Player, patience::stretch};

/// Tells a process of this program which part it plays: "hasty", or "staying" until it is told to leave.
const PART: &str = "DELAYED_PART";
const TTL: &str = "DELAYED_TTL_MS";
/// How often it takes the lock.
const TIMES: &str = "DELAYED_TIMES";
/// That it leaves a memo each time.
pub(crate) const NOTES: &str = "DELAYED_NOTES";
/// Where the database is, and where the test and its actors leave each other word.
const FOLDER: &str = "DELAY_FOLDER";
pub(crate) const CONTROL: &str = "DELAY_CONTROL";

/// From its grant until it left, or until it could no longer believe; µs on the clock that all processes share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stay {
    pub(crate) token: u64,
    pub(crate) from: u128,
    pub(crate) to: u128,
}

/// This program as an actor.
pub(crate) fn command(part: &str, folder: &Path, ttl: Duration, times: usize) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "no_delayed_call_lets_two_in", "--nocapture"]).stdin(Stdio::null());
    command.env(PART, part).env(TTL, ttl.as_millis().to_string()).env(FOLDER, folder.join("db"));
    command.env(TIMES, times.to_string());
    command.env(CONTROL, folder.join("control")).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// What an actor wrote down when it ended.
pub(crate) fn report(folder: &Path, part: &str) -> Result<Vec<Stay>, String> {
    let text = fs::read_to_string(folder.join("control").join(part)).unwrap_or_default();
    let stay = |line: &str| {
        let mut numbers = line.split(' ').map_while(|n| n.parse::<u128>().ok());
        let token = u64::try_from(numbers.next()?).unwrap();
        Some(Stay { token, from: numbers.next()?, to: numbers.next()? })
    };
    let stays: Option<Vec<Stay>> = text.lines().map(stay).collect();
    stays.filter(|stays| !stays.is_empty()).ok_or_else(|| format!("{part} says: {text:?}"))
}

/// True if this process is an actor, and has played its part.
pub(crate) fn played() -> bool {
    let Ok(part) = env::var(PART) else { return false };
    let control = PathBuf::from(env::var(CONTROL).unwrap());
    let ttl = Duration::from_millis(env::var(TTL).unwrap().parse().unwrap());
    let folder = PathBuf::from(env::var(FOLDER).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let times = env::var(TIMES).unwrap().parse().unwrap();
    let told = match runtime.block_on(play(&folder, (ttl, times), &control, part == "staying")) {
        Ok(stays) => stays.iter().fold(String::new(), |mut lines, stay| {
            writeln!(lines, "{} {} {}", stay.token, stay.from, stay.to).unwrap();
            lines
        }),
        Err(error) => format!("{error:?}"),
    };
    let draft = control.join(format!("draft.{part}"));
    fs::write(&draft, told).unwrap();
    fs::rename(draft, control.join(part)).unwrap();
    true
}

async fn play(
    folder: &Path,
    (ttl, times): (Duration, usize),
    control: &Path,
    stays: bool,
) -> Result<Vec<Stay>, BackendError> {
    let (mut all, backend) = (Vec::new(), open(folder));
    // Whoever comes too late tries again, as the engine does, with a new owner.
    while all.len() < times {
        let mut player = player(backend.clone());
        player.claim.ttl = ttl;
        let (until, grant) = enter(&player).await?;
        if now() < until {
            all.push(stay(&player, until, grant, (stays, control)).await?);
        }
        patiently(async || player.backend.release(&player.claim.name, player.claim.owner).await).await?;
    }
    Ok(all)
}

/// Until when the grant may be believed: a ttl after its request was sent, without the margin.
async fn enter(player: &Player) -> Result<(u128, Grant), BackendError> {
    loop {
        let sent = now();
        match patiently_once(player.backend.claim(&player.claim).await)? {
            Some(ClaimAnswer::Granted(grant)) => return Ok((sent + player.claim.ttl.as_micros(), grant)),
            _ => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Renews until it may leave; a hasty one renews once.
async fn stay(
    player: &Player,
    mut until: u128,
    grant: Grant,
    (stays, control): (bool, &Path),
) -> Result<Stay, BackendError> {
    let from = now();
    if env::var_os(NOTES).is_some() {
        let memo = Memo::new("done", Duration::from_secs(60)).unwrap();
        player.backend.note(&player.claim.name, player.claim.owner, grant.token, &memo).await?;
    }
    fs::write(control.join(if stays { "in.staying" } else { "in.hasty" }), "").unwrap();
    loop {
        let sent = now();
        let answer = player.backend.renew(std::slice::from_ref(&grant)).await.remove(0);
        let renewed = patiently_once(answer)?;
        if now() >= until || renewed == Some(Renewal::Gone) {
            break;
        }
        if renewed.is_some() {
            until = sent + grant.ttl.as_micros();
        }
        if !stays || control.join("leave").exists() {
            break;
        }
        thread::sleep(player.claim.ttl / 10);
    }
    Ok(Stay { token: grant.token.get(), from, to: now().min(until) })
}

async fn patiently<A>(mut ask: impl AsyncFnMut() -> Result<A, BackendError>) -> Result<A, BackendError> {
    loop {
        match patiently_once(ask().await)? {
            Some(answer) => return Ok(answer),
            None => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// `None` if it is worth asking again, as it is where nothing is granted yet, another process writes, or this one stood still.
fn patiently_once<A>(answer: Result<A, BackendError>) -> Result<Option<A>, BackendError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if matches!(error.kind(), ErrorKind::Throttled | ErrorKind::TimedOut) => Ok(None),
        Err(error) if error.kind() == ErrorKind::Unavailable && error.retry_hint().is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn open(folder: &Path) -> BackendHandle {
    Arc::new(Sqlite::new(Config::new(folder.join("l.db")), Arc::new(RealHost)))
}

pub(crate) fn player(backend: BackendHandle) -> Player {
    let mut player = Player::new(backend, "job");
    let (mut process, mut owner) = ([0; 8], [0; 16]);
    RealHost.random(&mut process);
    RealHost.random(&mut owner);
    player.claim.owner =
        tenure_core::OwnerId::from_random(tenure_core::ProcessId::from_random(process), owner);
    player
}

/// Short, and long enough for a slow machine.
pub(crate) fn short_ttl() -> Duration {
    Duration::from_millis(250) * stretch()
}

pub(crate) fn now() -> u128 {
    RealHost.now().boot.as_micros()
}

/// This machine, for one thread that may block.
struct RealHost;

impl Host for RealHost {
    fn now(&self) -> Moment {
        let read = |clock| Duration::from(clock_gettime(clock).unwrap());
        Moment { boot: read(ClockId::CLOCK_BOOTTIME), wall: read(ClockId::CLOCK_REALTIME) }
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        let left = until.boot.saturating_sub(self.now().boot);
        Box::pin(async move { thread::sleep(left) })
    }

    fn spawn(&self, _task: BoxFuture<'static, ()>) {
        unreachable!("an actor has no tasks");
    }

    fn spawn_apart(&self, _name: &'static str, _start: Start) -> std::io::Result<()> {
        unreachable!("an actor has no threads");
    }

    fn random(&self, bytes: &mut [u8]) {
        std::io::Read::read_exact(&mut fs::File::open("/dev/urandom").unwrap(), bytes).unwrap();
    }
}
