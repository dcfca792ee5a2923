//! `Mutant`: one known way to get a lock wrong, as its file says it.

use std::{collections::BTreeMap, ops::Range};

use serde::Deserialize;

/// Where the files are, one for each mutant.
pub(crate) const FOLDER: &str = "crates/tenure-sim/mutants";

/// One rule of the product broken on purpose.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    /// The name of its file.
    #[serde(skip)]
    pub(crate) name: String,
    /// Which rule is broken, and which hole that opens.
    why: String,
    /// The law that it must break.
    pub(crate) law: String,
    /// In which simulated world.
    pub(crate) world: String,
    /// Under which plan of faults.
    pub(crate) plan: String,
    /// In which histories it is looked for: `0..100`.
    pub(crate) seeds: Seeds,
    #[serde(rename = "edit")]
    pub(crate) edits: Vec<Edit>,
}

/// What stands where in its place.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Edit {
    /// The package.
    #[serde(rename = "crate")]
    pub(crate) package: String,
    /// The function or constant, in whichever file of the package.
    pub(crate) item: String,
    /// What is shipped; it occurs exactly once in items of that name. What is replaced stands in `«»`: nothing there is an
    /// insertion. Without them all of it is replaced.
    pub(crate) shipped: String,
    /// An expression where the shipped text is one, or statements.
    pub(crate) mutant: String,
}

/// Seeds of histories, the last one excluded.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Seeds(pub(crate) Range<u64>);

impl TryFrom<String> for Seeds {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let range = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
        let range = range.filter(|range| !range.is_empty());
        range.map(Self).ok_or_else(|| format!("seeds are a range that is not empty, as 0..100, not {text}"))
    }
}

impl Mutant {
    fn read(path: &str, text: &str) -> Result<Self, String> {
        let name = path.trim_start_matches(FOLDER).trim_matches('/').trim_end_matches(".toml");
        let mut mutant: Self = toml::from_str(text).map_err(|e| format!("{path}: {e}"))?;
        mutant.name = name.to_owned();
        if mutant.why.trim().is_empty() || mutant.edits.is_empty() {
            return Err(format!("{path}: it says no why, or edits nothing"));
        }
        Ok(mutant)
    }

    /// Its name, and where it must show.
    pub(crate) fn headline(&self) -> String {
        let place = format!("{}/{}", self.world, self.plan);
        format!("{:<28} {} {place:<18}", self.name, self.law)
    }
}

/// All mutants of the tree, by name; or what is wrong with their files.
pub(crate) fn read_all(texts: &BTreeMap<String, String>) -> Result<Vec<Mutant>, Vec<String>> {
    let files = texts.iter().filter(|(path, _)| path.starts_with(FOLDER) && path.ends_with(".toml"));
    let (read, wrong): (Vec<_>, Vec<_>) =
        files.map(|(path, text)| Mutant::read(path, text)).partition(Result::is_ok);
    let wrong: Vec<String> = wrong.into_iter().filter_map(Result::err).collect();
    if wrong.is_empty() { Ok(read.into_iter().flatten().collect()) } else { Err(wrong) }
}

#[cfg(test)]
pub(crate) mod sample {
    //! Mutants for the tests of what is done with them.

    use super::*;

    /// A mutant of one edit.
    pub(crate) fn mutant(name: &str, item: &str, shipped: &str, text: &str) -> Mutant {
        let [package, item, shipped, text] = ["a", item, shipped, text].map(str::to_owned);
        let edit = Edit { package, item, shipped, mutant: text };
        let [name, why, law, world, plan] = [name, "x", "L1", "redis", "calm"].map(str::to_owned);
        Mutant { name, why, law, world, plan, seeds: Seeds(0..10), edits: vec![edit] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "why = 'x'\nlaw = 'L1'\nworld = 'redis'\nplan = 'calm'\nseeds = '3..10'\n\
                        [[edit]]\ncrate = 'a'\nitem = 'b'\nshipped = 'a'\nmutant = 'b'\n";

    fn read(text: &str) -> Result<Vec<Mutant>, Vec<String>> {
        let files = [
            ("other.toml".to_owned(), "nonsense".to_owned()),
            (format!("{FOLDER}/no_wait.toml"), text.to_owned()),
        ];
        read_all(&files.into_iter().collect())
    }

    #[test]
    fn a_mutant_is_named_after_its_file() {
        let mutants = read(FILE).unwrap();
        assert_eq!(mutants.len(), 1);
        assert_eq!((&*mutants[0].name, &mutants[0].seeds), ("no_wait", &Seeds(3..10)));
        assert_eq!(mutants[0].edits[0].shipped, "a");
    }

    #[test]
    fn a_file_that_is_wrong_is_named() {
        for (good, bad) in [
            ("'x'", "' '"),
            ("'3..10'", "'3..3'"),
            ("'3..10'", "'some'"),
            ("law = 'L1'", ""),
            ("law = 'L1'", "law = 'L1'\nlow = 'L2'"),
            ("mutant = 'b'", ""),
        ] {
            let errors = read(&FILE.replace(good, bad)).unwrap_err();
            assert_eq!(errors.len(), 1, "{bad}");
            assert!(errors[0].starts_with("crates/tenure-sim/mutants/no_wait.toml: "), "{errors:?}");
        }
    }
}
