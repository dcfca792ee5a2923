//! Memos: the texts that holders store with a lock.

use std::time::Duration;

use tenure_core::{BreakScope, ErrorKind, FencingToken, Memo, MemoView, Memos, Noted, Renewal};

use super::{Arena, player::Player};
use crate::patience::becomes;

/// Longer than any case.
const LONG: Duration = Duration::from_secs(3600);
/// How late a store may end a memo.
const PATIENCE: Duration = Duration::from_secs(10);

fn memo(text: &str, kept: Duration) -> Memo {
    Memo::new(text, kept).expect("BUG: a good memo")
}

/// `None` where the store promises no memos: then it refuses them.
async fn note(player: &Player, token: FencingToken, memo: &Memo) -> Option<Noted> {
    let answer = player.backend.note(&player.claim.name, player.claim.owner, token, memo).await;
    match player.backend.promises().memo {
        Memos::Kept => Some(answer.expect("the store answers")),
        _ => {
            assert_eq!(answer.expect_err("it is not promised").kind(), ErrorKind::Unsupported);
            None
        }
    }
}

async fn seen(player: &Player) -> Option<MemoView> {
    player.backend.inspect(&player.claim.name).await.expect("the store answers").memo
}

async fn text(player: &Player) -> Option<String> {
    seen(player).await.map(|memo| memo.text)
}

/// All clients see it, even after its writer has left, until the next holder replaces it.
pub async fn a_memo_is_seen_by_all_and_outlives_its_lease(arena: &impl Arena) {
    let (first, second) = (arena.player("one"), arena.player("one"));
    let looker = arena.player_elsewhere("one").await;
    let grant = first.enter().await;
    assert_eq!(seen(&looker).await, None);
    let Some(noted) = note(&first, grant.token, &memo("10.0.0.7:80", LONG)).await else { return };
    assert_eq!(noted, Noted::Noted);
    let there = seen(&looker).await.expect("a memo");
    assert_eq!((there.text.as_str(), there.token), ("10.0.0.7:80", grant.token));
    assert_eq!(there.owner, first.claim.owner.to_string());
    assert!(there.left > LONG / 2 && there.left <= LONG + Duration::from_secs(2), "{there:?}");
    first.leave().await;
    assert_eq!(text(&looker).await.as_deref(), Some("10.0.0.7:80"));
    assert_eq!(looker.backend.list("").await.expect("the store answers"), [], "a memo holds nothing");
    let grant = second.enter().await;
    assert_eq!(text(&second).await.as_deref(), Some("10.0.0.7:80"), "who is let in sees it");
    let decided = second.backend.memo(&second.claim.name).await.expect("the store answers");
    assert_eq!(decided.map(|memo| (memo.text, memo.token)), Some((there.text, there.token)));
    assert_eq!(second.renew(&grant).await, Renewal::Renewed, "a question changes nothing");
    assert_eq!(note(&second, grant.token, &memo("10.0.0.8:80", LONG)).await, Some(Noted::Noted));
    assert_eq!(text(&looker).await.as_deref(), Some("10.0.0.8:80"));
}

/// A memo lasts for its time, by the store's clock, and no longer.
pub async fn a_memo_ends_when_its_time_is_over(arena: &impl Arena) {
    let player = arena.player("one");
    let grant = player.enter().await;
    let Some(noted) = note(&player, grant.token, &memo("short", Duration::from_secs(12))).await else {
        return;
    };
    assert_eq!(noted, Noted::Noted);
    player.leave().await;
    arena.pass(Duration::from_secs(3)).await;
    let there = seen(&player).await.expect("most of its time is left");
    assert!(there.age >= Duration::from_secs(1) && there.left <= Duration::from_secs(10), "{there:?}");
    arena.pass(Duration::from_secs(10)).await;
    let gone = async || seen(&player).await.is_none().then_some(());
    becomes("the memo is over", PATIENCE, gone).await;
}

/// L4: only a holder can store a memo, and a late memo changes nothing.
pub async fn only_a_holder_leaves_a_memo(arena: &impl Arena) {
    let (holder, waiter) = (arena.player("one"), arena.player("one"));
    let stranger = arena.player("one");
    let grant = holder.enter().await;
    let (token, good) = (grant.token, memo("good", LONG));
    if note(&holder, token, &good).await.is_none() {
        return;
    }
    waiter.queue_behind(0).await;
    let later = FencingToken::new(token.get() + 1);
    for other in [&waiter, &stranger] {
        assert_eq!(note(other, later, &memo("bad", LONG)).await, Some(Noted::Gone));
    }
    holder.leave().await;
    assert_eq!(note(&holder, token, &memo("late", LONG)).await, Some(Noted::Gone));
    let grant = waiter.enter().await;
    arena.here().break_lock(&waiter.claim.name, BreakScope::Leases).await.expect("the store answers");
    assert_eq!(note(&waiter, grant.token, &memo("robbed", LONG)).await, Some(Noted::Gone));
    assert_eq!(text(&stranger).await.as_deref(), Some("good"));
}

/// L1: a waiter that was handed the lock holds nothing before its own claim is granted.
pub async fn a_waiter_leaves_no_memo_before_it_has_entered(arena: &impl Arena) {
    let (holder, waiter) = (arena.player("one"), arena.player("one"));
    let token = holder.enter().await.token;
    waiter.queue_behind(0).await;
    holder.leave().await;
    let later = FencingToken::new(token.get() + 1);
    let Some(noted) = note(&waiter, later, &memo("soon", LONG)).await else { return };
    assert_eq!((noted, seen(&waiter).await), (Noted::Gone, None));
    let token = waiter.enter().await.token;
    assert_eq!(note(&waiter, token, &memo("now", LONG)).await, Some(Noted::Noted));
}

/// L4: a late memo, from a turn that was passed on, does not replace the memo of the next turn.
pub async fn a_memo_does_not_replace_one_of_a_larger_token(arena: &impl Arena) {
    let player = arena.player("one");
    let token = player.enter().await.token;
    let earlier = FencingToken::new(token.get() - 1);
    let Some(noted) = note(&player, token, &memo("second", LONG)).await else { return };
    assert_eq!(noted, Noted::Noted);
    assert_eq!(note(&player, earlier, &memo("first", LONG)).await, Some(Noted::Gone));
    assert_eq!(note(&player, token, &memo("third", LONG)).await, Some(Noted::Noted));
    assert_eq!(text(&player).await.as_deref(), Some("third"));
}

/// The store returns a thousand bytes of any text unchanged.
pub async fn a_memo_is_any_text(arena: &impl Arena) {
    let player = arena.player("one");
    let token = player.enter().await.token;
    let odd = "\u{0}\u{1}\n\r\t\"\\:%+'{}é日🔒";
    let long = odd.repeat(Memo::MAX_BYTES / odd.len());
    for any in [long.as_str(), "", odd] {
        let Some(noted) = note(&player, token, &memo(any, LONG)).await else { return };
        assert_eq!((noted, text(&player).await.as_deref()), (Noted::Noted, Some(any)));
    }
}

/// Readers can store memos as well: the last one stays.
pub async fn one_of_many_holders_leaves_a_memo(arena: &impl Arena) {
    let one = arena.player("one").reading();
    let two = arena.player("one").reading();
    if arena.here().promises().sharing != tenure_core::Sharing::Counted {
        return;
    }
    let (first, second) = (one.enter().await.token, two.enter().await.token);
    if note(&one, first, &memo("one", LONG)).await.is_none() {
        return;
    }
    assert_eq!(text(&two).await.as_deref(), Some("one"));
    assert_eq!(note(&two, second, &memo("two", LONG)).await, Some(Noted::Noted));
    assert_eq!(text(&one).await.as_deref(), Some("two"));
    two.leave().await;
    assert_eq!(note(&two, second, &memo("late", LONG)).await, Some(Noted::Gone));
    assert_eq!(text(&one).await.as_deref(), Some("two"));
}
