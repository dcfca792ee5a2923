//! Printed text: in whole lines, each one write that a pipe keeps whole, so that lines of several processes are not
//! mixed. Also how holders, times and durations are shown to people.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use jiff::{Timestamp, tz::TimeZone};
use tenure::view::HolderView;

/// Writes lines in blocks that a pipe does not split. A line that is longer than a block is one write.
pub(crate) fn write(out: &mut impl Write, text: &str) -> io::Result<()> {
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.as_bytes()[..rest.len().min(MOST)].iter().rposition(|byte| *byte == b'\n');
        let end = end.or_else(|| rest.find('\n')).map_or(rest.len(), |at| at + 1);
        out.write_all(&rest.as_bytes()[..end])?;
        rest = &rest[end..];
    }
    out.flush()
}

/// The text as lines for people, each cut to what a pipe keeps whole.
pub(crate) fn fitted(text: &str) -> String {
    let line = |line: &str| match line.len() < MOST {
        true => format!("{line}\n"),
        false => format!("{}{CUT}\n", &line[..line.floor_char_boundary(MOST - 1 - CUT.len())]),
    };
    text.lines().map(line).collect()
}

/// Colour only on a terminal and never with `NO_COLOR`.
pub(crate) fn is_colourful(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// `web-3 pid 4711 import.sh since 10:02:07, expires in 6.2 s unless renewed`
pub(crate) fn holder(holder: &HolderView) -> String {
    let end = match holder.expires_in {
        Some(left) => format!("expires in {} unless renewed", seconds(left)),
        None if holder.is_foreign() => {
            "which has no expiry: until that client deletes it, or `tenure break --foreign`".to_owned()
        }
        None => "does not expire".to_owned(),
    };
    format!("{}, {end}", holder_since(holder))
}

/// `web-3 pid 4711 import.sh since 10:02:07`
pub(crate) fn holder_since(holder: &HolderView) -> String {
    let since = holder.since.map_or(String::new(), |since| format!(" since {}", clock(since)));
    holder.who() + &since
}

/// `12 s ago`
pub(crate) fn ago(d: Duration) -> String {
    if d < Duration::from_secs(1) { "just now".to_owned() } else { seconds(d) + " ago" }
}

/// `4711`, or in quotes what a shell would not take as one word, behind `--` if it looks like a flag: the last word of a
/// command line.
pub(crate) fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:@%+,=".contains(c);
    let ends = if text.starts_with('-') { "-- " } else { "" };
    match text.chars().all(is_plain) {
        true => format!("{ends}{text}"),
        false => format!("{ends}'{}'", text.replace('\'', r"'\''")),
    }
}

/// `6.2 s`, or that it has no end by the clock.
pub(crate) fn left(left: Option<Duration>) -> String {
    left.map_or_else(|| "no end".to_owned(), seconds)
}

/// Three digits and a unit: `850 ns`, `9.81 µs`, `1.24 ms`, `12 s`
pub(crate) fn brief(d: Duration) -> String {
    let nanos = d.as_secs_f64() * 1e9;
    let (number, unit) = match nanos {
        ..1e3 => return format!("{nanos:.0} ns"),
        ..1e6 => (nanos / 1e3, "µs"),
        ..1e9 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    let digits = if number < 10.0 { 2 } else { usize::from(number < 100.0) };
    let number = format!("{number:.digits$}");
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
    format!("{number} {unit}")
}

/// `6.2 s`, `10 s`, `4 min 10 s`, `1 h`
pub(crate) fn seconds(d: Duration) -> String {
    let whole = d.as_secs();
    let both = |(large, of): (u64, &str), (small, unit): (u64, &str)| match small {
        0 => format!("{large} {of}"),
        _ => format!("{large} {of} {small} {unit}"),
    };
    match whole {
        0..60 => format!("{:.1}", d.as_secs_f64()).trim_end_matches(".0").to_owned() + " s",
        60..3600 => both((whole / 60, "min"), (whole % 60, "s")),
        _ => both((whole / 3600, "h"), (whole % 3600 / 60, "min")),
    }
}

fn timestamp(since_epoch: Duration) -> Timestamp {
    let nanos = i128::try_from(since_epoch.as_nanos()).unwrap_or(i128::MAX);
    Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::MAX)
}

/// Local time of day, with the date if it was another day.
pub(crate) fn clock(since_epoch: Duration) -> String {
    let then = timestamp(since_epoch).to_zoned(TimeZone::system());
    let now = Timestamp::now().to_zoned(TimeZone::system());
    let format = if then.date() == now.date() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    then.strftime(format).to_string()
}

/// `PIPE_BUF` of Linux: what a pipe takes in one piece.
const MOST: usize = 4096;

/// Marks a line that was cut.
const CUT: &str = "…";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    #[derive(Default)]
    struct Writes(Vec<String>);

    impl Write for Writes {
        fn write(&mut self, part: &[u8]) -> io::Result<usize> {
            self.0.push(String::from_utf8(part.to_vec()).unwrap());
            Ok(part.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn line() -> impl Strategy<Value = String> {
        (prop_oneof![Just("a"), Just("é"), Just("🔒")], 0..3000_usize)
            .prop_map(|(letter, count)| letter.repeat(count))
    }

    #[test]
    fn the_last_word_of_a_command_is_one_and_no_flag() {
        for (text, shown) in
            [("job", "job"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("-x", "-- -x"), ("-x y", "-- '-x y'")]
        {
            assert_eq!(word(text), shown);
        }
    }

    proptest! {
        /// Eight refused processes wrote into each other's lines: a line of 67 bytes was 60 writes.
        #[test]
        fn a_line_is_one_write_that_a_pipe_keeps_whole(lines in prop::collection::vec(line(), 0..9)) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let (mut exact, mut people) = (Writes::default(), Writes::default());
            write(&mut exact, &text).unwrap();
            write(&mut people, &fitted(&text)).unwrap();
            prop_assert_eq!(exact.0.concat(), text);
            for part in &exact.0 {
                prop_assert!(part.ends_with('\n') && (part.len() <= MOST || part.lines().count() == 1));
            }
            prop_assert_eq!(people.0.concat().lines().count(), lines.len());
            for part in &people.0 {
                prop_assert!(part.ends_with('\n') && part.len() <= MOST);
            }
        }
    }
    #[test]
    fn durations_read_at_a_glance() {
        let cases = [
            (6_230, "6.2 s"),
            (250_000, "4 min 10 s"),
            (300_000, "5 min"),
            (11_100_000, "3 h 5 min"),
            (3_600_000, "1 h"),
            (0, "0 s"),
            (10_000, "10 s"),
            (9_970, "10 s"),
        ];
        for (ms, text) in cases {
            assert_eq!(seconds(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn the_past_is_told_in_whole_words() {
        assert_eq!(ago(Duration::from_millis(40)), "just now");
        assert_eq!(ago(Duration::from_secs(12)), "12 s ago");
    }

    #[test]
    fn a_word_for_a_shell_is_quoted_where_it_must_be() {
        assert_eq!(["deploy/web-1", "a b", "it's"].map(word), ["deploy/web-1", "'a b'", r"'it'\''s'"]);
    }

    #[test]
    fn short_times_have_three_digits_and_a_unit() {
        let cases =
            [(0, "0 ns"), (850, "850 ns"), (9_812, "9.81 µs"), (52_000, "52 µs"), (412_300, "412 µs")];
        for (nanos, text) in cases.into_iter().chain([(1_240_000, "1.24 ms"), (12_000_000_000, "12 s")]) {
            assert_eq!(brief(Duration::from_nanos(nanos)), text);
        }
    }
}
