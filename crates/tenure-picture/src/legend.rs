//! The lines below the lanes: what happened at which instant.

use std::time::Duration;

use crate::picture::{Lane, Mark, Picture};

/// A mark and its number.
pub(crate) struct Numbered<'p> {
    pub(crate) number: usize,
    pub(crate) lane: usize,
    pub(crate) mark: &'p Mark,
    /// When.
    pub(crate) time: String,
    /// Who and what.
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
    all.truncate(most);
    let times: Vec<Duration> = all.iter().map(|(_, mark)| picture.begins + mark.at).collect();
    let shown = all.into_iter().enumerate().map(|(index, (lane, mark))| {
        let line = format!("{} {}", picture.lanes[lane].name, mark.label);
        Numbered { number: index + 1, lane, mark, time: seconds(&times, index), line }
    });
    (shown.collect(), count.saturating_sub(most))
}

/// One of these times, as on the axis: `0.35 s`; with its ms, `0.351 s`, if the one before or behind it would read the same.
fn seconds(times: &[Duration], index: usize) -> String {
    let short = |time: &Duration| format!("{:.2} s", time.as_secs_f64());
    let own = short(&times[index]);
    let neighbours = [index.wrapping_sub(1), index + 1];
    if neighbours.iter().filter_map(|at| times.get(*at)).any(|time| short(time) == own) {
        format!("{:.3} s", times[index].as_secs_f64())
    } else {
        own
    }
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
    fn times_that_would_read_the_same_have_their_ms() {
        let times = [40, 301, 304, 400].map(Duration::from_millis);
        let told: Vec<String> = (0..times.len()).map(|index| seconds(&times, index)).collect();
        assert_eq!(told, ["0.04 s", "0.301 s", "0.304 s", "0.40 s"]);
    }

    #[test]
    fn a_long_line_is_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("unbreakable", 4), ["unbreakable"]);
    }
}
