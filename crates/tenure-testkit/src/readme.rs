//! The table of settings in the README of a store, which follows from its code.

use std::{env, fs, path::Path};

/// Asserts that the README in this folder of a crate has this table. With `TENURE_WRITE_SETTINGS=1` it writes the
/// table there instead.
///
/// # Panics
/// If the README has another table, or none.
pub fn assert_has_settings(folder: &str, table: &str) {
    let path = Path::new(folder).join("README.md");
    let text = fs::read_to_string(&path).expect("each store has a README");
    let head = table.lines().next().expect("a table has a head");
    let begin = text.find(head).expect("the README has a table of settings");
    let length = text[begin..].find("\n\n").map_or(text.len() - begin, |end| end + 1);
    if env::var_os("TENURE_WRITE_SETTINGS").is_some() {
        let (before, after) = (&text[..begin], &text[begin + length..]);
        fs::write(&path, format!("{before}{table}{after}")).expect("the README can be written");
        return;
    }
    let there = &text[begin..begin + length];
    assert_eq!(there, table, "write it: TENURE_WRITE_SETTINGS=1 cargo test -p tenure-{{redis,…}} readme");
}
