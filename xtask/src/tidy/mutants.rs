//! Mutants: each one fits the tree, also before anybody takes the time to try it.

use crate::{
    mutants,
    tidy::house::{House, Violation},
};

/// The text that a mutant replaces is there once, in its file.
pub(crate) fn fit(house: &House<'_>) -> Vec<Violation> {
    let errors = mutants::errors(&house.texts);
    errors.into_iter().map(|error| Violation::new(mutants::FOLDER, 1, error)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    #[test]
    fn a_mutant_whose_text_was_changed_is_found() {
        let path = format!("{}/late.toml", mutants::FOLDER);
        let mutant = "why = 'x'\nlaw = 'L1'\nworld = 'redis'\nplan = 'calm'\nseeds = '0..9'\n\
                      [[edit]]\ncrate = 'x'\nitem = 'it'\nshipped = 'now'\nmutant = 'later'\n";
        let verdict = |text: &str| judge(fit, &[(&*path, mutant), ("crates/x/src/a.rs", text)]);
        assert!(verdict("fn it() { f(now); }").is_empty());
        assert!(verdict("fn it() { f(soon); }")[0].contains("late: x it: the shipped text is not there"));
    }
}
