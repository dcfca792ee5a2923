//! Edits: the shipped texts with every mutant in its place, each behind its switch. Pure.

use std::{collections::BTreeMap, ops::Range};

use syn::{spanned::Spanned, visit::Visit};

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
/// occurs exactly once in the items that it names. Mutants may replace the same text, but not parts of what another one replaces.
pub(crate) fn apply(
    mutants: &[Mutant],
    texts: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Vec<String>> {
    let mut errors = Vec::new();
    let mut files: BTreeMap<&str, Vec<Place<'_>>> = BTreeMap::new();
    for mutant in mutants {
        for edit in &mutant.edits {
            match locate(edit, texts) {
                Ok((file, range)) => {
                    let place = Place { range, name: &mutant.name, text: &edit.mutant };
                    files.entry(file).or_default().push(place);
                }
                Err(why) => errors.push(format!("{}: {} {}: {why}", mutant.name, edit.package, edit.item)),
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

/// The file of an edit, and what it replaces there.
fn locate<'a>(edit: &Edit, texts: &'a BTreeMap<String, String>) -> Result<(&'a str, Range<usize>), String> {
    let marked = edit.shipped.split_once(MARKS[0]).and_then(|(before, rest)| {
        let (inner, after) = rest.split_once(MARKS[1])?;
        Some((before, inner, after))
    });
    let (before, inner, after) = marked.unwrap_or(("", &edit.shipped, ""));
    let wanted = format!("{before}{inner}{after}");
    if wanted.trim().is_empty() || wanted.contains(MARKS) {
        return Err("the shipped text is empty, or has not one pair of «»".to_owned());
    }
    let folder = format!("crates/{}/src/", edit.package);
    let has_it = |(path, text): &(&String, &String)| path.ends_with(".rs") && text.contains(&wanted);
    let mut found = Vec::new();
    for (path, text) in texts.iter().filter(|file| file.0.starts_with(&folder)).filter(has_it) {
        let items = items_of(text, &edit.item).map_err(|error| format!("{path} is no Rust: {error}"))?;
        let places = text.match_indices(&wanted).map(|(at, _)| at);
        let inside = places.filter(|at| items.iter().any(|item| item.contains(at)));
        found.extend(inside.map(|at| (path.as_str(), at + before.len())));
    }
    match found[..] {
        [(path, at)] => Ok((path, at..at + inner.len())),
        [] => {
            Err(format!("the shipped text is not there{}: {}", elsewhere(&wanted, texts), opening(&wanted)))
        }
        _ => Err(format!("the shipped text is there {} times: {}", found.len(), opening(&wanted))),
    }
}

/// Where the functions and constants of this name stand in a file.
fn items_of(text: &str, name: &str) -> syn::Result<Vec<Range<usize>>> {
    struct Items<'a> {
        name: &'a str,
        found: Vec<Range<usize>>,
    }

    impl Items<'_> {
        fn meet(&mut self, name: &syn::Ident, item: &dyn Spanned) {
            if name == self.name {
                self.found.push(item.span().byte_range());
            }
        }
    }

    impl<'ast> Visit<'ast> for Items<'_> {
        fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
            self.meet(&item.sig.ident, item);
            syn::visit::visit_item_fn(self, item);
        }

        fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
            self.meet(&item.sig.ident, item);
            syn::visit::visit_impl_item_fn(self, item);
        }

        fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
            self.meet(&item.sig.ident, item);
            syn::visit::visit_trait_item_fn(self, item);
        }

        fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
            self.meet(&item.ident, item);
        }

        fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
            self.meet(&item.ident, item);
        }
    }

    let mut items = Items { name, found: Vec::new() };
    items.visit_file(&syn::parse_file(text)?);
    Ok(items.found)
}

/// Lines are moved more often than they are changed.
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

    const A: &str = "crates/a/src/a.rs";

    fn tree(body: &str) -> BTreeMap<String, String> {
        let text = format!("fn it() {{ {body} }}\nfn other() {{ twice(); twice(); moved(); }}");
        [(A, text), ("crates/b/src/b.rs", "fn it() { gone(); }".to_owned())]
            .map(|(path, text)| (path.to_owned(), text))
            .into()
    }

    fn applied(body: &str, mutants: &[(&str, &str, &str)]) -> Result<String, Vec<String>> {
        let mutants: Vec<Mutant> =
            mutants.iter().map(|(name, old, new)| mutant(name, "it", old, new)).collect();
        let edited = apply(&mutants, &tree(body))?;
        let it = edited[A].split("fn other").next().unwrap();
        let it = it.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(it.trim_start_matches("fn it() { ").trim_end_matches(" }").to_owned())
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
    fn what_is_not_there_or_twice_is_an_error_that_names_mutant_and_item() {
        for (body, what) in [("f();", "not there"), ("now; now;", "there 2 times")] {
            let errors = applied(body, &[("late", "now", "later")]).unwrap_err();
            assert_eq!(errors.len(), 1);
            assert!(errors[0].starts_with("late: a it: ") && errors[0].contains(what), "{errors:?}");
        }
        let errors = applied("f();", &[("late", "«now", "later"), ("early", "", "sooner")]).unwrap_err();
        assert_eq!(errors.len(), 2, "{errors:?}");
    }

    #[test]
    fn the_same_text_in_another_function_is_not_meant() {
        let text = applied("twice();", &[("late", "twice()", "x()")]).unwrap();
        assert_eq!(text, format!("{{ {} {{ x() }} else {{ twice() }} }};", is_on("late")));
        for (item, is_found) in [("other", true), ("it", false)] {
            let mutants = [mutant("late", item, "moved()", "x()")];
            assert_eq!(apply(&mutants, &tree("f();")).is_ok(), is_found, "{item}");
        }
    }

    #[test]
    fn a_constant_and_a_method_are_found() {
        let text = "const N: u8 = 1; impl A { fn m(&self) { a(1) } const K: u8 = 2; }".to_owned();
        let tree = [("crates/a/src/lib.rs".to_owned(), text)].into();
        for (item, shipped) in [("N", "1"), ("m", "1"), ("K", "2")] {
            assert!(apply(&[mutant("late", item, shipped, "3")], &tree).is_ok(), "{item}");
        }
    }

    #[test]
    fn a_text_that_went_to_another_package_is_an_error_that_says_where_it_is_now() {
        let mutants = [mutant("late", "it", "gone()", "x()")];
        let errors = apply(&mutants, &tree("f();")).unwrap_err();
        let where_to = "it is in crates/b/src/b.rs";
        assert!(errors[0].starts_with("late: a it: ") && errors[0].contains(where_to), "{errors:?}");
    }

    #[test]
    fn mutants_of_the_same_text_share_its_place_and_those_of_a_part_are_refused() {
        let text = applied("a = b + c;", &[("one", "b + c", "1"), ("two", "b + c", "2")]).unwrap();
        let [one, two] = ["one", "two"].map(is_on);
        assert_eq!(text, format!("a = {{ {one} {{ 1 }} else {two} {{ 2 }} else {{ b + c }} }};"));
        for part in ["b", "c"] {
            let errors = applied("a = b + c;", &[("one", "b + c", "1"), ("two", part, "2")]).unwrap_err();
            assert!(errors[0].starts_with(A), "{errors:?}");
        }
        assert!(applied("a = b + c;", &[("one", "b", "1"), ("two", "c", "2")]).is_ok());
    }
}
