//! The content of a picture without its times.

use std::collections::BTreeSet;

use svg::parser::{Event, Parser};

/// The words and the kinds of bars and marks of a picture, without numbers. Two pictures of one scene have the same story.
pub fn story(svg: &str) -> BTreeSet<String> {
    let mut story = BTreeSet::new();
    let mut class = String::new();
    for event in Parser::new(svg) {
        match event {
            Event::Tag(name, _, attributes) => {
                class = attributes.get("class").map(ToString::to_string).unwrap_or_default();
                if !class.is_empty() && !by_size(&class) {
                    story.insert(format!("{name} {class}"));
                }
            }
            Event::Text(text) if !by_size(&class) => {
                story.insert(without_numbers(text));
            }
            _ => {}
        }
    }
    story
}

/// Whether the picture has this element only if there is room for it, or as often as there is.
fn by_size(class: &str) -> bool {
    matches!(class, "grid" | "soft" | "number" | "hatch") || class.starts_with("in-")
}

/// Each number, with its point and its unit, as `#`.
fn without_numbers(text: &str) -> String {
    let mut words = String::new();
    for word in text.split_whitespace() {
        let is_number = word.trim_end_matches(['.', ',']).parse::<f64>().is_ok();
        let is_unit = matches!(word.trim_end_matches(['.', ',']), "ms" | "s");
        words.push_str(if is_number || is_unit { "#" } else { word });
        words.push(' ');
    }
    words
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Bar, Lane, Look, Mark, Picture, Sign};

    fn picture(ms: u64, sign: Sign, label: &str) -> String {
        let at = Duration::from_millis(ms);
        let bar = Bar { from: at / 2, until: at, look: Look::Believes, label: "inside".into() };
        let lane = Lane {
            name: "A <b>".into(),
            bars: vec![bar],
            marks: vec![Mark { at, sign, label: label.into() }],
        };
        let span = Duration::from_secs(2);
        Picture { id: "x".into(), title: "a & b".into(), span, lanes: vec![lane], ..Picture::default() }.svg()
    }

    #[test]
    fn two_pictures_that_differ_in_times_tell_one_story_and_others_do_not() {
        let one = story(&picture(500, Sign::Taken, "writes"));
        assert_eq!(one, story(&picture(1234, Sign::Taken, "writes")));
        assert_ne!(one, story(&picture(500, Sign::Harmful, "writes")));
        assert_ne!(one, story(&picture(500, Sign::Taken, "dies")));
        assert!(one.iter().any(|words| words.contains("writes")), "{one:?}");
    }

    #[test]
    fn where_a_line_breaks_does_not_depend_on_its_time() {
        let label = "word ".repeat(30);
        let of = |ms| story(&picture(ms, Sign::Note, &label));
        assert_eq!(of(500), of(123_456));
    }

    #[test]
    fn words_from_outside_are_no_markup() {
        let svg = picture(500, Sign::Note, "<script>alert(1)</script>");
        assert!(!svg.contains("<script>") && svg.contains("&lt;script"), "{svg}");
    }
}
