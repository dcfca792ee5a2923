//! Pages that are made from data: a catalogue of entries in parts, or a table of rows.

use std::fmt::Write as _;

use serde::Deserialize;

/// A file of data: what its page says first and last, and its rows or its parts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    title: String,
    text: String,
    #[serde(default)]
    end: String,
    /// Keys of a row and the heads of their columns.
    #[serde(default)]
    columns: Vec<(String, String)>,
    #[serde(default)]
    row: Vec<toml::Table>,
    #[serde(default)]
    part: Vec<Part>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    title: String,
    #[serde(default)]
    text: String,
    entry: Vec<Entry>,
}

/// A schedule that breaks a lock, or a law: what happens, and where the code and the test of it are.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    title: String,
    #[serde(default)]
    steps: Vec<String>,
    #[serde(default)]
    text: String,
    #[serde(default)]
    breaks: String,
    #[serde(default)]
    code: String,
    #[serde(default)]
    test: String,
}

/// The page of a file of data.
pub(super) fn page(path: &str, text: &str) -> Result<String, String> {
    let data: Data = toml::from_str(text).map_err(|error| error.to_string())?;
    let name = path.rsplit('/').next().unwrap_or(path);
    let mut page = format!("# {}\n\n{}\n", data.title, data.text.trim());
    if !data.row.is_empty() {
        page.push_str(&table(&data.columns, &data.row)?);
    }
    for part in &data.part {
        write_part(&mut page, part);
    }
    if !data.end.is_empty() {
        let _ = write!(page, "\n{}\n", data.end.trim());
    }
    let _ = write!(page, "\nThis page is made from `{name}`.\n");
    Ok(page)
}

fn table(columns: &[(String, String)], rows: &[toml::Table]) -> Result<String, String> {
    let heads: Vec<&str> = columns.iter().map(|(_, head)| head.as_str()).collect();
    let mut table = format!("\n| {} |\n|{}\n", heads.join(" | "), "---|".repeat(columns.len()));
    for (index, row) in rows.iter().enumerate() {
        if let Some(other) = row.keys().find(|key| !columns.iter().any(|(column, _)| column == *key)) {
            return Err(format!("row {}: no column is called {other}", index + 1));
        }
        let cells =
            columns.iter().map(|(key, _)| row.get(key).and_then(toml::Value::as_str).unwrap_or_default());
        let cells: Vec<String> = cells.map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(table, "| {} |", cells.join(" | "));
    }
    Ok(table)
}

fn write_part(page: &mut String, part: &Part) {
    let _ = write!(page, "\n## {}\n", part.title);
    if !part.text.is_empty() {
        let _ = write!(page, "\n{}\n", part.text.trim());
    }
    for entry in &part.entry {
        let _ = write!(page, "\n### {}: {}\n\n", entry.name, entry.title);
        for (index, step) in entry.steps.iter().enumerate() {
            let _ = writeln!(page, "{}. {step}", index + 1);
        }
        if !entry.text.is_empty() {
            let _ = writeln!(page, "{}", entry.text.trim());
        }
        page.push('\n');
        for (label, what) in [("Breaks", &entry.breaks), ("Code", &entry.code), ("Test", &entry.test)] {
            if !what.is_empty() {
                let _ = writeln!(page, "* *{label}*: {what}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_a_table() {
        let text = "title = 'T'\ntext = 'Words.'\ncolumns = [['what', 'What'], ['law', 'Law']]\n\
                    [[row]]\nwhat = 'a|b'\nlaw = 'L1'\n[[row]]\nwhat = 'c'\n";
        let page = page("docs/evidence/t.toml", text).unwrap();
        assert!(
            page.contains("# T\n\nWords.\n\n| What | Law |\n|---|---|\n| a\\|b | L1 |\n| c |  |\n"),
            "{page}"
        );
    }

    #[test]
    fn a_key_that_no_column_has_is_an_error() {
        let text = "title = 'T'\ntext = ''\ncolumns = [['what', 'What']]\n[[row]]\nwaht = 'a'\n";
        assert!(page("t.toml", text).unwrap_err().contains("waht"));
    }

    #[test]
    fn entries_become_sections() {
        let text = "title = 'T'\ntext = 'x'\n[[part]]\ntitle = 'P'\n[[part.entry]]\nname = 'H1'\ntitle = 'E'\n\
                    steps = ['one', 'two']\ntest = 'shown'\n";
        let page = page("t.toml", text).unwrap();
        assert!(page.contains("## P\n\n### H1: E\n\n1. one\n2. two\n\n* *Test*: shown\n"), "{page}");
    }
}
