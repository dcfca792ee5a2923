//! Performance: the page is the one of its data.

use crate::{
    bench::{DATA, PAGE, page},
    tidy::house::{House, Violation},
};

/// No figure stands on the page that was not measured so, at a commit that is named.
pub(crate) fn is_measured(house: &House<'_>) -> Vec<Violation> {
    let Some(data) = house.text(DATA) else { return Vec::new() };
    match page(data) {
        Err(why) => vec![Violation::new(DATA, 1, why)],
        Ok(made) if house.text(PAGE) == Some(made.as_str()) => Vec::new(),
        Ok(_) => vec![Violation::new(PAGE, 1, "not the page of its data: run `cargo xtask bench page`")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    const RUN: &str = r#"{"title":"SQLite","command":"c","commit":"abc","machine":"m","date":"2026-01-01","seen":["| 0.79 |"]}"#;

    #[test]
    fn a_page_of_its_data_is_one_and_a_figure_from_elsewhere_is_none() {
        let made = page(RUN).unwrap();
        assert!(judge(is_measured, &[(DATA, RUN), (PAGE, &made)]).is_empty());
        let better = made.replace("0.79", "0.97");
        assert_eq!(judge(is_measured, &[(DATA, RUN), (PAGE, &better)]).len(), 1);
        assert_eq!(judge(is_measured, &[(DATA, "{}"), (PAGE, &made)]).len(), 1);
    }
}
