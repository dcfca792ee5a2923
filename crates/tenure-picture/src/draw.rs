//! Draws a picture as SVG: lanes, and below them the lines that say what happened at which instant.

use std::time::Duration;

use svg::{
    Document, Node,
    node::element::{Circle, Description, Group, Line, Rectangle, Style, Text, Title},
};

use crate::{Bar, Look, Mark, Picture, Sign};

/// The picture as a separate document, or as a part of a page.
pub(crate) fn svg(picture: &Picture) -> String {
    Drawing::of(picture).document().to_string()
}

/// Where things are: in units that are px where the picture is as wide as it needs.
struct Drawing<'p> {
    picture: &'p Picture,
    lane: f64,
    marks: Vec<Numbered<'p>>,
    left_out: usize,
    top: f64,
    width: f64,
}

impl<'p> Drawing<'p> {
    fn of(picture: &'p Picture) -> Self {
        let lane = if picture.lanes.len() > MANY {
            (MANY as f64 * LANE / picture.lanes.len() as f64).max(3.0)
        } else {
            LANE
        };
        let (marks, left_out) = numbered(picture);
        let words = picture.shades.len().saturating_sub(1) as f64 * WORDS;
        Self { picture, lane, marks, left_out, top: TOP + words, width: picture.width.clamp(WIDTH, WIDEST) }
    }

    fn document(&self) -> Document {
        let lines = self.lines();
        let bottom = self.bottom() + 18.0;
        let height = bottom + lines.len() as f64 * LINE + 6.0;
        let id = &self.picture.id;
        let mut document = Document::new()
            .set("viewBox", format!("0 0 {} {}", number(self.width), number(height)))
            .set("width", number(self.width))
            .set("height", number(height))
            .set("class", "tp")
            .set("role", "img")
            .set("aria-labelledby", format!("{id}-title {id}-text"))
            .add(Title::new(&self.picture.title).set("id", format!("{id}-title")))
            .add(
                Description::new()
                    .set("id", format!("{id}-text"))
                    .add(svg::node::Text::new(&self.picture.description)),
            )
            .add(Style::new(STYLE))
            .add(rectangle("paper", 0.0, 0.0, self.width, height));
        document.append(self.grid());
        for index in 0..self.picture.lanes.len() {
            document.append(self.lane(index));
        }
        document.append(self.shades());
        document.append(self.signs());
        for (index, (indent, line)) in lines.iter().enumerate() {
            document.append(text("line", 8.0 + indent, bottom + (index as f64 + 0.8) * LINE, line));
        }
        document
    }

    /// What is written below the lanes, and how far it is moved in.
    fn lines(&self) -> Vec<(f64, String)> {
        let marks = self.marks.iter().flat_map(|mark| {
            // Wrapped without number and time: where a line breaks must not depend on their length.
            let lines = wrapped(&mark.line, COLUMNS - NUMBER);
            lines.into_iter().enumerate().map(|(nth, line)| match nth {
                0 => (0.0, format!("{}. {} {line}", mark.number, mark.time)),
                _ => (14.0, line),
            })
        });
        let more = (self.left_out > 0).then(|| (0.0, format!("and {} more marks", self.left_out)));
        marks.chain(more).collect()
    }

    fn grid(&self) -> Group {
        let mut group = Group::new();
        let step = step(self.picture.span, (self.width / 55.0) as u32);
        let mut at = Duration::ZERO;
        while at <= self.picture.span {
            let x = self.x(at);
            group.append(line("grid", (x, self.top - 4.0), (x, self.bottom())));
            let words = label(self.picture.begins + at);
            let room = words.chars().count() as f64 * 6.0;
            group.append(text("soft", (x - 3.0).min(self.width - room), self.bottom() + 12.0, &words));
            at += step;
        }
        group
    }

    fn lane(&self, index: usize) -> Group {
        let lane = &self.picture.lanes[index];
        let y = self.y(index);
        let mut group = Group::new().set("data-lane", lane.name.as_str());
        if self.lane >= LANE || index == 0 {
            let middle = y + (self.row() + self.lane) / 2.0;
            group.append(text("name", 6.0, middle + 4.0, &lane.name));
        }
        group.append(line("base", (LEFT, y + self.lane - 1.0), (self.width - RIGHT, y + self.lane - 1.0)));
        for bar in &lane.bars {
            group.append(self.bar(bar, y));
        }
        group
    }

    fn bar(&self, bar: &Bar, y: f64) -> Group {
        let (from, until) = (self.x(bar.from), self.x(bar.until));
        let width = (until - from).max(1.5);
        let (y, lane) = (y + self.row(), self.lane - self.row());
        let air = lane / 8.0;
        let (class, deep) = match bar.look {
            Look::Waits if self.lane < LANE => ("thin", lane / 3.0),
            Look::Waits => ("waits", lane / 5.0),
            Look::Believes => ("believes", air),
            Look::Stopped => ("stopped", air),
            Look::Holds => ("holds", air),
        };
        let mut group = Group::new();
        group.append(rectangle(class, from, y + deep, width, lane - 2.0 * deep));
        if bar.look == Look::Stopped {
            // Hatched: the client does nothing, and cannot notice that.
            let mut x = from + 3.0;
            while x + 4.0 < from + width {
                group.append(line("hatch", (x, y + lane - deep), (x + 4.0, y + deep)));
                x += 6.0;
            }
        }
        if self.lane >= LANE && width > bar.label.chars().count() as f64 * 6.0 + 12.0 {
            let class = format!("in-{class}");
            group.append(text(&class, from + 9.0, y + lane / 2.0 + 4.0, &bar.label));
        }
        group
    }

    fn shades(&self) -> Group {
        let mut group = Group::new();
        for (nth, shade) in self.picture.shades.iter().enumerate() {
            let (from, until) = (self.x(shade.from), self.x(shade.until));
            let width = (until - from).max(3.0);
            let above = self.top - 4.0;
            group.append(rectangle("shade", from, above, width, self.bottom() - above));
            let room = shade.label.chars().count() as f64 * 6.2;
            let x = from.min(self.width - RIGHT - room).max(4.0);
            group.append(text("harm", x, self.top - 8.0 - nth as f64 * WORDS, &shade.label));
        }
        group
    }

    fn signs(&self) -> Group {
        let mut group = Group::new();
        let mut last: Option<(usize, f64, f64)> = None;
        for Numbered { number, lane, mark, .. } in &self.marks {
            let x = self.x(mark.at);
            let y = self.y(*lane);
            let middle = y + if self.row() > 0.0 { self.row() / 2.0 } else { self.lane / 2.0 };
            let at = x;
            // Marks of one instant are next to each other.
            let x = match last {
                Some((before, last, _)) if before == *lane && x < last + 11.0 => last + 11.0,
                _ => x,
            };
            last = Some((*lane, x, middle));
            let class = format!("sign {}", sign(mark.sign));
            if self.row() > 0.0 {
                group.append(line("stem", (x, middle), (at, y + self.row() + 2.0)));
            }
            if mark.sign == Sign::Refused {
                group.append(line("cross", (x - 7.0, middle - 7.0), (x + 7.0, middle + 7.0)));
                group.append(line("cross", (x - 7.0, middle + 7.0), (x + 7.0, middle - 7.0)));
            }
            group.append(
                Circle::new()
                    .set("class", class)
                    .set("cx", self::number(x))
                    .set("cy", self::number(middle))
                    .set("r", 6),
            );
            group.append(text("number", x, middle + 3.0, &number.to_string()));
        }
        group
    }

    fn x(&self, at: Duration) -> f64 {
        let span = self.picture.span.as_secs_f64().max(0.001);
        LEFT + (self.width - LEFT - RIGHT) * (at.as_secs_f64() / span).min(1.0)
    }

    fn y(&self, lane: usize) -> f64 {
        self.top + lane as f64 * self.lane
    }

    /// The space above the bars of a lane, so that no mark covers a word. A lane that is drawn thinner has none.
    fn row(&self) -> f64 {
        if self.lane < LANE { 0.0 } else { ROW }
    }

    fn bottom(&self) -> f64 {
        self.y(self.picture.lanes.len())
    }
}

const fn sign(sign: Sign) -> &'static str {
    match sign {
        Sign::Fault => "fault",
        Sign::Taken => "taken",
        Sign::Refused => "refused",
        Sign::Harmful => "harmful",
        Sign::Note => "note",
    }
}

fn rectangle(class: &str, x: f64, y: f64, width: f64, height: f64) -> Rectangle {
    let element = Rectangle::new().set("class", class).set("x", number(x)).set("y", number(y));
    element
        .set("width", number(width))
        .set("height", number(height))
        .set("rx", if class == "paper" { 0 } else { 2 })
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Line {
    let element = Line::new().set("class", class).set("x1", number(from.0)).set("y1", number(from.1));
    element.set("x2", number(to.0)).set("y2", number(to.1))
}

fn text(class: &str, x: f64, y: f64, words: &str) -> Text {
    Text::new(words).set("class", class).set("x", number(x)).set("y", number(y))
}

/// With one digit behind the decimal point.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

/// The step of the axis, for `count` steps at most.
fn step(span: Duration, count: u32) -> Duration {
    let steps = [50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000];
    let fits = |ms: &&u64| span.as_millis() <= u128::from(**ms) * u128::from(count);
    Duration::from_millis(*steps.iter().find(fits).unwrap_or(&3_600_000))
}

fn label(at: Duration) -> String {
    if at.is_zero() { "0".into() } else { format!("{} s", at.as_millis() as f64 / 1000.0) }
}

/// A mark and its number.
struct Numbered<'p> {
    number: usize,
    lane: usize,
    mark: &'p Mark,
    /// When.
    time: String,
    /// Who and what.
    line: String,
}

/// The marks by time, as many as can be read; and how many are left out.
fn numbered(picture: &Picture) -> (Vec<Numbered<'_>>, usize) {
    let lanes = picture.lanes.iter().enumerate();
    let mut all: Vec<(usize, &Mark)> =
        lanes.flat_map(|(lane, of)| of.marks.iter().map(move |mark| (lane, mark))).collect();
    let most = if picture.width > 0.0 { MANY_MARKS } else { FEW_MARKS };
    let left_out = all.len().saturating_sub(most);
    all.sort_by_key(|(_, mark)| mark.at);
    all.truncate(most);
    let times: Vec<Duration> = all.iter().map(|(_, mark)| picture.begins + mark.at).collect();
    let shown = all.into_iter().enumerate().map(|(index, (lane, mark))| {
        let line = format!("{} {}", picture.lanes[lane].name, mark.label);
        Numbered { number: index + 1, lane, mark, time: seconds(&times, index), line }
    });
    (shown.collect(), left_out)
}

/// One of these times, as on the axis: `0.35 s`. With its ms, `0.351 s`, if the one before or after it would read the same.
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

/// A line in pieces of at most this number of letters, except for longer words.
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

/// Of the whole picture: what a phone shows without making letters too small.
const WIDTH: f64 = 440.0;
/// Of a long history: the widest that viewers display.
const WIDEST: f64 = 20_000.0;
const LEFT: f64 = 68.0;
const RIGHT: f64 = 36.0;
const TOP: f64 = 26.0;
/// One more of these above the lanes for each shade after the first: their words must not meet.
const WORDS: f64 = 12.0;
const LANE: f64 = 36.0;
/// Of a lane, for its marks.
const ROW: f64 = 14.0;
const LINE: f64 = 15.0;
/// More lanes than this are drawn thinner.
const MANY: usize = 9;
/// Letters in a line below the lanes.
const COLUMNS: usize = 70;
/// Of these, for its number and its time: `10. 12.062 s `.
const NUMBER: usize = 13;
/// Marks that are numbered: a reader could not distinguish more.
const FEW_MARKS: usize = 16;
/// In a picture that is as wide as it needs.
const MANY_MARKS: usize = 60;
/// The style sheet of a picture. Colour alone shows nothing: bars and marks differ in shape as well.
const STYLE: &str = "\
.tp{--ink:#1d2430;--soft:#5b6577;--line:#c9d0da;--paper:#fff;--belief:#2f6fb5;--inbelief:#fff;--store:#dfe7f1;\
--harm:#c4262e;--shade:#c4262e2b;--fault:#8a4b00;--good:#1d7a3c}\
@media(prefers-color-scheme:dark){.tp{--ink:#e6eaf0;--soft:#a3adbd;--line:#465063;--paper:#151a22;--belief:#6aa9ea;\
--inbelief:#0c121b;--store:#2c3747;--harm:#ff7a80;--shade:#ff7a8033;--fault:#f0a94b;--good:#63c784}}\
.tp text{font:11px/1.2 system-ui,sans-serif;fill:var(--ink)}\
.tp .paper{fill:var(--paper)}.tp .soft{fill:var(--soft)}.tp .name{font-weight:600}\
.tp .grid{stroke:var(--line);stroke-width:.5}.tp .base{stroke:var(--line);stroke-width:1}\
.tp .waits{fill:none;stroke:var(--soft);stroke-dasharray:3 2}.tp .believes{fill:var(--belief)}\
.tp .thin{fill:var(--soft);opacity:.55}.tp .holds{fill:var(--store);stroke:var(--soft);stroke-width:.5}.tp .stopped{fill:var(--paper);stroke:var(--ink)}\
.tp .in-believes{fill:var(--inbelief)}.tp .shade{fill:var(--shade);stroke:var(--harm);stroke-dasharray:2 2}\
.tp .harm{fill:var(--harm);font-weight:600}.tp .sign{stroke:var(--paper);stroke-width:1}\
.tp .sign.fault{fill:var(--fault)}.tp .sign.taken{fill:var(--good)}.tp .sign.harmful{fill:var(--harm)}\
.tp .sign.refused{fill:var(--soft)}.tp .sign.note{fill:var(--ink)}\
.tp .number{fill:var(--paper);font-size:8px;text-anchor:middle;font-weight:700}\
.tp .stem{stroke:var(--ink);stroke-width:.7}.tp .cross{stroke:var(--harm);stroke-width:2}.tp .hatch{stroke:var(--ink);stroke-width:1}";

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
