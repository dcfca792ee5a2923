//! `lead`: a command on one of many hosts, started again each time that the lead is lost.

use tenure::{Election, Guard, Term};

use crate::{
    args::{Global, Lead},
    exit::{self, Stop},
    run::{self, End, Started},
};

/// Campaigns, runs the command while it leads, and campaigns again after a loss. Ends when the command ends by itself, and when
/// it is asked to end.
pub(crate) async fn lead(global: &Global, args: Lead) -> Result<u8, Stop> {
    let proclaims = args.proclaim.clone();
    let args = args.into_run();
    let mut started = Started::new(global, &args).await?;
    let election = started.locks().election(&args.name);
    loop {
        let guard = started.enter_for_ever().await?;
        let _term = match &proclaims {
            Some(text) => Some(proclaim(&election, &guard, text).await),
            None => None,
        };
        match started.run(guard).await? {
            End::Ended(code) => return Ok(code),
            End::Lost(line) if started.is_asked_to_end() => return Err(run::lost(&args, line)),
            End::Lost(line) if !global.quiet => exit::warn(&format!("{line}; campaigning again")),
            End::Lost(_) => {}
        }
    }
}

/// A leader that cannot be found leads all the same.
async fn proclaim(election: &Election, guard: &Guard, text: &str) -> Term {
    let term = election.term(guard.lease());
    if let Err(error) = term.proclaim(text).await {
        exit::warn(&format!("{}: {}", guard.name(), exit::chain(&error)));
    }
    term
}
