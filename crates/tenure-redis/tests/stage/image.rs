//! `Image`: all that stands in a server, read, kept and put back; and what of it matters to a lock.

use std::{collections::BTreeMap, fmt::Write};

use serde_json::{Value, json};
use tenure_testkit::redis::Raw;

/// All keys, with what they hold and when they end.
const READ: &str = r"
local out = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind, rows, fill = redis.call('TYPE', key).ok, {}, 0
  local all = kind == 'string' and {redis.call('GET', key)} or kind == 'hash' and redis.call('HGETALL', key)
    or kind == 'zset' and redis.call('ZRANGE', key, '0', '-1', 'WITHSCORES') or {}
  for i = 1, #all, kind == 'string' and 1 or 2 do
    if string.sub(all[i], 1, 6) == 'filler' then
      fill = fill + 1
    else
      rows[#rows + 1] = all[i]
      rows[#rows + 1] = all[i + 1]
    end
  end
  out[#out + 1] = {key = key, kind = kind, left = redis.call('PTTL', key), rows = rows, fill = fill}
end
return cjson.encode(out)";

/// Writes an image. ARGV  1 the image  2 what the keys begin with that stay, or ''
const WRITE: &str = r"
for _, key in ipairs(redis.call('KEYS', '*')) do
  if ARGV[2] == '' or string.sub(key, 1, #ARGV[2]) ~= ARGV[2] then redis.call('DEL', key) end
end
for _, it in ipairs(cjson.decode(ARGV[1])) do
  if ARGV[2] == '' or string.sub(it.key, 1, #ARGV[2]) ~= ARGV[2] then
    local rows = it.rows
    if it.kind == 'string' then redis.call('SET', it.key, rows[1]) end
    if it.kind == 'hash' then redis.call('HSET', it.key, unpack(rows)) end
    for i = 1, it.kind == 'zset' and #rows or 0, 2 do redis.call('ZADD', it.key, rows[i + 1], rows[i]) end
    for i = 1, it.fill do redis.call('ZADD', it.key, i, 'filler' .. i) end
    if it.left > 0 then redis.call('PEXPIRE', it.key, string.format('%d', it.left)) end
  end
end";

const SHARED: &str = "tenure:shared";

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    kind: String,
    /// In ms; -1 has no end.
    left: i64,
    /// The text, or members and scores, or fields and values.
    rows: Vec<String>,
    fill: u64,
}

/// All keys of a server, by the names that [`Image::short`] gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image(BTreeMap<String, Entry>);

impl Image {
    pub(crate) fn read(raw: &mut Raw) -> Self {
        let text = raw.command(&["EVAL", READ, "0"]).text();
        let all: Value = serde_json::from_str(&text).unwrap();
        let texts = |rows: &Value| {
            rows.as_array().into_iter().flatten().map(|row| row.as_str().unwrap().to_owned()).collect()
        };
        let entry = |it: &Value| {
            let kind = it["kind"].as_str().unwrap().to_owned();
            let (left, fill) = (it["left"].as_i64().unwrap(), it["fill"].as_u64().unwrap());
            (it["key"].as_str().unwrap().to_owned(), Entry { kind, left, rows: texts(&it["rows"]), fill })
        };
        Self(all.as_array().into_iter().flatten().map(entry).collect())
    }

    /// In place of all that is there; or beside what begins with `kept`.
    pub(crate) fn write(&self, raw: &mut Raw, kept: &str) {
        let all = self.0.iter().map(|(key, it)| {
            json!({"key": key, "kind": it.kind, "left": it.left, "rows": it.rows, "fill": it.fill})
        });
        let text = Value::Array(all.collect()).to_string();
        let answer = raw.command(&["EVAL", WRITE, "0", &text, kept]);
        assert_eq!(answer.error(), None);
    }

    fn entry(&self, key: &str, kind: &str) -> Option<&Entry> {
        self.0.get(key).filter(|it| it.kind == kind)
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.entry(key, "string").map(|it| it.rows[0].as_str())
    }

    pub(crate) fn left(&self, key: &str) -> Option<i64> {
        self.0.get(key).map(|it| it.left)
    }

    fn pairs(&self, key: &str, kind: &str) -> impl Iterator<Item = (&str, &str)> {
        let rows = self.entry(key, kind).map_or(&[][..], |it| &it.rows[..]);
        rows.chunks(2).map(|pair| (pair[0].as_str(), pair[1].as_str()))
    }

    pub(crate) fn field(&self, key: &str, field: &str) -> Option<&str> {
        self.pairs(key, "hash").find(|pair| pair.0 == field).map(|pair| pair.1)
    }

    /// 0 for a place ahead of the default class.
    pub(crate) fn score(&self, key: &str, member: &str) -> Option<u64> {
        self.pairs(key, "zset").find(|pair| pair.0 == member).map(|pair| pair.1.parse().unwrap_or(0))
    }

    /// The field of the record that is the open gate, with its number.
    pub(crate) fn gate(&self, record: &str) -> Option<(&str, &str)> {
        self.pairs(record, "hash").find(|pair| pair.0.contains('.'))
    }
}

/// Where what belongs to a lock stands.
pub(crate) struct Shelf {
    pub(crate) lock: String,
    pub(crate) queue: String,
    pub(crate) places: String,
    pub(crate) shared: String,
    pub(crate) who: String,
    pub(crate) memo: String,
    pub(crate) fence: String,
    pub(crate) record: &'static str,
}

impl Shelf {
    pub(crate) fn of(lock: &str, record: &'static str) -> Self {
        let side = |kind: &str| format!("tenure:{{{lock}}}:{kind}:{lock}");
        let [queue, places, shared] = ["queue", "places", "shared"].map(side);
        let [who, memo, fence] = ["who", "memo", "fence"].map(side);
        Self { lock: lock.to_owned(), queue, places, shared, who, memo, fence, record }
    }

    /// Those with a type of their own, by what they are called here.
    pub(crate) fn keys(&self) -> [(&'static str, &str); 8] {
        [
            ("lock", &self.lock),
            ("queue", &self.queue),
            ("places", &self.places),
            ("shared", &self.shared),
            ("who", &self.who),
            ("memo", &self.memo),
            ("fence", &self.fence),
            ("record", self.record),
        ]
    }

    /// Who shares the lock, with details and the end of the lease.
    fn sharers<'a>(&self, image: &'a Image, now: u64) -> Vec<(&'a str, &'a str, u64)> {
        if image.text(&self.lock) != Some(SHARED) {
            return Vec::new();
        }
        let all = image.pairs(&self.shared, "zset").map(|(owner, end)| (owner, end.parse().unwrap()));
        let live = all.filter(|(_, end): &(_, u64)| *end > now);
        live.map(|(owner, end)| (owner, image.field(&self.who, owner).unwrap_or("?"), end)).collect()
    }

    /// The token under which this owner holds, 0 if it was handed the lock; and how long its lease lasts.
    pub(crate) fn holds(&self, image: &Image, owner: &str, now: u64) -> Option<(u64, u64)> {
        if let Some(rest) =
            image.text(&self.lock).and_then(|text| text.strip_prefix(owner)?.strip_prefix(':'))
        {
            let left = u64::try_from(image.left(&self.lock)?).unwrap_or(u64::MAX);
            return Some((rest.split(':').next()?.parse().unwrap(), left));
        }
        let (_, details, end) = self.sharers(image, now).into_iter().find(|it| it.0 == owner)?;
        Some((details.split(':').nth(1).and_then(|token| token.parse().ok()).unwrap_or(0), end - now))
    }

    pub(crate) fn has_place(&self, image: &Image, owner: &str, now: u64) -> bool {
        image.score(&self.queue, owner).is_some()
            && image.score(&self.places, owner).is_some_and(|end| end > now)
    }

    /// This owner has a place, and how it waits is known.
    pub(crate) fn waits(&self, image: &Image, owner: &str, now: u64) -> bool {
        self.has_place(image, owner, now) && image.field(&self.who, owner).is_some()
    }

    /// This owner neither holds nor waits.
    pub(crate) fn is_rid_of(&self, image: &Image, owner: &str, now: u64) -> bool {
        self.holds(image, owner, now).is_none() && image.score(&self.queue, owner).is_none()
    }

    /// How far tokens are counted.
    pub(crate) fn count(&self, image: &Image) -> u64 {
        // What a node's record holds is where counters begin that were lost.
        let is_one = self.record == "tenure:one";
        let own = image.text(&self.fence).and_then(|text| text.parse().ok()).unwrap_or(0);
        let gate = image.gate(self.record).and_then(|(_, count)| count.parse().ok()).unwrap_or(0);
        let waits = image.field(self.record, "token").and_then(|count| count.parse().ok()).unwrap_or(0);
        if is_one { own.max(gate).max(waits) } else { own }
    }

    /// The record is as it was, or whole and that of this run: each client may have it written anew.
    pub(crate) fn has_sound_record(&self, before: &Image, after: &Image, run: &str) -> bool {
        let field = |field| after.field(self.record, field);
        let is_same = ["run", "replid", "settings", "next"]
            .iter()
            .all(|name| before.field(self.record, name) == field(name));
        let has_count = after.gate(self.record).is_some() || field("token").is_some();
        let is_whole = ["replid", "settings", "ready"].iter().all(|name| field(name).is_some());
        is_same || field("run") == Some(run) && is_whole && has_count
    }

    /// What matters to holders, waiters and readers of the memo, as text. What has expired does not.
    pub(crate) fn matters(&self, image: &Image, now: u64) -> String {
        let mut said = String::new();
        let mut say = |line: String| writeln!(said, "  {line}").unwrap();
        for (what, key) in self.keys() {
            let (Some(it), kind) = (image.0.get(key), kind_of(what)) else { continue };
            if it.kind != kind {
                say(format!("{what} is a {}: {:?} ends in {}", it.kind, it.rows, it.left));
            }
        }
        if let Some(text) = image.text(&self.lock) {
            say(format!("lock {} ends in {}", text.trim_end_matches('+'), self.left_of(image)));
        }
        for (owner, details, end) in self.sharers(image, now) {
            say(format!("shared by {owner} as {details} until {end}"));
        }
        if image.text(&self.lock) == Some(SHARED) {
            say(format!("least {}", image.field(&self.who, "least").unwrap_or("none")));
        }
        for (owner, _) in image.pairs(&self.queue, "zset").filter(|it| self.waits(image, it.0, now)) {
            let details = image.field(&self.who, owner).unwrap_or_default();
            say(format!("waits {owner} as {details} until {:?}", image.score(&self.places, owner)));
        }
        if let Some(memo) = image.text(&self.memo) {
            say(format!("memo {memo} ends in {:?}", image.left(&self.memo)));
        }
        said
    }

    fn left_of(&self, image: &Image) -> i64 {
        image.left(&self.lock).unwrap_or(-2)
    }

    /// The keys that have no end, unless they had none before.
    pub(crate) fn endless(&self, before: &Image, after: &Image) -> Vec<&'static str> {
        let keys = self.keys().into_iter().filter(|(what, _)| *what != "record");
        let is_endless = |key: &str| after.left(key) == Some(-1) && before.left(key) != Some(-1);
        keys.filter(|(_, key)| is_endless(key)).map(|(what, _)| what).collect()
    }

    /// `least` in `who` says the smallest limit among those who share, and how many have it.
    pub(crate) fn has_true_least(&self, image: &Image) -> bool {
        if image.text(&self.lock) != Some(SHARED) {
            return true;
        }
        let owners = image.pairs(&self.shared, "zset").map(|it| it.0);
        let modes = owners.map(|owner| image.field(&self.who, owner).unwrap_or("s:"));
        let limits: Vec<u64> = modes.filter_map(|mode| mode.split(':').next()?.parse().ok()).collect();
        let least =
            limits.iter().min().map(|min| format!("{min}:{}", limits.iter().filter(|it| *it == min).count()));
        image.field(&self.who, "least").map(str::to_owned) == least
    }
}

/// The type of what we write under the key of this name.
pub(crate) fn kind_of(what: &str) -> &'static str {
    match what {
        "lock" | "memo" | "fence" => "string",
        "who" | "record" => "hash",
        _ => "zset",
    }
}
