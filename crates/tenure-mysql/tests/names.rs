//! Names, labels and memos of any text, under every character set and `sql_mode`: each name is a lock of its own.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tenure_core::{Label, Memo, Noted, Released, Renewal};
use tenure_testkit::{clock::Clock, conformance::player::Player, mysql::Recipe};

use crate::stage::mysql;

/// Each pair is one text in some collation, or one statement where a character has a meaning.
const ALIKE: &[&str] = &[
    "a",
    "A",
    "ä",
    "Ä",
    "a ",
    "a  ",
    " a",
    "ß",
    "ss",
    "é",
    "e\u{301}",
    "e",
    "ı",
    "i",
    "İ",
    "日本",
    "🔒",
    "🔑",
    "a'b",
    "a''b",
    "a\"b",
    "a\\b",
    "a\\\\b",
    "a\\",
    "a\\'",
    "'; DROP TABLE tenure_lock; -- ",
    "`a`",
    "%",
    "_",
    "a/*!b*/",
    "X'61'",
    "0x61",
    "?",
];

async fn each_name_is_a_lock(settings: &[&str]) {
    let server = settings.iter().fold(Recipe::new(), |recipe, setting| recipe.set(setting)).start();
    let (here, elsewhere) = (mysql(&server.url("")), mysql(&server.url("")));
    let long = ["n".repeat(512), format!("{} ", "n".repeat(511)), "é".repeat(256)];
    let names: Vec<&str> = ALIKE.iter().copied().chain(long.iter().map(String::as_str)).collect();
    let held: Vec<Player> = names
        .iter()
        .map(|name| {
            let mut player = Player::new(here.clone(), name).lasting(Duration::from_secs(600));
            let text: String = name.chars().take(6).collect();
            player.claim.label = Arc::new(Label::new(&text, 1, "it's \\", "\"p\""));
            player
        })
        .collect();
    let mut tokens = HashSet::new();
    for player in &held {
        let grant = player.enter().await;
        assert_eq!(player.renew(&grant).await, Renewal::Renewed, "{}", grant.name);
        let memo = Memo::new(format!("'\"\\`%{}\u{0}", grant.name), Duration::from_secs(3600)).unwrap();
        let noted = here.note(&grant.name, grant.owner, grant.token, &memo).await.unwrap();
        assert_eq!(noted, Noted::Noted, "{}", grant.name);
        let view = elsewhere.inspect(&grant.name).await.unwrap();
        assert_eq!(view.memo.unwrap().text, memo.text(), "{}", grant.name);
        assert_eq!(view.holders[0].label.as_ref(), Some(&*player.claim.label), "{}", grant.name);
        assert_eq!(view.holders[0].token, Some(grant.token));
        tokens.insert((grant.name, grant.token));
    }
    assert_eq!(tokens.len(), names.len());
    let mut expected = names.clone();
    expected.sort_unstable();
    let listed = elsewhere.list("").await.unwrap();
    assert_eq!(listed.iter().map(|view| view.name.as_str()).collect::<Vec<_>>(), expected);
    for prefix in ["a", "a\\", "e", "%", "é", "n", "🔒"] {
        let listed = elsewhere.list(prefix).await.unwrap();
        let those: Vec<&str> = expected.iter().copied().filter(|name| name.starts_with(prefix)).collect();
        assert_eq!(listed.iter().map(|view| view.name.as_str()).collect::<Vec<_>>(), those, "{prefix}");
    }
    for player in &held {
        Player::new(elsewhere.clone(), player.claim.name.as_str()).queue_behind(0).await;
        assert_eq!(player.leave().await, Released::Released, "{}", player.claim.name);
    }
}

/// L1: `a`, `A`, `ä` and `a ` are one text in the usual collations.
#[tokio::test]
async fn names_that_collate_alike_are_different_locks() {
    each_name_is_a_lock(&[]).await;
}

#[tokio::test]
async fn names_are_bytes_in_servers_of_old_character_sets() {
    each_name_is_a_lock(&["character-set-server=utf8mb3", "collation-server=utf8mb3_general_ci"]).await;
    each_name_is_a_lock(&["character-set-server=latin1", "collation-server=latin1_german2_ci"]).await;
}

#[tokio::test]
async fn quotes_and_backslashes_mean_the_same_in_every_sql_mode() {
    each_name_is_a_lock(&["sql-mode=ANSI,NO_BACKSLASH_ESCAPES"]).await;
    each_name_is_a_lock(&["sql-mode=ORACLE,EMPTY_STRING_IS_NULL,PAD_CHAR_TO_FULL_LENGTH"]).await;
}

/// A table and a database whose names must be quoted.
#[tokio::test]
async fn the_table_may_have_any_name() {
    let clock = Clock::new();
    let server = Recipe::new().set("sql-mode=ANSI_QUOTES").clock(&clock).start();
    server.sql("CREATE DATABASE `it's ``a base`; GRANT ALL ON `it's ``a base`.* TO tenure@'127.0.0.1'");
    for table in ["lock's", "se\"lect", "back\\slash", "tick`s", "日本", "it's%20`a%20base.locks"] {
        let backend = mysql(&server.url(&format!("?table={table}")));
        let player = Player::new(backend.clone(), "one");
        player.backend.claim(&player.claim).await.unwrap_err();
        clock.advance(Duration::from_secs(10));
        player.enter().await;
        Player::new(mysql(&server.url(&format!("?table={table}"))), "one").queue_behind(0).await;
        backend.diagnose().await.unwrap();
    }
}
