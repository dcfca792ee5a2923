//! `attach`: a command under a lease that another process took.

use tenure::{AttachError, Guards};

use crate::{
    args::{Attach, Global},
    exit::{Stop, chain},
    held::End,
    lease::outlives_its_process,
    nested,
    run::Started,
    task::Task,
    waiting::Question,
    wanted::Wanted,
};

const ENDS_IT: &str =
    "`attach` would release it while the outer command runs on: run the inner command without `tenure`";

pub(crate) async fn attach(global: &Global, args: Attach) -> Result<u8, Stop> {
    let task = Task::from(&args);
    task.check()?;
    let (name, owner) = (args.name, args.owner);
    nested::refuse_own(&name, owner, ENDS_IT)?;
    let mut started = Started::new(global, &task, Wanted::only(name.clone())).await?;
    outlives_its_process(started.locks(), "another one cannot go on with it")?;
    let lock = started.set(started.locks().mutex(&name));
    let question = Question::new(global, format!("{name}: going on with the lease"));
    let attached = question.answered(started.signals().asked_to_end(), async {
        match lock.attach(owner).await {
            Err(AttachError::Backend(error)) => Err(error),
            answer => Ok(answer),
        }
    });
    let guard = attached.await?.map_err(|error| match error {
        AttachError::Gone => task.lost(format!("{name}: {error}")),
        AttachError::Config(error) => Stop::usage(error.to_string()),
        other => Stop::internal(chain(&other)),
    })?;
    match started.run(Guards::from(guard), async |_| Ok(())).await? {
        End::Ended(code) => Ok(code),
        End::Lost(line) => Err(task.lost(line)),
    }
}
