//! The conformance suite's list names every case there is.

use std::{collections::BTreeSet, fs, path::Path};

#[test]
fn every_case_is_in_the_list_of_the_macro() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let list = fs::read_to_string(src.join("conformance.rs")).unwrap();
    let listed: BTreeSet<&str> = list.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
    let mut count = 0;
    for file in fs::read_dir(src.join("conformance")).unwrap() {
        let path = file.unwrap().path();
        if path.ends_with("player.rs") {
            continue;
        }
        for line in fs::read_to_string(&path).unwrap().lines() {
            let Some(case) = line.strip_prefix("pub async fn ") else { continue };
            let case = case.split('(').next().unwrap();
            assert!(listed.contains(case), "{case} of {} is in no backend's tests", path.display());
            count += 1;
        }
    }
    assert!(count >= 30, "only {count} cases were found");
}
