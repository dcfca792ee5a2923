//! The text of a holder in its lock: `owner:token:since:label`, printable ASCII; and the texts of shared holders, waiters
//! and memos.

use std::{fmt::Write, num::NonZeroU32, time::Duration};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use tenure_core::{FencingToken, HolderView, Label, MemoView, Mode, OwnerId, Priority, WaiterView};

/// The value of a lock while it has shared holders.
pub(crate) const SHARED: &str = "tenure:shared";

/// The separators, the flag `+`, and what is not printable.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%').add(b':').add(b',').add(b'+').add(b' ');

/// Flags after a label: a command runs under the lease; a waiter gives way to a newer one; it asks the holder to stop; the
/// holder wants hints about waiters. Older clients ignore those that they do not know. Scripts check for the last at the end of
/// the value.
const RUNS: &str = ",runs";
const LATEST: &str = ",latest";
const REPLACES: &str = ",replaces";
const IDLES: &str = ",idles";

/// `host,pid,user,command`, and flags; without a colon and without a plus.
pub(crate) fn encode_label(label: &Label, into: &mut String) {
    let part = |text| utf8_percent_encode(text, ENCODED);
    // OK because writing to a String cannot fail.
    let _ =
        write!(into, "{},{},{},{}", part(&label.host), label.pid, part(&label.user), part(&label.command));
    let flags =
        [(label.runs, RUNS), (label.latest, LATEST), (label.replaces, REPLACES), (label.idles, IDLES)];
    flags.iter().filter(|(is_set, _)| *is_set).for_each(|(_, flag)| into.push_str(flag));
}

fn decode_label(text: &str) -> Option<Label> {
    let mut parts = text.split(',').map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned());
    let (host, pid, user, command) =
        (parts.next()?, parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    let flags: Vec<String> = parts.collect();
    let has = |flag: &str| flags.iter().any(|part| *part == flag[1..]);
    let label = Label::new(&host, pid, &user, &command).running(has(RUNS)).idling(has(IDLES));
    Some(label.giving_way(has(LATEST), has(REPLACES)))
}

/// The owner at the front of a value of Tenure; foreign values have none.
pub(crate) fn owner_of(value: &str) -> Option<OwnerId> {
    let (owner, rest) = value.split_at_checked(48)?;
    if rest.starts_with(':') { owner.parse().ok() } else { None }
}

/// `token:since:label`; token 0 is a holder that was handed the lock and has not acquired it yet.
struct HolderText {
    token: Option<FencingToken>,
    since: Duration,
    label: Option<Label>,
}

fn holder_text(text: &str) -> Option<HolderText> {
    let mut parts = text.splitn(3, ':');
    let token: u64 = parts.next()?.parse().ok()?;
    let since = Duration::from_millis(parts.next()?.parse().ok()?);
    let label = decode_label(parts.next()?.trim_end_matches('+'));
    Some(HolderText { token: (token > 0).then(|| FencingToken::new(token)), since, label })
}

/// The holder that the lock's own value names. `None` for the time left is a lock that never expires.
pub(crate) fn sole_holder(value: &[u8], expires_in: Option<Duration>) -> HolderView {
    let text = std::str::from_utf8(value).unwrap_or("");
    let ours = owner_of(text).zip(text.get(49..).and_then(holder_text));
    match ours {
        Some((owner, holder_text)) => holder_text.view(owner.to_string(), Mode::Exclusive, expires_in),
        None => HolderView::foreign(expires_in),
    }
}

impl HolderText {
    fn view(self, owner: String, mode: Mode, expires_in: Option<Duration>) -> HolderView {
        let mut holder = HolderView::new(owner, mode);
        (holder.token, holder.label) = (self.token, self.label);
        (holder.since, holder.expires_in) = (Some(self.since), expires_in);
        holder
    }
}

/// `x`, `s`, the limit, or several permits: see `sides.lua`.
pub(crate) fn mode_code(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared { limit: None, .. } => "s".into(),
        Mode::Shared { limit: Some(limit), permits: NonZeroU32::MIN } => limit.to_string(),
        Mode::Shared { limit: Some(limit), permits } => format!("0.{limit:010}{permits}"),
    }
}

pub(crate) fn decode_mode(code: &str) -> Option<Mode> {
    match code {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::READ),
        _ => match code.strip_prefix("0.") {
            Some(several) => {
                let (limit, permits) = several.split_at_checked(10)?;
                Mode::several(limit.parse().ok()?, permits.parse().ok()?)
            }
            None => code.parse().ok().map(Mode::permit),
        },
    }
}

/// The class of a claim, if it is not the default; the multiple of `CLASS` in `sides.lua`.
pub(crate) fn class_code(priority: Priority) -> Option<i8> {
    match priority {
        Priority::Urgent => Some(-2),
        Priority::High => Some(-1),
        Priority::Normal => None,
        Priority::Low => Some(1),
    }
}

/// The class of a place, from its score: see `sides.lua`.
pub(crate) fn class_of_score(score: f64) -> Priority {
    const CLASS: f64 = (1_u64 << 40) as f64;
    let class = (score / CLASS).floor();
    // The one that has waited longest keeps its class behind that.
    let class = if class < -2.0 { score.rem_euclid(CLASS) - 2.0 } else { class };
    Priority::ALL
        .into_iter()
        .find(|priority| f64::from(class_code(*priority).unwrap_or(0)) >= class)
        .unwrap_or(Priority::Low)
}

/// A shared holder, from its owner and `mode:token:since:label`.
pub(crate) fn shared_holder(owner: &str, details: &str, left: Duration) -> Option<HolderView> {
    let (mode, rest) = details.split_once(':')?;
    Some(holder_text(rest)?.view(owner.to_owned(), decode_mode(mode)?, Some(left)))
}

/// A waiter, from its owner and `mode:wait:since:label`.
pub(crate) fn waiter(owner: &str, details: &str, now: Duration) -> Option<WaiterView> {
    let mut parts = details.splitn(4, ':');
    let mode = decode_mode(parts.next()?)?;
    let since = parts.nth(1)?.parse().ok().map(Duration::from_millis)?;
    let label = decode_label(parts.next()?);
    Some(WaiterView::new(owner, mode, label, now.saturating_sub(since)))
}

/// A memo, which has its own key and expires, from `owner:token:kept:text`; `None` for anything else.
pub(crate) fn memo(value: &[u8], left: Duration) -> Option<MemoView> {
    let mut parts = std::str::from_utf8(value).ok()?.splitn(4, ':');
    let (owner, token) = (parts.next()?, parts.next()?.parse().ok()?);
    let kept = Duration::from_millis(parts.next()?.parse().ok()?);
    Some(MemoView::new(parts.next()?, (owner, FencingToken::new(token)), kept.saturating_sub(left), left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_ours_reads_back_and_is_printable() {
        let label = Label::new("web-3 é", 4711, "a:b,c+", "import%.sh");
        let mut text = String::new();
        encode_label(&label, &mut text);
        assert!(text.bytes().all(|b| b.is_ascii_graphic() && b != b':' && b != b'+'), "{text}");
        let owner = "0".repeat(48);
        let value = format!("{owner}:17:1700000000000:{text}+");
        let view = sole_holder(value.as_bytes(), Some(Duration::from_secs(1)));
        assert_eq!((view.owner, view.token), (owner.clone(), Some(FencingToken::new(17))));
        assert_eq!(
            (view.label, view.since),
            (Some(label.clone()), Some(Duration::from_millis(1_700_000_000_000)))
        );
        let view = waiter(&owner, &format!("3:t:1000:{text}"), Duration::from_secs(3)).unwrap();
        assert_eq!((view.label, view.waiting), (Some(label.clone()), Duration::from_secs(2)));
        for (runs, idles) in [(false, true), (true, false), (true, true)] {
            let (label, mut text) = (label.clone().running(runs).idling(idles), String::new());
            encode_label(&label, &mut text);
            assert_eq!((text.ends_with(",idles"), decode_label(&text)), (idles, Some(label)));
        }
    }

    /// Whatever a foreign client wrote is shown, and is no holder of Tenure.
    #[test]
    fn foreign_values_have_neither_token_nor_label() {
        let bytes: &[&[u8]] = &[
            b"",
            b"abc",
            b"\xff\xfe\x00",
            b"000000000000000000000000000000000000000000000000",
            b"tenure:shared",
        ];
        for value in bytes {
            let view = sole_holder(value, None);
            assert_eq!(
                (view.token, view.label, view.since, view.expires_in),
                (None, None, None, None),
                "{value:?}"
            );
        }
    }

    #[test]
    fn a_memo_reads_back_whatever_it_says() {
        let view = memo("ab:7:9000:a:b\n:é".as_bytes(), Duration::from_secs(2)).unwrap();
        assert_eq!((view.text.as_str(), view.owner.as_str(), view.token.get()), ("a:b\n:é", "ab", 7));
        assert_eq!((view.age, view.left), (Duration::from_secs(7), Duration::from_secs(2)));
        for other in [&b""[..], b"ab:7:9000", b"ab:x:9000:", b"\xff:7:9:"] {
            assert_eq!(memo(other, Duration::ZERO), None);
        }
    }
}
