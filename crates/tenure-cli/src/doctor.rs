//! `doctor`: findings that weaken the promises of the store, and the remedy for each. It also suggests a ttl: it
//! measures how fast the store answers and how long this machine pauses, and prints the shortest lease that
//! tolerates both.

use std::{collections::BTreeSet, io::stdout, time::Duration};

use tenure::{
    Locker,
    backend::{Host, Promises, Timing, TokioHost},
    command::shown,
    view::{Adopt, Adoption, Finding, Severity},
};

use crate::{
    args::{Doctor, Global},
    exit::{self, Stop},
    signals::unhandled,
    store, text, view,
    waiting::{self, Question, WALK, pause},
};

pub(crate) async fn doctor(global: &Global, args: &Doctor) -> Result<u8, Stop> {
    let locks = store::open(global).await?;
    if args.adopt {
        let adopted = adopt(global, args, &locks).await;
        let promises = locks.promises();
        let is_rollout = promises.served_ttl < promises.max_ttl;
        if adopted.as_ref().is_err_and(Stop::is_refused) && is_rollout && !global.quiet {
            // OK to ignore a failure because the refusal is what must be said.
            let seen = clients_seen(global, &locks).await;
            seen.iter().for_each(|seen| exit::warn(seen));
        }
        adopted?;
    }
    let mut findings =
        Question::new(global, "looking at the store").answered(unhandled(), locks.diagnose()).await?;
    #[cfg(target_os = "linux")]
    findings.extend(crate::drift::check().await);
    // With `--quiet` the advice would not be printed.
    let advice = match global.quiet && !args.json {
        true => None,
        false => {
            let measuring = Question::new(global, "measuring").repeated_for(MEASURED);
            measuring.awaited(unhandled(), measure_pace(&locks)).await.map_err(Stop::signalled)?
        }
    };
    findings.extend(advice.as_ref().and_then(|advice| advice.finding.clone()));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let is_grave = |finding: &Finding| finding.severity >= Severity::Warning;
    let code = if findings.iter().any(is_grave) { exit::FINDINGS } else { 0 };
    if args.json {
        view::print_exactly(&view::json_list(&findings))?;
        return Ok(code);
    }
    let is_silent = global.quiet;
    let shown: Vec<&Finding> = findings.iter().filter(|finding| !is_silent || is_grave(finding)).collect();
    if !shown.is_empty() {
        view::print(&list(&shown, text::is_colourful(&stdout())))?;
    } else if !is_silent {
        let store = plain(&store::place(global));
        view::print(&format!(
            "all is well: {store} answers, and nothing was seen that weakens its promises"
        ))?;
    }
    if let Some(advice) = advice.filter(|_| !is_silent) {
        view::print(&plain(&advice.line))?;
    }
    Ok(code)
}

/// What an operator who wants to raise `max_ttl` has to know: whether a client with the smaller one may be left.
async fn clients_seen(global: &Global, locks: &Locker) -> Result<String, Stop> {
    let question = Question::new(global, "looking for clients").lasting(WALK);
    let views = question.answered(unhandled(), locks.list("")).await?;
    let labels = views.iter().flat_map(|view| {
        let waiters = view.queue.iter().map(|waits| waits.who());
        view.holders.iter().map(|held| held.who()).chain(waiters)
    });
    let seen: BTreeSet<String> = labels.collect();
    let shown: Vec<String> = seen.iter().take(5).cloned().collect();
    Ok(match seen.len() - shown.len() {
        _ if seen.is_empty() => "no holder and no waiter was seen".to_owned(),
        0 => format!("holders and waiters seen: {}", shown.join(", ")),
        more => format!("holders and waiters seen: {} and {more} more", shown.join(", ")),
    })
}

/// Replaces the settings recorded in the store by those of this client. If a signal ends it, the next call
/// continues.
async fn adopt(global: &Global, args: &Doctor, locks: &Locker) -> Result<(), Stop> {
    let how = if args.raise { Adopt::LargerMaxTtl } else { Adopt::Settings };
    let say = |what: &str| match (global.quiet, args.json) {
        (true, _) => {}
        // The standard output is for the findings.
        (_, true) => exit::warn(what),
        // The adoption continues. The findings are printed to the same place, and report it if that cannot be
        // written.
        _ => drop(view::print(what)),
    };
    let question = || Question::new(global, "looking at the record of settings");
    until_adopted(global.quiet, say, || question().answered(unhandled(), locks.adopt(how))).await
}

/// Repeats the call until all is done, but for no longer than three times the wait that the store announced first.
async fn until_adopted<F>(quiet: bool, say: impl Fn(&str), ask: impl Fn() -> F) -> Result<(), Stop>
where
    F: Future<Output = Result<Adoption, Stop>>,
{
    let first = ask().await?;
    say(&plain(&first.what));
    if first.wait.is_zero() {
        return Ok(());
    }
    // By the clock that does not step, because this limits a wait.
    let (began, patience, mut wait) = (TokioHost.now(), first.wait.saturating_mul(3), first.wait);
    loop {
        count_down(quiet, wait.max(LEAST_PAUSE)).await;
        let next = ask().await?;
        if next.wait.is_zero() {
            say(&plain(&next.what));
            return Ok(());
        }
        let left = patience.saturating_sub(began.elapsed(TokioHost.now()));
        if left.is_zero() {
            let (first, what) = (text::seconds(first.wait), plain(&next.what));
            let line = format!("not adopted within three times the {first} that the store announced: {what}");
            return Err(Stop::new(exit::UNAVAILABLE, line));
        }
        wait = next.wait.min(left);
    }
}

async fn count_down(quiet: bool, wait: Duration) {
    let began = TokioHost.now();
    let look = || {
        let waited = began.elapsed(TokioHost.now());
        let left = text::seconds(wait.saturating_sub(waited));
        (waited.as_secs_f64() / wait.as_secs_f64(), format!("until the settings can be adopted: {left}"))
    };
    tokio::select! {
        biased;
        () = pause(wait) => {}
        never = waiting::fill(quiet, look) => match never {},
    }
}

/// Measures for 2 s. `None` if the store does not answer the query.
async fn measure_pace(locks: &Locker) -> Option<Advice> {
    let started = TokioHost.now();
    let is_over = || started.elapsed(TokioHost.now()) >= MEASURED;
    let asking = async {
        let mut pace = ClockPace::default();
        while !is_over() {
            let sent = TokioHost.now();
            locks.inspect(NAME).await.ok()?;
            pace.round_trip = pace.round_trip.max(sent.elapsed(TokioHost.now()));
            pace.answers += 1;
            pause(BETWEEN).await;
        }
        Some(pace)
    };
    let pausing = async {
        let mut worst = Duration::ZERO;
        while !is_over() {
            let began = TokioHost.now();
            pause(TICK).await;
            // The timer itself may take one tick more.
            worst = worst.max(began.elapsed(TokioHost.now()).saturating_sub(2 * TICK));
        }
        worst
    };
    let (pace, pause) = tokio::join!(asking, pausing);
    Some(advice(ClockPace { pause, ..pace? }, &locks.promises()))
}

fn advice(pace: ClockPace, promises: &Promises) -> Advice {
    let ClockPace { answers, round_trip, pause } = pace;
    let worst = round_trip.max(pause);
    let wanted = worst * TIMES;
    let shortest = rounded_up(wanted.max(Timing::MIN_TTL).max(promises.ttl_grain));
    let reason = if wanted >= Timing::MIN_TTL.max(promises.ttl_grain) {
        let of = if round_trip >= pause { "round trip" } else { "pause of this machine" };
        format!("{TIMES} times the longest {of}")
    } else if promises.ttl_grain > Timing::MIN_TTL {
        format!("the unit in which {} counts leases", promises.backend)
    } else {
        "the shortest there is".to_owned()
    };
    let (brief, default) = (text::brief, promises.default_ttl());
    let line = format!(
        "ttl: the default of {} is {}. Measured for {}: the slowest of {answers} answers took {}, the longest pause of \
         this machine {}; the shortest useful ttl here is {} ({reason})",
        brief(default),
        if shortest > default { "too short here" } else { "fine" },
        text::seconds(MEASURED),
        brief(round_trip),
        brief(pause),
        brief(shortest)
    );
    let finding = (shortest > default).then(|| {
        let what = format!(
            "the default ttl of {} is too short here: the shortest useful one is {}, {reason}",
            brief(default),
            brief(shortest)
        );
        let remedy = format!(
            "name a ttl of {} or more, or find out what delays the store or this machine",
            brief(shortest)
        );
        Finding::new(Severity::Note, what, remedy)
    });
    Advice { line, finding }
}

/// Rounded up to tenths of a second, and from 1 s on to whole seconds.
fn rounded_up(d: Duration) -> Duration {
    let unit = if d < Duration::from_secs(1) { 100 } else { 1000 };
    let units = d.as_nanos().div_ceil(unit * 1_000_000);
    // OK because it is no longer than ten times a few minutes.
    Duration::from_millis(u64::try_from(units * unit).unwrap_or(u64::MAX))
}

/// The measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ClockPace {
    /// How often the store answered, and the longest time of an answer.
    answers: u32,
    round_trip: Duration,
    /// How long this program was not scheduled although it was ready.
    pause: Duration,
}

/// The advice, in one line; and as a finding if the default ttl is shorter than it.
struct Advice {
    line: String,
    finding: Option<Finding>,
}

fn list(findings: &[&Finding], is_colourful: bool) -> String {
    let entry = |finding: &&Finding| {
        let (word, colour) = match finding.severity {
            Severity::Warning => ("warning", "33"),
            Severity::Note => ("note", "36"),
            // Or more severe than that.
            _ => ("problem", "1;31"),
        };
        let word = if is_colourful { format!("\x1b[{colour}m{word}\x1b[0m") } else { word.to_owned() };
        format!("{word}: {}\n  to do: {}\n", plain(&finding.what), plain(&finding.remedy))
    };
    findings.iter().map(entry).collect()
}

/// A finding may quote a server.
fn plain(text: &str) -> String {
    shown(text).within(4096).to_string()
}

/// The shortest pause before the store is asked again.
const LEAST_PAUSE: Duration = Duration::from_millis(20);

/// How long the pace is measured.
const MEASURED: Duration = Duration::from_secs(2);
/// Between two queries, so that the store does other work too.
const BETWEEN: Duration = Duration::from_millis(20);
/// Between two readings of the clock.
const TICK: Duration = Duration::from_millis(1);
/// A lease lasts for this many times the worst measurement. A renewal may take a sixth of it, and 2 s do not show
/// the worst case.
const TIMES: u32 = 10;
/// The lock of the measurement. It need not exist, and is only read.
const NAME: &str = "tenure-doctor";

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    fn finding(severity: Severity, what: &str) -> Finding {
        Finding::new(severity, what, "mend\nit")
    }

    #[test]
    fn a_finding_is_two_lines_and_cannot_paint_the_terminal() {
        let finding = finding(Severity::Problem, "evil\x1b[31m");
        assert_eq!(list(&[&finding], false), "problem: evil?[31m\n  to do: mend?it\n");
        assert_eq!(list(&[&finding], true), "\x1b[1;31mproblem\x1b[0m: evil?[31m\n  to do: mend?it\n");
    }

    /// What is printed while a store answers with these waits, in ms; the last answer is repeated forever.
    async fn adopting(waits: &[u64]) -> (Result<(), Stop>, Vec<String>) {
        let (asked, said) = (Cell::new(0), RefCell::new(Vec::new()));
        let ask = || {
            let at = asked.replace(asked.get() + 1);
            let wait = Duration::from_millis(waits[at.min(waits.len() - 1)]);
            std::future::ready(Ok(Adoption::new(wait, format!("answer {at}"))))
        };
        let done = until_adopted(true, |what| said.borrow_mut().push(what.to_owned()), ask).await;
        (done, said.into_inner())
    }

    #[tokio::test]
    async fn a_record_is_asked_for_until_nothing_is_left_to_do() {
        let (done, said) = adopting(&[0]).await;
        assert!(done.is_ok() && said == ["answer 0"], "{said:?}");
        let began = TokioHost.now();
        let (done, said) = adopting(&[60, 30, 0]).await;
        assert!(done.is_ok() && said == ["answer 0", "answer 2"], "{said:?}");
        assert!(began.elapsed(TokioHost.now()) >= Duration::from_millis(90));
    }

    #[tokio::test]
    async fn a_record_that_is_never_adopted_is_given_up() {
        let began = TokioHost.now();
        let (done, said) = adopting(&[40]).await;
        let why = format!("{:?}", done.unwrap_err());
        assert!(why.contains("69") && why.contains("not adopted within three times"), "{why}");
        assert_eq!(said, ["answer 0"]);
        assert!(began.elapsed(TokioHost.now()) >= Duration::from_millis(120));
    }

    #[tokio::test]
    async fn a_store_that_fails_meanwhile_is_an_error() {
        let asked = Cell::new(false);
        let ask = || {
            let answer = match asked.replace(true) {
                false => Ok(Adoption::new(Duration::from_millis(1), "")),
                true => Err(Stop::new(exit::UNAVAILABLE, "it is down")),
            };
            std::future::ready(answer)
        };
        let why = format!("{:?}", until_adopted(true, |_| {}, ask).await.unwrap_err());
        assert!(why.contains("it is down"), "{why}");
    }

    fn advised(round_trip_us: u64, pause_us: u64, grain_ms: u64) -> Advice {
        let mut promises = Promises::least("paced");
        promises.ttl_grain = Duration::from_millis(grain_ms);
        let (round_trip, pause) = (Duration::from_micros(round_trip_us), Duration::from_micros(pause_us));
        advice(ClockPace { answers: 95, round_trip, pause }, &promises)
    }

    /// Ten times the worst, rounded up; never less than the unit of the store.
    #[test]
    fn the_shortest_ttl_follows_from_what_was_seen() {
        for (round_trip, pause, grain, shortest, reason) in [
            (900, 4_000, 1, "100 ms (", "the shortest there is"),
            (900, 28_000, 1, "300 ms (", "10 times the longest pause of this machine"),
            (71_000, 28_000, 1, "800 ms (", "10 times the longest round trip"),
            (171_000, 28_000, 1, "2 s (", "10 times the longest round trip"),
            (900, 4_000, 6_000, "6 s (", "the unit in which paced counts leases"),
        ] {
            let Advice { line, finding } = advised(round_trip, pause, grain);
            assert!(line.contains(&format!("shortest useful ttl here is {shortest}{reason})")), "{line}");
            assert!(
                line.contains("95 answers") && line.starts_with("ttl: the default of 10 s is fine"),
                "{line}"
            );
            assert!(finding.is_none(), "{line}");
        }
    }

    /// A user who names no ttl should know that ten seconds are too short.
    #[test]
    fn a_default_that_is_too_short_is_a_finding() {
        let found = advised(1_200_000, 28_000, 1).finding.unwrap();
        assert_eq!(found.severity, Severity::Note);
        assert!(
            found.what.contains("10 s is too short") && found.remedy.contains("12 s or more"),
            "{found:?}"
        );
    }
}
