//! Scene 20: a script is killed, and its work goes on.

use std::{fs, process::Command, sync::Arc, thread, time::Duration};

use crate::{
    card::Card, client::WORK, judge::Rule, needs::Need, process::Process, record::What, scene::Scene,
    world::World,
};

/// `flock` is killed: the lock is free, the work lives.
pub(crate) struct Script;

const CARD: Card = Card {
    number: 20,
    title: "A script's lock, freed by kill -9",
    hazards: &[11],
    naive: "flock",
    needs: &[Need::Flock, Need::Tenure],
    rules: &[Rule::OneAtATime],
    fault: "The script of A is ended by kill -9; the work that it started is not.",
    harm: "The lock belongs to flock, not to the work: without --close the work would inherit it. kill -9 ends flock and frees the lock. The work of A goes on, and that of B starts beside it.",
    instead: "A watcher process ended the work of A when tenure was killed, and the lock stayed taken until the lease was over.",
};

impl Scene for Script {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let folder = tempfile::Builder::new().prefix("tenure-script-").tempdir().expect("a temporary folder");
        let (long, short) = (world.ttl() * 2, world.ttl() / 3);
        let script =
            |name, work| Process::start(name, &mut line(world, folder.path(), work), world.referee());
        let mut a = script("A", if world.has_fault() { long } else { short });
        let work = a.starts_working();
        let watch = world.is_tenure().then(|| ends(world, work));
        world.writes_down("B", What::Opens(crate::record::Kind::Client));
        world.writes_down("B", What::Asks);
        let mut b = script("B", short);
        world.pass(0.2);
        if world.has_fault() {
            a.is_killed();
        }
        b.is_in();
        b.has_left();
        match watch {
            // OK to ignore because the watch does not panic.
            Some(watch) => drop(watch.join()),
            // Nobody ends it before it is done.
            None => a.has_left(),
        }
    }
}

/// The line of the script.
fn line(world: &World<'_>, folder: &std::path::Path, work: Duration) -> Command {
    let (program, ms) = (world.program(), work.as_millis().to_string());
    let mut command;
    if world.is_tenure() {
        command = Command::new(world.command());
        let url = format!("sqlite:{}", folder.join("locks.db").display());
        command.args(["--url", &url, "run", "--ttl", &world.seconds(), "job", "--"]);
    } else {
        command = Command::new("flock");
        command.arg("--close").arg(folder.join("job.lock"));
    }
    command.arg(program).args([WORK, &ms]);
    command
}

/// Writes down when the work of A is gone.
fn ends(world: &World<'_>, work: u32) -> thread::JoinHandle<()> {
    let referee = Arc::clone(world.referee());
    thread::spawn(move || {
        while lives(work) {
            thread::sleep(Duration::from_millis(2));
        }
        referee.note("A", What::Dies);
    })
}

/// A process that nobody has buried yet is dead.
fn lives(pid: u32) -> bool {
    let facts = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    facts.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
