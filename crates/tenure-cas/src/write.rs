//! Writing a ledger on top of the one that it was made from.

use std::{
    fmt::Write as _,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tenure_core::{Audience, BackendError, LockName, OwnerId};
use tenure_ledger::{Change, Ledger};
use tokio_postgres::types::Type;

use crate::{
    doubt::{Doubt, News},
    ears::Ears,
    error::{self, Failure},
    line::{Argument, Line},
    memory::{Seen, TOLERANCE, moment, since_epoch},
    sql::Patience,
    store::Store,
};

/// A verb that was run, and is to be stored.
pub(crate) struct Draft<A> {
    /// On top of which version; 0: there is no row.
    pub(crate) version: i64,
    /// And of which state. After a fail-over another history of the row may have come to the same version; and a pooler may lead a
    /// reading and the write behind it to two servers.
    pub(crate) before: String,
    pub(crate) ledger: Ledger,
    /// Somebody may stand behind the queue.
    pub(crate) is_long: bool,
    /// Rows of those who move up with this.
    pub(crate) gone: Vec<String>,
    pub(crate) change: Change<A>,
    pub(crate) patience: Patience,
    /// The time at which it ran, if that was not read from the server.
    pub(crate) guessed: Option<Duration>,
    pub(crate) now: Duration,
}

/// What became of a try.
pub(crate) enum Tried<A> {
    Done(A),
    /// Read again.
    Overtaken,
    /// It was sent, and nobody knows.
    Lost(BackendError, A),
}

impl<A> Draft<A> {
    /// Whom it concerns, once it is stored.
    pub(crate) fn news(&self, name: &LockName) -> News {
        let wakes = self.change.wakes.clone();
        News { behind: behind(&self.ledger, name, self.now, &wakes), wakes }
    }

    /// As the row keeps it.
    pub(crate) fn text(&self) -> String {
        encoded(&self.ledger, self.is_long)
    }

    /// Somebody holds or waits.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_long || !self.ledger.is_free()
    }

    fn is_new(&self) -> bool {
        self.version == 0
    }

    /// That of the row once it is stored. A new one begins beyond any that a row of the same name had reached.
    pub(crate) fn next_version(&self) -> i64 {
        let first = i64::try_from(self.now.as_micros()).unwrap_or(i64::MAX);
        if self.is_new() { first } else { self.version + 1 }
    }
}

impl Store {
    /// Stores a draft if nobody else wrote since, tells those elsewhere with the same commit, and rings for those here after it.
    pub(crate) async fn write<A: Send + Sync>(
        &self,
        line: &Arc<Line>,
        name: &LockName,
        draft: Draft<A>,
    ) -> Result<Tried<A>, Failure> {
        self.must_take_writes(line).await?;
        let memory = &self.shared().memory;
        let state = draft.text();
        let doubt = Doubt::new(memory, &self.ears, (name, draft.version), draft.news(name));
        let answer = self.send(line, name, &draft, (&state, doubt.news())).await;
        if let Err(Failure::Broken(error)) = answer {
            return Ok(Tried::Lost(error.of_unknown_outcome(), draft.change.answer));
        }
        let (news, rows) = (doubt.settle(), answer?);
        let Some(row) = rows.first() else {
            memory.forget(name);
            return Ok(Tried::Overtaken);
        };
        let unreadable = |error| Failure::Refused(line.unreadable(error));
        let (at, is_ours): (SystemTime, bool) =
            (row.try_get(0).map_err(unreadable)?, row.try_get(1).map_err(unreadable)?);
        if !is_ours {
            memory.forget(name);
            return Err(Failure::Refused(error::altered(line.name())));
        }
        memory.learn(since_epoch(at), self.shared().host.now());
        if draft.is_new() {
            self.sweep_now_and_then(line);
        }
        let (version, at) = (draft.next_version(), self.shared().host.now());
        let seen = Seen { version, state, ledger: draft.ledger, is_long: draft.is_long, at };
        self.stored(name, seen, &news);
        Ok(Tried::Done(draft.change.answer))
    }

    /// The statement that fits.
    async fn send<A: Sync>(
        &self,
        line: &Line,
        name: &LockName,
        draft: &Draft<A>,
        (state, news): (&str, &News),
    ) -> Result<Vec<tokio_postgres::Row>, Failure> {
        let sql = &self.shared().sql;
        let away = self.elsewhere(&news.wakes);
        let (channels, hints): (Vec<String>, Vec<String>) = away
            .map(|(audience, owner)| {
                (Ears::channel(owner.process()), Ears::hint(audience, owner, news.behind))
            })
            .unzip();
        let (from, until) = window(draft.guessed);
        let version = if draft.is_new() { draft.next_version() } else { draft.version };
        let (key, is_busy) = (name.as_str(), draft.is_busy());
        let mut arguments: Vec<Argument<'_>> =
            vec![(&key, Type::TEXT), (&version, Type::INT8), (&is_busy, Type::BOOL), (&state, Type::TEXT)];
        if draft.is_new() {
            return line.write(&sql.insert, &arguments).await;
        }
        arguments.extend([
            (&draft.before as _, Type::TEXT),
            (&from as _, Type::TIMESTAMPTZ),
            (&until as _, Type::TIMESTAMPTZ),
        ]);
        let write = match draft.patience {
            Patience::Any => &sql.write,
            Patience::None => &sql.write_unlocked,
            Patience::Brief => &sql.write_briefly,
        };
        let is_plain = draft.gone.is_empty();
        if is_plain && channels.is_empty() {
            return line.write(&write.plain, &arguments).await;
        }
        let statement = if is_plain { &write.telling } else { &write.moving };
        let nobody: Vec<String> = Vec::new();
        let mut told = arguments.clone();
        told.extend([(&channels as _, Type::TEXT_ARRAY), (&hints as _, Type::TEXT_ARRAY)]);
        told.extend((!is_plain).then_some((&draft.gone as _, Type::TEXT_ARRAY)));
        let answer = line.write(statement, &told).await;
        if channels.is_empty() || !answer.as_ref().is_err_and(error::is_without_hints) {
            return answer;
        }
        // Whoever is not told asks by itself, later.
        (told[PLAIN].0, told[PLAIN + 1].0) = (&nobody, &nobody);
        line.write(statement, &told).await
    }

    /// A write came through: nothing older can any more.
    pub(crate) fn stored(&self, name: &LockName, seen: Seen, news: &News) {
        self.shared().memory.is_in_doubt(name, seen.version);
        self.shared().memory.remember(name, seen);
        news.ring(&self.ears);
    }

    /// Those who do not hear our bells.
    pub(crate) fn elsewhere<'a>(
        &'a self,
        wakes: &'a [(Audience, OwnerId)],
    ) -> impl Iterator<Item = (Audience, OwnerId)> + 'a {
        wakes.iter().copied().filter(|(audience, owner)| !self.shared().bells.reach(*audience, *owner))
    }

    pub(crate) async fn must_take_writes(&self, line: &Line) -> Result<(), Failure> {
        if line.facts().takes_writes {
            return Ok(());
        }
        // A standby may have become a primary under an open connection.
        let facts = line.look().await?;
        facts.must_take_writes(line.name()).map_err(Failure::Refused)
    }
}

/// How the text of a row begins behind whose queue somebody may stand. Whoever does not know of that reads on as ever.
const LONG: &str = "{\"long\":true,";

/// Whether somebody may stand behind the queue of this row.
pub(crate) fn is_long(state: &str) -> bool {
    state.starts_with(LONG)
}

/// As a row keeps it.
pub(crate) fn encoded(ledger: &Ledger, is_long: bool) -> String {
    let text = ascii(ledger.encode());
    if is_long { format!("{LONG}{}", &text[1..]) } else { text }
}

/// In ASCII: the encoding of the database may lack what a label has.
pub(crate) fn ascii(json: String) -> String {
    if json.is_ascii() {
        return json;
    }
    let mut text = String::with_capacity(json.len() * 2);
    for character in json.chars() {
        if character.is_ascii() {
            text.push(character);
            continue;
        }
        // OK because JSON has them in strings alone, where an escape means the same.
        for unit in character.encode_utf16(&mut [0; 2]) {
            write!(text, "\\u{unit:04x}").expect("BUG: a string takes all that is written");
        }
    }
    text
}

/// Who is woken although it was not let in: it stands behind those who were, in case they are dead.
fn behind(ledger: &Ledger, name: &LockName, now: Duration, wakes: &[(Audience, OwnerId)]) -> Option<OwnerId> {
    // Where nobody was let in, there is nobody to wait for.
    let [first, .., (Audience::Waiters, last)] = wakes else { return None };
    let holders = ledger.view(name.clone(), moment(now)).holders;
    let holds = |owner: &OwnerId| holders.iter().any(|holder| holder.owner == owner.to_string());
    (holds(&first.1) && !holds(last)).then_some(*last)
}

/// What the server's clock must lie between.
pub(crate) fn window(guessed: Option<Duration>) -> (SystemTime, SystemTime) {
    let (from, until) = guessed.map_or((Duration::ZERO, FAR), |now| (now, now + TOLERANCE));
    (UNIX_EPOCH + from, UNIX_EPOCH + until)
}

/// Arguments of a write that tells nobody.
const PLAIN: usize = 7;
/// 2^33 s: the year 2242.
const FAR: Duration = Duration::from_secs(1 << 33);

#[cfg(test)]
mod tests {
    use tenure_core::Label;

    use super::*;

    /// The state is what it was, whatever characters it is written with.
    #[test]
    fn a_ledger_is_written_in_ascii_and_read_as_it_was() {
        let host = "caf\u{e9}-\u{65e5}-\u{1f512}-\\\"-\u{7f}";
        let json = format!(
            r#"{{"fence":7,"holders":[],"queue":[{}]}}"#,
            serde_json::json!({
                "owner": "0123456789abcdef".repeat(3), "mode": "exclusive", "turn": true,
                "ends_us": 1, "since_ms": 1, "label": Label::new(host, 1, "u", "p"),
            })
        );
        let ledger = Ledger::decode(&json).unwrap();
        let text = encoded(&ledger, true);
        assert!(is_long(&text) && text.is_ascii() && text.contains("\\ud83d\\udd12"), "{text}");
        assert_eq!(Ledger::decode(&text).unwrap(), ledger);
    }
}
