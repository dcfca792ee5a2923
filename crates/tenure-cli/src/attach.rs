//! `attach`: a command under a lease that another process took.

use std::time::Duration;

use tenure::{AttachError, EndOfGrant, Guards, Host, TokioHost};

use crate::{
    args::{Attach, Global},
    exit::{Stop, chain},
    held::{End, Held, Stopping},
    notice::Question,
    release::Release,
    run,
    signals::Signals,
    store,
};

pub(crate) async fn attach(global: &Global, args: Attach) -> Result<u8, Stop> {
    let (name, owner, args) = args.into_run();
    Stopping::new(&args, args.ttl.unwrap_or_default().ttl())?;
    let locks = store::connect(global).await?;
    let promises = locks.promises();
    if promises.end == EndOfGrant::Session {
        let line = format!(
            "a lease of {} ends with the process that took it, so another one cannot go on with it; use `tenure run`",
            promises.backend
        );
        return Err(Stop::usage(line));
    }
    let ttl = run::ttl(&promises, &args)?;
    let stopping = Stopping::new(&args, ttl)?;
    let mut signals = Signals::listen()?;
    let lock = run::with_settings(locks.mutex(&name), &args, ttl, stopping);
    let question = Question::new(global, format!("{name}: going on with the lease"));
    let attached = question.answered(async {
        match lock.attach(owner).await {
            Err(AttachError::Backend(error)) => Err(error),
            answer => Ok(answer),
        }
    });
    let guard = attached.await?.map_err(|error| match error {
        AttachError::Gone => Stop::new(args.lost_exit_code, format!("{name}: {error}")),
        AttachError::Config(error) => Stop::usage(error.to_string()),
        other => Stop::internal(chain(&other)),
    })?;
    let (waited, is_verbose) = (Duration::ZERO, global.verbose > 0 && !global.quiet);
    let (since, first, name, place) = (TokioHost.now(), guard.lease(), name.as_str(), store::place(global));
    let release = Release { locks: &locks, name, place, quiet: global.quiet, ttl };
    let guard = Guards::from(guard);
    let every = None;
    let held = Held { args: &args, name, stopping, guard, first, waited, is_verbose, release, every };
    match held.run(&mut signals, since).await? {
        End::Ended(code) => Ok(code),
        End::Lost(line) => Err(run::lost(&args, line)),
    }
}
