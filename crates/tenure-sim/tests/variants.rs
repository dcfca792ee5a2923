//! Every known-fatal change of the product makes a simulated history break the law that it must.
#![cfg(feature = "fatal-variants")]

use std::collections::BTreeSet;

use tenure_core::Variant;
use tenure_sim::fatal::ROWS;

#[test]
fn every_variant_breaks_its_law_and_the_same_history_without_it_breaks_none() {
    let shown = ROWS.iter().map(|row| (row, row.shows()));
    let bad: Vec<_> = shown.filter(|(_, shown)| *shown != (true, true)).collect();
    assert!(bad.is_empty(), "(breaks with, holds without); `tenure-sim --find` prints new rows: {bad:#?}");
}

#[test]
fn every_variant_has_a_row() {
    let rows: BTreeSet<String> = ROWS.iter().map(|row| format!("{:?}", row.variant)).collect();
    let all: BTreeSet<String> = Variant::ALL.iter().map(|variant| format!("{variant:?}")).collect();
    assert_eq!(rows, all);
}
