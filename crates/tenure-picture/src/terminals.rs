//! Terminals side by side, as SVG: what was typed, what was printed, and in which order.

use std::time::Duration;

use svg::{
    Document, Node,
    node::element::{Circle, Description, Rectangle, Style, Text, Title},
    parser::{Event, Parser},
};

use crate::draw::wrapped;

/// Terminals side by side. Each row is lower than the rows before it, so the eye reads the order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terminals {
    /// In a few words.
    pub title: String,
    /// What is to be seen, in a sentence: for readers who do not see it.
    pub description: String,
    /// The name of each terminal, from left to right.
    pub names: Vec<String>,
    /// From top to bottom.
    pub rows: Vec<Row>,
}

/// A line of one of the terminals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// When, since the first row.
    pub at: Duration,
    /// Which terminal.
    pub terminal: usize,
    /// Where the line comes from.
    pub kind: Kind,
    /// The line.
    pub text: String,
}

/// Where a line comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A person typed it.
    Typed,
    /// A program printed it.
    Printed,
    /// It happened outside of the terminals.
    Event,
}

impl Terminals {
    /// The picture as a document.
    pub fn svg(&self) -> String {
        let mut lines = Vec::new();
        let mut y = HEAD + LINE;
        let mut before = String::new();
        for row in &self.rows {
            let x = LEFT + row.terminal as f64 * (PANE + GAP) + PAD;
            let time = format!("{} s", row.at.as_secs_f64().round());
            if time != before {
                lines.push(text("time", 6.0, y, &time));
                before = time;
            }
            let (class, line) = match row.kind {
                Kind::Typed => ("typed", format!("$ {}", row.text)),
                Kind::Printed => ("printed", row.text.clone()),
                Kind::Event => ("event", format!("{EVENT} {}", row.text)),
            };
            for piece in wrapped(&line, COLUMNS) {
                lines.push(text(class, x, y, &piece));
                y += LINE;
            }
            y += LINE / 3.0;
        }
        let height = y + LINE / 3.0;
        let width = LEFT + self.names.len() as f64 * (PANE + GAP);
        let mut document = Document::new()
            .set("viewBox", format!("0 0 {width} {height:.0}"))
            .set("width", width)
            .set("height", format!("{height:.0}"))
            .set("class", "tt")
            .set("role", "img")
            .set("aria-labelledby", "tt-title tt-text")
            .add(Title::new(&self.title).set("id", "tt-title"))
            .add(Description::new().set("id", "tt-text").add(svg::node::Text::new(&self.description)))
            .add(Style::new(STYLE));
        for (index, name) in self.names.iter().enumerate() {
            let left = LEFT + index as f64 * (PANE + GAP);
            document.append(
                Rectangle::new()
                    .set("class", "pane")
                    .set("x", left)
                    .set("y", 0.5)
                    .set("width", PANE)
                    .set("height", format!("{:.0}", height - 1.0))
                    .set("rx", 6),
            );
            for dot in 0..3 {
                let x = left + PAD + f64::from(dot) * 14.0 + 4.0;
                document.append(Circle::new().set("class", "dot").set("cx", x).set("cy", 14).set("r", 4));
            }
            document.append(text("name", left + PANE / 2.0, 18.0, name));
        }
        lines.into_iter().for_each(|line| document.append(line));
        document.to_string()
    }
}

/// The words of such a picture in their order, without times, numbers and line breaks: two runs of one scene show the same.
pub fn words(svg: &str) -> String {
    let mut words = String::new();
    let mut class = String::new();
    for event in Parser::new(svg) {
        match event {
            Event::Tag(_, _, attributes) => {
                class = attributes.get("class").map(ToString::to_string).unwrap_or_default();
            }
            Event::Text(text) if class != "time" && !text.trim().is_empty() => {
                words.push_str(&without_digits(text.trim()));
                words.push(' ');
            }
            _ => {}
        }
    }
    words
}

/// Each number as `#`, with its parts: `22:28:22` and `3.0` are one each.
fn without_digits(text: &str) -> String {
    let mut plain = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if !letter.is_ascii_digit() {
            plain.push(letter);
            continue;
        }
        while letters.next_if(|next| next.is_ascii_digit() || matches!(next, '.' | ':')).is_some() {}
        plain.push('#');
    }
    plain
}

fn text(class: &str, x: f64, y: f64, content: &str) -> Text {
    Text::new(content).set("class", class).set("x", format!("{x:.0}")).set("y", format!("{y:.0}"))
}

/// For the times, left of the terminals.
const LEFT: f64 = 44.0;
const PANE: f64 = 396.0;
const GAP: f64 = 12.0;
const PAD: f64 = 12.0;
const HEAD: f64 = 30.0;
const LINE: f64 = 18.0;
/// Letters in a line of a terminal: each is 7.8 px wide.
const COLUMNS: usize = 47;
/// Before what happened outside of the terminals.
const EVENT: &str = "●";
/// The terminals are dark on every page; the times next to them can be read on a light one and on a dark one.
const STYLE: &str = "\
.tt text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace;fill:#e6edf3}\
.tt .pane{fill:#161b22;stroke:#484f58}.tt .dot{fill:#484f58}\
.tt text.name{fill:#9da7b3;text-anchor:middle;font-size:12px}.tt text.time{fill:#768390;font-size:12px}\
.tt text.typed{fill:#7ee787;font-weight:600}.tt text.event{fill:#ffa657;font-style:italic}";

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(pid: &str, text: &str) -> String {
        let row = |terminal, kind, text: &str| Row {
            at: Duration::from_millis(1500),
            terminal,
            kind,
            text: text.to_owned(),
        };
        Terminals {
            title: "t".into(),
            names: vec!["one".into(), "two".into()],
            rows: vec![
                row(0, Kind::Typed, "ls <x>"),
                row(1, Kind::Printed, &format!("held by pid {pid} {text}")),
            ],
            ..Terminals::default()
        }
        .svg()
    }

    #[test]
    fn two_runs_that_differ_in_numbers_show_the_same_words() {
        let text = "deploy.sh since 22:28:22, waiting for 3.1 s";
        let (short, long) = (picture("7", text), picture("4711471147114711", text));
        assert_ne!(short, long);
        assert_eq!(words(&short), words(&long));
        assert!(
            words(&short).contains("held by pid # deploy.sh since #, waiting for # s"),
            "{}",
            words(&short)
        );
        assert_ne!(words(&short), words(&picture("7", "deploy.sh")));
    }

    #[test]
    fn words_of_a_terminal_are_no_markup() {
        let svg = picture("7", "<script>alert(1)</script>");
        assert!(!svg.contains("<script>") && svg.contains("&lt;script"), "{svg}");
    }

    #[test]
    fn a_line_is_wrapped_before_the_edge() {
        assert!(wrapped(&"word ".repeat(30), COLUMNS).iter().all(|piece| piece.len() <= COLUMNS));
    }
}
