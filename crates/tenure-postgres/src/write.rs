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
    error::{self, Failure},
    line::{Argument, Line},
    memory::{Seen, TOLERANCE, moment, since_epoch},
    sql::Patience,
    store::Store,
    wake::Ears,
};

/// A verb that was run, and is to be stored.
pub(crate) struct Draft<A> {
    /// On top of which version; 0: there is no row.
    pub(crate) version: i64,
    /// And of which state. After a fail-over another history of the row may have come to the same version; and a pooler may lead a
    /// reading and the write behind it to two servers.
    pub(crate) before: String,
    pub(crate) ledger: Ledger,
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
        let state = encoded(&draft.ledger);
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
        let version = draft.next_version();
        self.stored(name, Seen { version, state, ledger: draft.ledger, at: self.shared().host.now() }, &news);
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
        let (key, is_busy) = (name.as_str(), !draft.ledger.is_free());
        let mut arguments: Vec<Argument<'_>> =
            vec![(&key, Type::TEXT), (&version, Type::INT8), (&is_busy, Type::BOOL), (&state, Type::TEXT)];
        if draft.is_new() {
            return line.write(&sql.insert, &arguments).await;
        }
        arguments.push((&draft.before, Type::TEXT));
        let write = match draft.patience {
            Patience::Any => &sql.write,
            Patience::None => &sql.write_unlocked,
            Patience::Brief => &sql.write_briefly,
        };
        if !channels.is_empty() {
            arguments.extend([(&channels as _, Type::TEXT_ARRAY), (&hints as _, Type::TEXT_ARRAY)]);
            let answer = line.write(&write.telling, &arguments).await;
            if !answer.as_ref().is_err_and(error::is_without_hints) {
                return answer;
            }
            // Whoever is not told asks by itself, later.
            arguments.truncate(PLAIN);
        } else if draft.guessed.is_some() {
            arguments.extend([(&from as _, Type::TIMESTAMPTZ), (&until as _, Type::TIMESTAMPTZ)]);
            return line.write(&write.between, &arguments).await;
        }
        line.write(&write.plain, &arguments).await
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

    async fn must_take_writes(&self, line: &Line) -> Result<(), Failure> {
        if line.facts().takes_writes {
            return Ok(());
        }
        // A standby may have become a primary under an open connection.
        let facts = line.look().await?;
        facts.must_take_writes(line.name()).map_err(Failure::Refused)
    }
}

/// As a row keeps it, in ASCII: the encoding of the database may lack what a label has.
pub(crate) fn encoded(ledger: &Ledger) -> String {
    let json = ledger.encode();
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

/// Arguments of a write that neither tells nor guesses.
const PLAIN: usize = 5;
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
        let text = encoded(&ledger);
        assert!(text.is_ascii() && text.contains("\\ud83d\\udd12"), "{text}");
        assert_eq!(Ledger::decode(&text).unwrap(), ledger);
    }
}
