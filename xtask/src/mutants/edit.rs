//! Edits: the shipped texts with every mutant in its place, each behind its switch. Pure.

use std::{collections::BTreeMap, ops::Range};

use crate::mutants::mutant::{Edit, Mutant};

/// What surrounds the part of the shipped text that is replaced.
const MARKS: [char; 2] = ['«', '»'];

/// Where one mutant stands in a file.
struct Place<'a> {
    range: Range<usize>,
    name: &'a str,
    text: &'a str,
}

/// The files that any mutant edits, with all of them in place; or every edit that does not fit. An edit fits if its shipped text
/// occurs exactly once. Mutants may replace the same text, but not parts of what another one replaces.
pub(crate) fn apply(
    mutants: &[Mutant],
    texts: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Vec<String>> {
    let mut errors = Vec::new();
    let mut files: BTreeMap<&str, Vec<Place<'_>>> = BTreeMap::new();
    for mutant in mutants {
        for edit in &mutant.edits {
            match locate(edit, texts) {
                Ok(range) => {
                    let place = Place { range, name: &mutant.name, text: &edit.mutant };
                    files.entry(&edit.file).or_default().push(place);
                }
                Err(why) => errors.push(format!("{}: {}: {why}", mutant.name, edit.file)),
            }
        }
    }
    let mut edited = BTreeMap::new();
    for (file, places) in files {
        match in_place(&texts[file], places) {
            Ok(text) => {
                edited.insert(file.to_owned(), text);
            }
            Err(why) => errors.push(format!("{file}: {why}")),
        }
    }
    if errors.is_empty() { Ok(edited) } else { Err(errors) }
}

/// What the edit replaces in its file.
fn locate(edit: &Edit, texts: &BTreeMap<String, String>) -> Result<Range<usize>, String> {
    let marked = edit.shipped.split_once(MARKS[0]).and_then(|(before, rest)| {
        let (inner, after) = rest.split_once(MARKS[1])?;
        Some((before, inner, after))
    });
    let (before, inner, after) = marked.unwrap_or(("", &edit.shipped, ""));
    let wanted = format!("{before}{inner}{after}");
    if wanted.trim().is_empty() || wanted.contains(MARKS) {
        return Err("the shipped text is empty, or has not one pair of «»".to_owned());
    }
    let text = texts.get(&edit.file).map_or("", String::as_str);
    let found: Vec<usize> = text.match_indices(&wanted).map(|(at, _)| at).collect();
    match found[..] {
        [at] => Ok(at + before.len()..at + before.len() + inner.len()),
        [] => {
            Err(format!("the shipped text is not there{}: {}", elsewhere(&wanted, texts), opening(&wanted)))
        }
        _ => Err(format!("the shipped text is there {} times: {}", found.len(), opening(&wanted))),
    }
}

/// Files are moved more often than lines are changed.
fn elsewhere(wanted: &str, texts: &BTreeMap<String, String>) -> String {
    let is_it = |(path, text): &(&String, &String)| path.ends_with(".rs") && text.contains(wanted);
    texts.iter().find(is_it).map_or_else(String::new, |(path, _)| format!(", it is in {path}"))
}

fn opening(text: &str) -> &str {
    text.trim().lines().next().unwrap_or_default()
}

fn in_place(text: &str, mut places: Vec<Place<'_>>) -> Result<String, String> {
    places.sort_by_key(|place| (place.range.start, place.range.end));
    let mut edited = String::new();
    let mut done = 0;
    for same in places.chunk_by(|a, b| a.range == b.range) {
        let Range { start, end } = same[0].range.clone();
        if start < done {
            return Err(format!(
                "{} replaces a part of what another mutant does: let both replace all",
                same[0].name
            ));
        }
        edited.push_str(&text[done..start]);
        edited.push_str(&switched(same, &text[start..end]));
        done = end;
    }
    edited.push_str(&text[done..]);
    Ok(edited)
}

/// A block, which may stand for an expression as well as for statements.
fn switched(places: &[Place<'_>], shipped: &str) -> String {
    let choices = places.iter().map(|Place { name, text, .. }| {
        format!("if ::tenure_core::mutant::is_on({name:?}) {{ {text}\n}} else ")
    });
    format!("{{ {}{{ {shipped} }} }}", choices.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::mutant::sample::mutant;

    fn tree(text: &str) -> BTreeMap<String, String> {
        [("a.rs", text), ("b.rs", "moved();")].map(|(path, text)| (path.to_owned(), text.to_owned())).into()
    }

    fn applied(text: &str, mutants: &[(&str, &str, &str)]) -> Result<String, Vec<String>> {
        let mutants: Vec<Mutant> =
            mutants.iter().map(|(name, old, new)| mutant(name, "a.rs", old, new)).collect();
        let edited = apply(&mutants, &tree(text))?;
        Ok(edited["a.rs"].split_whitespace().collect::<Vec<_>>().join(" "))
    }

    fn is_on(name: &str) -> String {
        format!("if ::tenure_core::mutant::is_on({name:?})")
    }

    #[test]
    fn what_is_there_once_is_replaced_behind_its_switch() {
        let text = applied("let a = now;", &[("late", "now", "later")]).unwrap();
        assert_eq!(text, format!("let a = {{ {} {{ later }} else {{ now }} }};", is_on("late")));
    }

    #[test]
    fn only_what_is_marked_is_replaced() {
        let text = applied("f(now); g(now);", &[("late", "g(«now»)", "later")]).unwrap();
        assert_eq!(text, format!("f(now); g({{ {} {{ later }} else {{ now }} }});", is_on("late")));
    }

    #[test]
    fn nothing_marked_is_an_insertion() {
        let text = applied("f(); g();", &[("more", "f();«» g();", "h();")]).unwrap();
        assert_eq!(text, format!("f();{{ {} {{ h(); }} else {{ }} }} g();", is_on("more")));
    }

    #[test]
    fn what_is_not_there_or_twice_is_an_error_that_names_mutant_and_file() {
        for (text, what) in [("f();", "not there"), ("now now", "there 2 times")] {
            let errors = applied(text, &[("late", "now", "later")]).unwrap_err();
            assert_eq!(errors.len(), 1);
            assert!(errors[0].starts_with("late: a.rs: ") && errors[0].contains(what), "{errors:?}");
        }
        let errors = applied("f();", &[("late", "«now", "later"), ("early", "", "sooner")]).unwrap_err();
        assert_eq!(errors.len(), 2, "{errors:?}");
    }

    #[test]
    fn a_file_that_is_gone_is_an_error_that_says_where_the_text_is_now() {
        let mutants = [mutant("late", "gone.rs", "moved()", "x()")];
        let errors = apply(&mutants, &tree("")).unwrap_err();
        assert!(
            errors[0].starts_with("late: gone.rs: ") && errors[0].contains("it is in b.rs"),
            "{errors:?}"
        );
    }

    #[test]
    fn mutants_of_the_same_text_share_its_place_and_those_of_a_part_are_refused() {
        let text = applied("a = b + c;", &[("one", "b + c", "1"), ("two", "b + c", "2")]).unwrap();
        let [one, two] = ["one", "two"].map(is_on);
        assert_eq!(text, format!("a = {{ {one} {{ 1 }} else {two} {{ 2 }} else {{ b + c }} }};"));
        for part in ["b", "c"] {
            let errors = applied("a = b + c;", &[("one", "b + c", "1"), ("two", part, "2")]).unwrap_err();
            assert!(errors[0].starts_with("a.rs: "), "{errors:?}");
        }
        assert!(applied("a = b + c;", &[("one", "b", "1"), ("two", "c", "2")]).is_ok());
    }
}
