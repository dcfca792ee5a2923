//! The results: the file with every run, the table of the page, and what is refused.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::clients::CLIENTS;

/// Every contest that was held.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) contests: Vec<Contest>,
}

/// One client with one pause.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Contest {
    pub(crate) client: String,
    pub(crate) pause_ms: u64,
    pub(crate) seconds: u64,
    pub(crate) runs: Vec<Run>,
}

/// What three clients of the library and three of Tenure did in one run.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Run {
    pub(crate) theirs: u64,
    pub(crate) ours: u64,
    /// The longest time in which no client of Tenure acquired, in ms.
    pub(crate) none_entered: u64,
    /// The longest time that one client of Tenure waited, in ms.
    pub(crate) one_waited: u64,
    /// Requests a second of all clients of Tenure while they waited.
    pub(crate) requests: u64,
    /// How often more than one client was inside.
    pub(crate) overlaps: u64,
}

impl Table {
    /// From a file with a contest in each line.
    pub(crate) fn parse(text: &str) -> serde_json::Result<Self> {
        let contests = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Self { contests })
    }

    /// As such a file.
    pub(crate) fn lines(&self) -> serde_json::Result<String> {
        let lines = self.contests.iter().map(serde_json::to_string);
        lines.map(|line| Ok(line? + "\n")).collect()
    }

    /// Replaces an earlier contest of the same kind.
    pub(crate) fn put(&mut self, contest: Contest) {
        self.contests.retain(|known| (&known.client, known.pause_ms) != (&contest.client, contest.pause_ms));
        self.contests.push(contest);
        let rank = |name: &str| CLIENTS.iter().position(|client| client.name == name);
        self.contests.sort_by_key(|contest| (rank(&contest.client), contest.pause_ms));
    }

    /// As the page has it: medians of the runs.
    pub(crate) fn page(&self) -> String {
        let mut page = HEAD.to_owned();
        for contest in &self.contests {
            let median = |of: fn(&Run) -> u64| contest.median(of);
            let overlaps: u64 = contest.runs.iter().map(|run| run.overlaps).sum();
            let least = contest.runs.iter().map(|run| run.ours).min().unwrap_or_default();
            // OK because writing to a String cannot fail.
            let _ = writeln!(
                page,
                "| {} | {} | {} | {} ({least}) | {} | {} | {} | {overlaps} |",
                contest.client,
                if contest.pause_ms == 0 { "none".to_owned() } else { format!("{} ms", contest.pause_ms) },
                median(|run| run.theirs),
                median(|run| run.ours),
                seconds(median(|run| run.none_entered)),
                seconds(median(|run| run.one_waited)),
                median(|run| run.requests),
            );
        }
        page
    }
}

impl Contest {
    fn median(&self, of: fn(&Run) -> u64) -> u64 {
        let mut all: Vec<u64> = self.runs.iter().map(of).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or_default()
    }

    /// What must not happen: two inside; a run without an entry of Tenure; a wait of more than a second, in the median, if
    /// the library's clients pause.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let place = format!("{}, pause {} ms", self.client, self.pause_ms);
        let mut complaints = Vec::new();
        for (number, run) in self.runs.iter().enumerate() {
            if run.overlaps > 0 {
                complaints.push(format!("{place}, run {}: {} overlaps", number + 1, run.overlaps));
            }
            if run.ours == 0 {
                complaints.push(format!("{place}, run {}: Tenure never entered", number + 1));
            }
        }
        let waited = self.median(|run| run.none_entered.max(run.one_waited));
        if self.pause_ms > 0 && waited > LIMIT_MS {
            complaints
                .push(format!("{place}: a waiter of Tenure waited {waited} ms, the median of the runs"));
        }
        complaints
    }
}

/// Replaces the table in a page: its head and the rows below.
pub(crate) fn put_into(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(HEAD)?;
    let rows: usize = rest.split_inclusive('\n').take_while(|line| line.starts_with('|')).map(str::len).sum();
    Some(format!("{before}{table}{}", &rest[rows..]))
}

fn seconds(ms: u64) -> String {
    format!("{}.{:02} s", ms / 1000, ms % 1000 / 10)
}

const HEAD: &str = "\
| client | its pause | its entries | entries of Tenure (fewest of a run) | longest time without one | longest wait | requests/s | overlaps |
|---|---|--:|--:|--:|--:|--:|--:|
";

/// If the wait is longer, a client that pauses starves Tenure.
const LIMIT_MS: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn contest(pause_ms: u64, runs: &[Run]) -> Contest {
        Contest { client: CLIENTS[0].name.to_owned(), pause_ms, seconds: 10, runs: runs.to_vec() }
    }

    const GOOD: Run =
        Run { theirs: 100, ours: 50, none_entered: 90, one_waited: 140, requests: 40, overlaps: 0 };

    #[test]
    fn what_must_not_be_is_named() {
        let (two_inside, starved, late) =
            (Run { overlaps: 1, ..GOOD }, Run { ours: 0, ..GOOD }, Run { one_waited: 1200, ..GOOD });
        assert!(contest(30, &[GOOD, GOOD, late]).complaints().is_empty(), "the median counts");
        assert!(contest(0, &[late, late, late]).complaints().is_empty(), "theirs do not pause");
        assert_eq!(contest(30, &[GOOD, late, late]).complaints().len(), 1);
        let complaints = contest(0, &[two_inside, starved]).complaints();
        assert!(complaints[0].ends_with("run 1: 1 overlaps"), "{complaints:?}");
        assert!(complaints[1].ends_with("run 2: Tenure never entered"), "{complaints:?}");
    }

    #[test]
    fn a_contest_replaces_the_earlier_one_of_its_kind() {
        let mut table = Table::default();
        for (pause, runs) in [(30, 1), (0, 1), (30, 3)] {
            table.put(contest(pause, &vec![GOOD; runs]));
        }
        let held: Vec<_> =
            table.contests.iter().map(|contest| (contest.pause_ms, contest.runs.len())).collect();
        assert_eq!(held, [(0, 1), (30, 3)]);
        let lines = table.lines().unwrap();
        assert_eq!(lines.lines().count(), 2);
        assert_eq!(Table::parse(&lines).unwrap().page(), table.page());
    }

    #[test]
    fn the_table_in_a_page_is_exchanged_and_nothing_else() {
        let (mut old, mut new) = (Table::default(), Table::default());
        old.put(contest(0, &[GOOD]));
        new.put(contest(30, &[Run { none_entered: 1_050, ..GOOD }]));
        let page = |table: &Table| format!("# A\n\n| b |\n\n{}\nc\n\n| d |\n", table.page());
        assert_eq!(put_into(&page(&old), &new.page()), Some(page(&new)));
        assert!(
            new.page().ends_with("| 30 ms | 100 | 50 (50) | 1.05 s | 0.14 s | 40 | 0 |\n"),
            "{}",
            new.page()
        );
        assert_eq!(put_into("no table", "x"), None);
    }

    /// The page shows the runs that are in the file, of every client.
    #[test]
    fn the_page_shows_what_was_seen() {
        let table = Table::parse(include_str!("../../../docs/evidence/ring.jsonl")).unwrap();
        let page = include_str!("../../../docs/reference/interop-and-platforms.md");
        assert!(
            page.contains(&table.page()),
            "run `cargo xtask ring`, or put this into the page:\n{}",
            table.page()
        );
        for client in CLIENTS {
            assert_eq!(
                table.contests.iter().filter(|contest| contest.client == client.name).count(),
                2,
                "{client:?}"
            );
            let cells = format!("| {} | Redis | {} |", client.name, client.layout);
            assert!(page.contains(&cells), "the page has no row {cells}");
            assert!(page.contains(&client.setting()), "{client:?}");
        }
        assert!(table.contests.iter().all(|contest| contest.complaints().is_empty()));
    }
}
