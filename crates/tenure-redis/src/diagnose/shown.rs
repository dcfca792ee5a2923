//! What others wrote, as it is shown: short, without control characters, and never a command by itself.

use std::{error::Error, time::Duration};

use tenure_core::BackendError;

/// Of a key.
const KEY: usize = 80;
/// Of a foreign value: enough to know it again.
const VALUE: usize = 24;
/// Of the server's own words.
const WORDS: usize = 240;
/// How many examples a finding has.
const EXAMPLES: usize = 3;

pub(super) fn key(bytes: &[u8]) -> String {
    tamed(&String::from_utf8_lossy(bytes), KEY)
}

pub(super) fn value(text: &str) -> String {
    tamed(text, VALUE)
}

/// The server's own words.
pub(super) fn words(text: &str) -> String {
    tamed(text, WORDS)
}

/// An error with the server's own words.
pub(super) fn error(error: &BackendError) -> String {
    let words = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    self::words(&format!("{error}{words}"))
}

fn tamed(text: &str, most: usize) -> String {
    let mut shown: String = text.chars().take(most).map(|c| if is_wild(c) { '?' } else { c }).collect();
    if text.chars().nth(most).is_some() {
        shown.push('…');
    }
    shown
}

/// Control characters, and those that turn the direction of a text or cannot be seen.
fn is_wild(c: char) -> bool {
    let is_hidden = matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    c.is_control() || is_hidden || matches!(c, '\u{2028}'..='\u{202e}')
}

/// A word of a shell command; what a shell could take for more than a word is not shown in one.
pub(super) fn word<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_.:@%+=-".contains(c);
    let is_word = !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain);
    if is_word { text } else { otherwise }
}

/// `30s`, `1m 30s`; never finer than ms.
pub(super) fn time(d: Duration) -> String {
    // OK because no duration here is anywhere near 2^64 ms.
    let ms = u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}

/// Counts things, and keeps the first few as examples.
#[derive(Default)]
pub(super) struct Tally {
    count: usize,
    examples: Vec<String>,
}

impl Tally {
    pub(super) fn add(&mut self, example: impl FnOnce() -> String) {
        self.count += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(example());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// `2 keys (a, b)`
    pub(super) fn of(&self, one: &str, many: &str) -> String {
        let rest = if self.count > EXAMPLES { ", …" } else { "" };
        let noun = if self.count == 1 { one } else { many };
        format!("{} {noun} ({}{rest})", self.count, self.examples.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_foreign_can_neither_paint_nor_flood_the_terminal() {
        assert_eq!(key(b"a\x1b[31m\xff\n"), "a?[31m\u{fffd}?");
        assert_eq!(value("pass\u{202e}word"), "pass?word");
        assert_eq!(value(&"v".repeat(25)), format!("{}…", "v".repeat(24)));
        assert_eq!(value(&"v".repeat(24)), "v".repeat(24));
    }

    #[test]
    fn a_name_that_a_shell_could_run_stands_in_no_command() {
        assert_eq!(word("orders/42", "NAME"), "orders/42");
        for wild in ["", "-rf", "a b", "$(reboot)", "a;b", "a'b", "é", "{a,b}"] {
            assert_eq!(word(wild, "NAME"), "NAME", "{wild}");
        }
    }

    #[test]
    fn a_tally_has_three_examples() {
        let mut tally = Tally::default();
        assert!(tally.is_empty());
        tally.add(|| "a".into());
        assert_eq!(tally.of("key", "keys"), "1 key (a)");
        for more in ["b", "c", "d"] {
            tally.add(|| more.into());
        }
        assert_eq!(tally.of("key", "keys"), "4 keys (a, b, c, …)");
    }
}
