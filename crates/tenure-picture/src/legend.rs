//! The lines below the lanes: what happened at which instant.

use std::time::Duration;

use crate::picture::{Lane, Mark, Picture};

/// A mark and its number.
pub(crate) struct Numbered<'p> {
    pub(crate) number: usize,
    pub(crate) lane: usize,
    pub(crate) mark: &'p Mark,
    /// Its line: when, who, what.
    pub(crate) line: String,
}

/// The marks by time, as many as can be read; and how many are left out.
pub(crate) fn numbered(picture: &Picture) -> (Vec<Numbered<'_>>, usize) {
    let of_lane = |(lane, Lane { marks, .. }): (usize, &'_ Lane)| (lane, marks.len());
    let count: usize = picture.lanes.iter().enumerate().map(of_lane).map(|(_, count)| count).sum();
    let mut all: Vec<(usize, &Mark)> = picture
        .lanes
        .iter()
        .enumerate()
        .flat_map(|(lane, of)| of.marks.iter().map(move |mark| (lane, mark)))
        .collect();
    let most = if picture.width > 0.0 { MANY } else { MOST };
    all.sort_by_key(|(_, mark)| mark.at);
    let shown = all.into_iter().take(most).enumerate().map(|(index, (lane, mark))| {
        let line =
            format!("{} {} {}", seconds(picture.begins + mark.at), picture.lanes[lane].name, mark.label);
        Numbered { number: index + 1, lane, mark, line }
    });
    (shown.collect(), count.saturating_sub(most))
}

/// As on the axis: `0.35 s`.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// A line in pieces that fit below the picture.
pub(crate) fn wrapped(line: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in line.split(' ') {
        let last = lines.last_mut().expect("BUG: there is a line");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > columns {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}

/// Marks that are numbered: more cannot be told apart.
const MOST: usize = 16;
/// In a picture that is as wide as it likes.
const MANY: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("unbreakable", 4), ["unbreakable"]);
    }
}
