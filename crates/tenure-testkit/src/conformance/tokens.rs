//! L2: tokens of one lock grow in the order of grants.

use tenure_core::{BreakScope, FencingToken, Minting, Released, Renewal, Sharing};

use super::Arena;

/// L2: tokens grow in every way in which a holder can change.
pub async fn tokens_grow_over_release_expiry_and_break(arena: &impl Arena) {
    let mut last = None;
    for round in 0..9 {
        let player = arena.player_elsewhere("one").await;
        let grant = player.enter().await;
        assert!(Some(grant.token) > last, "{grant:?} after {last:?}");
        last = Some(grant.token);
        match round % 3 {
            0 => drop(player.leave().await),
            1 => player.lapse(arena, arena.ttl()).await,
            _ => drop(
                player
                    .backend
                    .break_lock(&player.claim.name, BreakScope::Leases)
                    .await
                    .expect("the store answers"),
            ),
        }
    }
}

/// H1.2, H1.3, H1.5, hazard 14: the reply was lost. A second claim is granted anew, for the full ttl. Its token is
/// new, or that of the place.
pub async fn a_retried_claim_is_granted_anew(arena: &impl Arena) {
    let (a, b) = (arena.player("one"), arena.player("one"));
    let first = a.enter().await;
    arena.pass(arena.ttl() / 2).await;
    let second = a.enter().await;
    match arena.here().promises().minting {
        Minting::Place => assert_eq!(second.token, first.token),
        _ => assert!(second.token > first.token),
    }
    arena.pass(arena.ttl() / 2 + arena.ttl() / 4).await;
    assert!(!b.try_enter().await, "the retry did not extend the lease");
}

/// Blocks of tokens: each is above all earlier ones, and has at least one token and at most as many as requested.
pub async fn a_block_of_tokens_lies_above_all_earlier_ones(arena: &impl Arena) {
    let mut last = 0;
    for _ in 0..5 {
        let mut player = arena.player("one");
        player.claim.block = 8;
        let grant = player.enter().await;
        assert!((1..=8).contains(&grant.block), "{grant:?}");
        assert!(grant.token.get() > last, "{grant:?} after {last}");
        last = grant.token.get() + u64::from(grant.block) - 1;
        let view = arena.here().inspect(&player.claim.name).await.expect("the store answers");
        assert!(view.fence.get() >= last);
        player.leave().await;
    }
}

/// H5.2: a lease that is passed on in its process is renewed under the last token of its block. The next holder's
/// token is larger.
pub async fn a_lease_is_the_same_under_every_token_of_its_block(arena: &impl Arena) {
    let (mut a, b) = (arena.player("one"), arena.player("one"));
    a.claim.block = 8;
    let grant = a.enter().await;
    let last = FencingToken::new(grant.token.get() + u64::from(grant.block) - 1);
    let passed = grant.with_token(last).with_block(1);
    arena.pass(arena.ttl() / 2).await;
    assert_eq!(a.renew(&passed).await, Renewal::Renewed);
    arena.pass(arena.ttl() * 3 / 4).await;
    assert!(!b.try_enter().await, "it was renewed in vain");
    assert_eq!(a.leave().await, Released::Released);
    let next = b.enter().await;
    assert!(next.token > last, "{next:?} after {last}");
}

/// L2 among shared holders.
pub async fn shared_holders_have_tokens_of_their_own(arena: &impl Arena) {
    if arena.here().promises().sharing != Sharing::Counted {
        return;
    }
    let (a, b) = (arena.player("rw").reading(), arena.player("rw").reading());
    assert!(a.enter().await.token < b.enter().await.token);
}
