//! Draws a picture as SVG.

use std::time::Duration;

use svg::{
    Document, Node,
    node::element::{Circle, Description, Group, Line, Rectangle, Style, Text, Title},
};

use crate::{
    legend::{self, Numbered},
    picture::{Bar, Look, Picture, Sign},
    style::STYLE,
};

impl Picture {
    /// The picture as a document of its own, or as a part of a page.
    pub fn svg(&self) -> String {
        Brush::of(self).draw().to_string()
    }
}

/// Where things are: in units that are px where the picture is as wide as it likes.
struct Brush<'p> {
    picture: &'p Picture,
    lane: f64,
    marks: Vec<Numbered<'p>>,
    left_out: usize,
    top: f64,
    width: f64,
}

impl<'p> Brush<'p> {
    fn of(picture: &'p Picture) -> Self {
        let lane = if picture.lanes.len() > MANY {
            (MANY as f64 * LANE / picture.lanes.len() as f64).max(3.0)
        } else {
            LANE
        };
        let (marks, left_out) = legend::numbered(picture);
        let words = picture.shades.len().saturating_sub(1) as f64 * WORDS;
        Self { picture, lane, marks, left_out, top: TOP + words, width: picture.width.clamp(WIDTH, WIDEST) }
    }

    fn draw(&self) -> Document {
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
            let lines = legend::wrapped(&mark.line, COLUMNS - NUMBER);
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
            group.append(text("name", 6.0, y + self.lane / 2.0 + 4.0, &lane.name));
        }
        group.append(line("base", (LEFT, y + self.lane - 1.0), (self.width - RIGHT, y + self.lane - 1.0)));
        for bar in &lane.bars {
            group.append(self.bar(bar, y));
        }
        group
    }

    fn bar(&self, bar: &Bar, y: f64) -> Group {
        let (from, until) = (self.x(bar.from), self.x(bar.until));
        let (width, air) = ((until - from).max(1.5), self.lane / 6.0);
        let (class, deep) = match bar.look {
            Look::Waits if self.lane < LANE => ("thin", self.lane / 3.0),
            Look::Waits => ("waits", self.lane / 4.0),
            Look::Believes => ("believes", air),
            Look::Stopped => ("stopped", air),
            Look::Holds => ("holds", air),
        };
        let mut group = Group::new();
        group.append(rectangle(class, from, y + deep, width, self.lane - 2.0 * deep));
        if bar.look == Look::Stopped {
            // Hatched: it does nothing, and does not know it.
            let mut x = from + 3.0;
            while x + 4.0 < from + width {
                group.append(line("hatch", (x, y + self.lane - deep), (x + 4.0, y + deep)));
                x += 6.0;
            }
        }
        if self.lane >= LANE && width > bar.label.chars().count() as f64 * 6.0 + 12.0 {
            let class = format!("in-{class}");
            group.append(text(&class, from + 9.0, y + self.lane / 2.0 + 4.0, &bar.label));
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
            let middle = self.y(*lane) + self.lane / 2.0;
            // Marks of one instant stand beside each other.
            let x = match last {
                Some((before, at, _)) if before == *lane && x < at + 11.0 => at + 11.0,
                _ => x,
            };
            last = Some((*lane, x, middle));
            let class = format!("sign {}", sign(mark.sign));
            group.append(
                Circle::new()
                    .set("class", class)
                    .set("cx", self::number(x))
                    .set("cy", self::number(middle))
                    .set("r", 6),
            );
            group.append(text("number", x, middle + 3.0, &number.to_string()));
            if mark.sign == Sign::Refused {
                group.append(line("cross", (x - 6.0, middle - 6.0), (x + 6.0, middle + 6.0)));
                group.append(line("cross", (x - 6.0, middle + 6.0), (x + 6.0, middle - 6.0)));
            }
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

/// With one digit behind the point.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

/// The step of the axis: so many in all, or less.
fn step(span: Duration, count: u32) -> Duration {
    let steps = [50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000];
    let fits = |ms: &&u64| span.as_millis() <= u128::from(**ms) * u128::from(count);
    Duration::from_millis(*steps.iter().find(fits).unwrap_or(&3_600_000))
}

fn label(at: Duration) -> String {
    if at.is_zero() { "0".into() } else { format!("{} s", at.as_millis() as f64 / 1000.0) }
}

/// Of the whole picture: what a phone shows without making letters too small.
const WIDTH: f64 = 440.0;
/// Of a long history: what viewers still take.
const WIDEST: f64 = 20_000.0;
const LEFT: f64 = 68.0;
const RIGHT: f64 = 36.0;
const TOP: f64 = 26.0;
/// One more of these above the lanes for each shade after the first: their words must not meet.
const WORDS: f64 = 12.0;
const LANE: f64 = 26.0;
const LINE: f64 = 15.0;
/// More lanes than this are drawn thinner.
const MANY: usize = 12;
/// Letters in a line below the lanes.
const COLUMNS: usize = 70;
/// Of these, for its number and its time: `10. 12.062 s `.
const NUMBER: usize = 13;
