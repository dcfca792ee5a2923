//! `Shown`: text from a store, made safe to print.

use std::fmt::{self, Write};

/// Text from a store, safe to print: one line of bounded length. Characters that control a terminal, change the
/// direction of text or are invisible become `?`. JSON output does not use it: the text is exact there.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    text: &'a str,
    most: usize,
}

/// Text from a store, at most 512 characters of it, which is the maximum length of a lock name.
pub fn shown(text: &str) -> Shown<'_> {
    Shown { text, most: 512 }
}

impl Shown<'_> {
    /// The same with another maximum, in characters.
    #[must_use]
    pub fn within(self, most: usize) -> Self {
        Self { most, ..self }
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.text.chars();
        for c in rest.by_ref().take(self.most) {
            f.write_char(if is_plain(c) { c } else { '?' })?;
        }
        if rest.next().is_some() { f.write_char('…') } else { Ok(()) }
    }
}

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// No control character (C0, DEL, C1), no line separator, and no invisible character that acts on its neighbours.
fn is_plain(c: char) -> bool {
    let acts = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !acts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_paints_breaks_or_turns_a_line_is_a_question_mark() {
        for c in [
            "\0", "\n", "\r", "\x1b", "\x7f", "\u{85}", "\u{9b}", "\u{2028}", "\u{2029}", "\u{202e}",
            "\u{2066}",
        ] {
            assert_eq!(shown(&format!("a{c}b")).to_string(), "a?b", "{c:?}");
        }
        let plain = "ünï 文 👍 a.b/c#1 {}";
        assert_eq!((shown(plain).to_string(), format!("{:?}", shown(plain))), (plain.into(), plain.into()));
    }

    #[test]
    fn what_is_long_is_cut_and_shows_it() {
        assert_eq!(shown("abcd").within(3).to_string(), "abc…");
        assert_eq!(shown("abc").within(3).to_string(), "abc");
        assert_eq!(shown(&"é".repeat(600)).to_string().chars().count(), 513);
    }
}
