//! `tenure ownership`: the statement by which a transaction relies on the lock of the run around it.

use serde::Serialize;
use tenure::{FencingToken, LockName, OwnerId};

use crate::{
    args::{Global, OwnershipArgs},
    exit::{self, Stop},
    signals::unhandled,
    store, view,
    waiting::Question,
};

#[derive(Serialize)]
struct OwnershipJson<'a> {
    statement: &'a str,
    row: &'a str,
    proof: &'a str,
    literal: &'a str,
}

pub(crate) async fn ownership(global: &Global, args: &OwnershipArgs) -> Result<u8, Stop> {
    let (name, owner, token) = held()?;
    let locks = store::open(global).await?;
    let lease = locks.detached(&name, owner).map_err(|error| Stop::usage(error.to_string()))?;
    let question = Question::new(global, "asking for the ownership").about(&name);
    let asked = lease.ownership(token, args.rest.unwrap_or_default().ttl());
    let Some(ownership) = question.answered(unhandled(), asked).await? else {
        let line = format!("{name}: the lease was lost: another owner has the lock, or it was broken");
        return Err(Stop::new(exit::LOST, line));
    };
    let Some(sql) = ownership.sql() else {
        let line = format!(
            "{name}: {} has no SQL: there a request of your program has a condition (`Lease::ownership`), or check the token",
            locks.promises().backend
        );
        return Err(Stop::usage(line));
    };
    let (statement, row, proof, literal) = (sql.statement(), sql.row(), sql.proof(), sql.literal());
    let text = match args.json {
        true => format!("{}\n", view::json(&OwnershipJson { statement, row, proof, literal })),
        false => stopping(literal, locks.promises().backend == "postgres"),
    };
    view::print_exactly(&text)?;
    Ok(0)
}

/// The same as one that fails without a row: then no client commits the transaction.
fn stopping(literal: &str, is_postgres: bool) -> String {
    match is_postgres {
        // A text that is no number, so that the error says what is wrong.
        true => format!(
            "WITH owner AS ({literal}) SELECT CASE n WHEN 1 THEN 1 ELSE ('not the owner of the lock: ' || n)::int END AS owns \
             FROM (SELECT count(*) AS n FROM owner) AS counted;\n"
        ),
        false => format!("SELECT IF(EXISTS({literal}), 1, (SELECT 1 UNION SELECT 2)) AS owns;\n"),
    }
}

/// The lease of the run around this command.
fn held() -> Result<(LockName, OwnerId, FencingToken), Stop> {
    let given = |name| std::env::var(name).ok();
    let lease = || {
        let token = given("TENURE_TOKEN")?.parse().ok()?;
        Some((
            given("TENURE_LOCK")?.parse().ok()?,
            given("TENURE_OWNER")?.parse().ok()?,
            FencingToken::new(token),
        ))
    };
    lease().ok_or_else(|| {
        Stop::usage(
            "there is no lock: call this in a command of `tenure run`, or in a script after `tenure hold`",
        )
    })
}
