//! Whole lines: each is one write that a pipe keeps whole, so that lines of several processes are not mixed.

use std::io::{self, Write};

/// `PIPE_BUF` of Linux: what a pipe takes in one piece.
const MOST: usize = 4096;

/// What stands for the rest of a line that was cut.
const CUT: &str = "…";

/// Writes lines, as many at once as a pipe keeps whole. A longer line is one write all the same.
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

/// The standard error for logs, which come a line at a time.
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write(&mut io::stderr(), &fitted(&String::from_utf8_lossy(line)))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

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

    proptest! {
        /// Eight that were refused at once wrote into each other's lines: a line of 67 bytes was 60 writes.
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
}
