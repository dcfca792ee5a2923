//! The text of a cell: a ledger as JSON in ASCII, and whether places may stand beside it.

use std::fmt::Write as _;

use tenure_ledger::{Ledger, Place};

/// How the text begins where places may stand beside the cell. Whoever does not know of that reads on as ever.
pub(crate) const LONG: &str = "{\"long\":true,";

/// Whether places may stand beside the cell of this text.
pub(crate) fn is_long(state: &str) -> bool {
    state.starts_with(LONG)
}

/// A ledger as a cell keeps it.
pub fn encode(ledger: &Ledger, is_long: bool) -> String {
    let text = ascii(ledger.encode());
    if is_long { format!("{LONG}{}", &text[1..]) } else { text }
}

/// A place as it is kept beside a cell.
pub(crate) fn encode_place(place: &Place) -> String {
    ascii(place.encode())
}

/// In ASCII: the encoding of a store may lack what a label has.
fn ascii(json: String) -> String {
    if json.is_ascii() {
        return json;
    }
    let mut text = String::with_capacity(json.len() * 2);
    for character in json.chars() {
        if character.is_ascii() {
            text.push(character);
            continue;
        }
        // OK because JSON has them in strings alone, where an escape means the same.
        for unit in character.encode_utf16(&mut [0; 2]) {
            write!(text, "\\u{unit:04x}").expect("BUG: a string takes all that is written");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use tenure_core::Label;

    use super::*;

    /// The state is what it was, whatever characters it is written with.
    #[test]
    fn a_ledger_is_written_in_ascii_and_read_as_it_was() {
        let host = "caf\u{e9}-\u{65e5}-\u{1f512}-\\\"-\u{7f}";
        let json = format!(
            r#"{{"fence":7,"holders":[],"queue":[{}]}}"#,
            serde_json::json!({
                "owner": "0123456789abcdef".repeat(3), "mode": "exclusive", "turn": true,
                "ends_us": 1, "since_ms": 1, "label": Label::new(host, 1, "u", "p"),
            })
        );
        let ledger = Ledger::decode(&json).unwrap();
        let text = encode(&ledger, true);
        assert!(is_long(&text) && text.is_ascii() && text.contains("\\ud83d\\udd12"), "{text}");
        assert_eq!(Ledger::decode(&text).unwrap(), ledger);
    }
}
