//! The public API: what users see is listed, so that a change of it shows in a review.

use crate::{
    api,
    tidy::house::{House, Violation},
};

/// Every published library has a listing, and it is up to date.
pub(crate) fn listed(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (_, folder) in api::listed(house.workspace, &house.texts) {
        let path = api::path(folder);
        match (api::listing(&house.texts, folder), house.text(&path)) {
            (Ok(now), Some(kept)) if now == kept => {}
            (Ok(now), kept) => {
                let kept = kept.unwrap_or_default();
                let same = now.lines().zip(kept.lines()).take_while(|(new, old)| new == old).count();
                let line = now.lines().nth(same).unwrap_or("(nothing)").trim();
                let what = format!(
                    "the public API is another one, from `{line}` on; `cargo xtask api` writes it down"
                );
                violations.push(Violation::new(&path, same + 1, what));
            }
            (Err(why), _) => violations.push(Violation::new(&path, 1, why)),
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample;

    #[test]
    fn a_change_of_the_api_is_a_violation_until_it_is_listed() {
        let workspace = sample::workspace(&[("a", "")]);
        let lib = ("crates/a/src/lib.rs", "pub fn old() {}\npub fn new() {}\n");
        let said = |kept: &[(&str, &str)]| -> Vec<String> {
            let house = House::sample(&workspace, &[&[lib], kept].concat());
            listed(&house).iter().map(ToString::to_string).collect()
        };
        let kept = "// What users of this crate see; written by `cargo xtask api`.\n\npub fn old() {}\n";
        let missing = &said(&[])[0];
        assert!(missing.starts_with("crates/a/api.txt:1: the public API is another one"), "{missing}");
        let changed = &said(&[("crates/a/api.txt", kept)])[0];
        assert!(changed.starts_with("crates/a/api.txt:3: ") && changed.contains("pub fn new"), "{changed}");
        let listing = kept.replace("pub fn old", "pub fn new() {}\npub fn old");
        assert!(said(&[("crates/a/api.txt", &listing)]).is_empty());
    }
}
