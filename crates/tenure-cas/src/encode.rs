//! The text of a cell: a ledger as JSON in ASCII, the places that were put before it, and whether there may be some
//! next to the cell.

use std::fmt::Write as _;

use tenure_ledger::{Ledger, LedgerError, Place, Unseen};

/// The beginning of the text where there may be places next to the cell. Older versions of Tenure ignore it.
pub(crate) const LONG: &str = "{\"long\":true,";

/// The beginning of a place that was put into the text behind its first bracket. An older version ignores it, and
/// its owner asks again.
const NEW: &str = "\"new\":";
/// And its end: a ledger has no line breaks.
const NEW_END: &str = ",\n";
/// Text that each place has once, and nothing else: inside a JSON string every quote has a backslash before it.
pub(crate) const EACH: &str = "\"turn\":";

/// Whether there may be places next to the cell of this text.
pub(crate) fn is_long(state: &str) -> bool {
    state.starts_with(LONG)
}

/// A place as it is put into a cell without a comparison.
pub(crate) fn encode_newcomer(place: &Place) -> String {
    format!("{NEW}{}{NEW_END}", encode_place(place))
}

/// The ledger of a cell, and the places that were put into it since, in their order.
pub(crate) fn split(state: &str) -> Result<(Ledger, Vec<Place>), LedgerError> {
    let mut rest = state.strip_prefix(LONG).or_else(|| state.strip_prefix('{')).unwrap_or_default();
    let mut newcomers = Vec::new();
    while let Some((place, others)) = rest.strip_prefix(NEW).and_then(|rest| rest.split_once(NEW_END)) {
        newcomers.push(Place::from_text(place)?);
        rest = others;
    }
    newcomers.reverse();
    Ok((Ledger::decode(state)?, newcomers))
}

/// The ledger of a cell for a view, with all places in its queue.
///
/// # Errors
/// If the text is not a ledger.
pub fn decode(state: &str) -> Result<Ledger, LedgerError> {
    let (mut ledger, newcomers) = split(state)?;
    for place in newcomers {
        ledger.add(place);
    }
    Ok(ledger)
}

/// With these places behind those in its queue, which stay ahead of them.
pub(crate) fn with_places(mut ledger: Ledger, places: Vec<Place>) -> Ledger {
    let mut queue = ledger.take_queue();
    for place in places {
        let is_known = queue.iter().any(|known| known.owner() == place.owner());
        if !is_known && !ledger.knows(place.owner()) {
            queue.push_back(place);
        }
    }
    ledger.with_queue(queue, Unseen::default())
}

/// A ledger as a cell keeps it.
pub fn encode(ledger: &Ledger, is_long: bool) -> String {
    let text = ascii(ledger.encode());
    if is_long { format!("{LONG}{}", &text[1..]) } else { text }
}

/// A place as it is stored next to a cell.
pub(crate) fn encode_place(place: &Place) -> String {
    ascii(place.encode())
}

/// In ASCII, because the encoding of a store may lack characters of a label.
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
        // OK because JSON has them only in strings, where an escape means the same.
        for unit in character.encode_utf16(&mut [0; 2]) {
            write!(text, "\\u{unit:04x}").expect("BUG: a string takes all that is written");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use tenure_core::{Claim, Label, LockName, Memo, Mode, Moment, OwnerId, ProcessId, WaitMode};
    use tenure_ledger::Rules;

    use super::*;

    const NOW: Moment = Moment { boot: Duration::from_secs(7), wall: Duration::from_secs(7) };

    /// Its label looks like the text of a cell.
    fn claim(number: u8) -> Claim {
        let owner = OwnerId::from_random(ProcessId::from_random([number; 8]), [number; 16]);
        let label = Label::new("\"turn\":", 1, ",\n\"new\":{", "}");
        let (name, label) = (LockName::new("one").unwrap(), Arc::new(label));
        let (mode, ttl) = (Mode::Exclusive, Duration::from_secs(10));
        Claim::new(name, owner, mode, ttl).with_label(label).with_wait(WaitMode::Turn)
    }

    fn owners(places: &[Place]) -> Vec<OwnerId> {
        places.iter().map(Place::owner).collect()
    }

    /// L7: whatever labels are in it, a text shows how many places it has, and in which order they came.
    #[test]
    fn places_that_were_put_into_a_text_come_behind_its_queue_in_their_order() {
        let (rules, mut ledger) = (Rules::default(), Ledger::new(0));
        for number in [1, 2, 3] {
            drop(ledger.claim(NOW, &rules, &claim(number)).unwrap());
        }
        let memo = Memo::new("\"turn\":", Duration::from_secs(1)).unwrap();
        drop(ledger.note(
            (NOW, NOW),
            &rules,
            (claim(1).owner, tenure_core::FencingToken::new(7_000_000)),
            &memo,
        ));
        for is_long in [false, true] {
            let mut text = encode(&ledger, false);
            for number in [4, 5] {
                let newcomer = encode_newcomer(&Place::of(&claim(number), NOW, &rules, 0));
                text = format!("{{{newcomer}{}", &text[1..]);
            }
            if is_long {
                text = format!("{LONG}{}", &text[1..]);
            }
            let (known, newcomers) = split(&text).unwrap();
            assert_eq!((known, text.matches(EACH).count()), (ledger.clone(), 4));
            assert_eq!(owners(&newcomers), [4, 5].map(|number| claim(number).owner));
            // Older versions ignore them.
            assert_eq!(Ledger::decode(&text).unwrap(), ledger);
            let queue = decode(&text).unwrap().take_queue();
            assert_eq!(owners(queue.as_slices().0), [2, 3, 4, 5].map(|number| claim(number).owner));
        }
    }

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
