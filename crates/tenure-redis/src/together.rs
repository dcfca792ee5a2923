//! Sends plain claims and releases: one by one while there are few, and those that are ready at the same time in one script.

use std::{future::poll_fn, sync::Arc, task::Poll};

use futures_util::future::join_all;
use tenure_core::{BackendError, ErrorKind, Outcome};
use tokio::{sync::oneshot, task::yield_now};

use crate::{
    error,
    gathering::{Asked, Leaving, One, Run, Told, UnderWay},
    plain::Plain,
    session::{Session, Sessions},
};

impl Sessions {
    /// Asks on the plain path, alone or with others.
    pub(crate) async fn plainly<R: Plain>(
        self: &Arc<Self>,
        session: &Arc<Session>,
        request: R,
    ) -> Result<R::Answer, BackendError>
    where
        One: From<Asked<R>>,
    {
        if let Some(_under_way) = session.gathering().alone() {
            return self.alone(session, &request).await;
        }
        let (mouth, ear) = oneshot::channel();
        if let Some(leaving) = session.gathering().join(One::from((request, mouth))) {
            self.host().spawn(Box::pin(leave(self.clone(), session.clone(), leaving)));
        }
        match ear.await {
            Ok(Told::Answer(answer)) => answer,
            Ok(Told::Alone(request)) => self.alone(session, &request).await,
            // The runtime that was to send it is gone.
            Err(_) => Err(error::unsent(session.place())),
        }
    }

    async fn alone<R: Plain>(&self, session: &Session, request: &R) -> Result<R::Answer, BackendError> {
        let call = request.call(&self.shared);
        let answer = self.ask(session, R::script(&self.shared.scripts), &call).await?;
        R::read(answer).ok_or_else(|| error::unreadable(session.place(), R::WHAT))
    }

    async fn together<R: Plain>(&self, session: &Session, run: Vec<Asked<R>>, _under_way: UnderWay<'_>) {
        let (requests, ears): (Vec<R>, Vec<_>) = run.into_iter().unzip();
        let told: Vec<Told<R>> = if let [request] = &requests[..] {
            vec![Told::Answer(self.alone(session, request).await)]
        } else {
            self.ask_many(session, requests).await
        };
        for (ear, told) in ears.into_iter().zip(told) {
            // OK to ignore because whoever gave up asks for nothing.
            let _ = ear.send(told);
        }
    }

    async fn ask_many<R: Plain>(&self, session: &Session, requests: Vec<R>) -> Vec<Told<R>> {
        let (call, count) = (R::call_for_many(&requests, &self.shared), requests.len());
        match self.ask(session, R::script_for_many(&self.shared.scripts), &call).await {
            Ok(answer) => match R::read_many(answer, count) {
                Some(answers) => answers.into_iter().map(|answer| Told::Answer(Ok(answer))).collect(),
                None => {
                    let error = error::unreadable(session.place(), R::WHAT);
                    requests.iter().map(|_| Told::Answer(Err(error.clone()))).collect()
                }
            },
            // One of them may be to blame, or a right that only the script for many needs.
            Err(error) if error.outcome() == Outcome::NotApplied => {
                if error.kind() != ErrorKind::Unavailable {
                    session.gathering().refuse();
                }
                requests.into_iter().map(Told::Alone).collect()
            }
            Err(error) => requests.iter().map(|_| Told::Answer(Err(error.clone()))).collect(),
        }
    }
}

/// Sends what is ready, run after run: each is with the connection before the next one is looked at.
async fn leave(sessions: Arc<Sessions>, session: Arc<Session>, mut leaving: Leaving) {
    let mut asked = Vec::new();
    loop {
        // All that is ready now joins; and the server begins with what was sent while we make the next.
        yield_now().await;
        let Some(runs) = leaving.next() else { break };
        for run in runs {
            let mut asking = Box::pin(send(&sessions, &session, run));
            let is_answered = poll_fn(|task| Poll::Ready(asking.as_mut().poll(task).is_ready())).await;
            if !is_answered {
                asked.push(asking);
            }
        }
    }
    join_all(asked).await;
}

async fn send(sessions: &Sessions, session: &Session, run: Run) {
    let gathering = session.gathering();
    match run {
        Run::Take(run) => {
            let under_way = gathering.enter(run.len());
            sessions.together(session, run, under_way).await;
        }
        Run::Free(run) => {
            let under_way = gathering.enter(run.len());
            sessions.together(session, run, under_way).await;
        }
    }
}
