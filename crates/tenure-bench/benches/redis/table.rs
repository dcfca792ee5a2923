//! The table that is committed, and the words that go with a row while the bench runs.

use tenure_bench::Spread;

/// Rows of one Markdown table.
#[derive(Default)]
pub(crate) struct Table(Vec<Row>);

/// One row; what is not measured stays empty.
#[derive(Default)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) by_hand: String,
    pub(crate) tenure: String,
    pub(crate) rslock: String,
    pub(crate) quotient: String,
    pub(crate) wanted: String,
    pub(crate) spread: String,
}

impl Row {
    fn line(&self) -> String {
        let Self { what, by_hand, tenure, rslock, quotient, wanted, spread } = self;
        format!("| {what} | {by_hand} | {tenure} | {rslock} | {quotient} | {wanted} | {spread} |")
    }

    /// With a quotient of rounds, and how far it spreads.
    pub(crate) fn compared(mut self, quotient: Spread, wanted: &str) -> Self {
        self.quotient = format!("**{:.2}**", quotient.median);
        self.spread = format!("{:.2} to {:.2}", quotient.least, quotient.most);
        self.wanted = wanted.into();
        self
    }
}

impl Table {
    /// Adds a row and shows it at once.
    pub(crate) fn add(&mut self, row: Row) {
        eprintln!("{}", row.line());
        self.0.push(row);
    }

    /// As it is committed.
    pub(crate) fn print(&self) {
        println!("| | by hand | tenure | rslock | quotient | wanted | quotient of each round |");
        println!("|---|--:|--:|--:|--:|--:|--:|");
        for row in &self.0 {
            println!("{}", row.line());
        }
    }
}

/// A number with as many digits as say something.
pub(crate) fn number(n: f64) -> String {
    match n.abs() {
        n if n >= 1000.0 => format!("{n:.0}"),
        n if n >= 10.0 => format!("{n:.1}"),
        _ => format!("{n:.2}"),
    }
}
