//! `lead`: a command on one of many hosts, started again each time that the lead is lost.

use tenure::Term;

use crate::{
    args::{Global, Lead},
    exit::{self, Stop},
    held::End,
    run::Started,
    signals::Signals,
    task::Task,
    waiting::Question,
    wanted::Wanted,
};

/// Campaigns, runs the command while it leads, and campaigns again after a loss. Ends when the command ends by itself, and when
/// it is asked to end.
pub(crate) async fn lead(global: &Global, args: Lead) -> Result<u8, Stop> {
    let task = Task::from(&args);
    task.check()?;
    let mut started = Started::new(global, &task, Wanted::only(args.name)).await?;
    started.refuse_nested().await?;
    let election = started.locks().election(started.name());
    loop {
        let guards = started.enter_for_ever().await?;
        let term = election.term(started.first(&guards));
        term.announce().await;
        let proclaimed = async |signals: &mut Signals| match &args.proclaim {
            Some(text) => proclaim(global, &term, text, signals).await,
            None => Ok(()),
        };
        match started.run(guards, proclaimed).await? {
            End::Ended(code) => return Ok(code),
            End::Lost(line) if started.is_asked_to_end() => return Err(task.lost(line)),
            End::Lost(line) if !global.quiet => exit::warn(&format!("{line}; campaigning again")),
            End::Lost(_) => {}
        }
    }
}

/// A leader that cannot be found leads all the same.
async fn proclaim(global: &Global, term: &Term, text: &str, signals: &mut Signals) -> Result<(), Stop> {
    let question = Question::new(global, format!("{}: proclaiming", term.name()));
    let proclaimed = question.awaited(signals.asked_to_end(), term.proclaim(text)).await;
    if let Err(error) = proclaimed.map_err(Stop::signalled)? {
        exit::warn(&format!("{}: {}", term.name(), exit::chain(&error)));
    }
    Ok(())
}
