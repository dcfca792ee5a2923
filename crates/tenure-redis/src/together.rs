//! Asks for plain claims and releases: for one of them, and for those that are ready at the same time in one script.

use std::{future::poll_fn, mem, sync::Arc, task::Poll};

use tenure_core::{BackendError, ErrorKind, Outcome};

use crate::{
    connection::Connection,
    error,
    plain::{Asked, Plain, Run, Told},
    shared::Shared,
};

/// Asks for one.
pub(crate) async fn alone<R: Plain>(
    connection: &Connection,
    shared: &Shared,
    request: &R,
) -> Result<R::Answer, BackendError> {
    let answer = connection.ask(R::script(&shared.scripts), &request.call(shared)).await?;
    R::read(answer).ok_or_else(|| error::unreadable(&connection.place, R::WHAT))
}

/// What sends those that are ready. It lives where the driver of the connection does, so that they depend on no other runtime.
pub(crate) struct Sender {
    pub(crate) connection: Arc<Connection>,
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Sender {
    /// Also if its runtime ends before it is begun.
    fn drop(&mut self) {
        self.connection.gathering.end();
    }
}

impl Sender {
    /// Until nobody can ask over this connection any more.
    pub(crate) async fn run(self) {
        while self.connection.gathering.is_ready().await {
            // All that is ready now joins; and the server begins with what was sent while we make the next.
            go_behind().await;
            for run in self.connection.gathering.next() {
                match run {
                    Run::Take(run) => self.begin(run).await,
                    Run::Free(run) => self.begin(run).await,
                }
            }
        }
    }

    /// Gives them to the connection; a task of their own hears the answer, also while more keep coming.
    async fn begin<R: Plain>(&self, run: Vec<Asked<R>>) {
        let Self { connection, shared } = self;
        let mut asking = Box::pin(together(connection.clone(), shared.clone(), run));
        let is_answered = poll_fn(|task| Poll::Ready(asking.as_mut().poll(task).is_ready())).await;
        if !is_answered {
            shared.host.spawn(asking);
        }
    }
}

/// Lets those have their turn that are ready now. (The driver is one. tokio's `yield_now` would wait until no task is ready.)
async fn go_behind() {
    let mut is_behind = false;
    poll_fn(|task| {
        if mem::replace(&mut is_behind, true) {
            return Poll::Ready(());
        }
        task.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn together<R: Plain>(connection: Arc<Connection>, shared: Arc<Shared>, run: Vec<Asked<R>>) {
    let _under_way = connection.gathering.enter(run.len());
    let (requests, askers): (Vec<R>, Vec<_>) = run.into_iter().unzip();
    let told: Vec<Told<R>> = if let [request] = &requests[..] {
        vec![Told::Answer(alone(&connection, &shared, request).await)]
    } else {
        many(&connection, &shared, requests).await
    };
    for (asker, told) in askers.into_iter().zip(told) {
        // OK to ignore: an asker that has gone needs no answer. The engine has none go that may be granted something.
        let _ = asker.send(told);
    }
}

async fn many<R: Plain>(connection: &Connection, shared: &Shared, requests: Vec<R>) -> Vec<Told<R>> {
    let (call, count) = (R::call_for_many(&requests, shared), requests.len());
    match connection.ask(R::script_for_many(&shared.scripts), &call).await {
        Ok(answer) => match R::read_many(answer, count) {
            Some(answers) => {
                let told = |(answer, request)| match answer {
                    Some(answer) => Told::Answer(Ok(answer)),
                    None => Told::Alone(request),
                };
                answers.into_iter().zip(requests).map(told).collect()
            }
            None => to_all(count, &error::unreadable(&connection.place, R::WHAT)),
        },
        // One of them may be to blame, or a right that only the script for many needs.
        Err(error) if error.outcome() == Outcome::NotApplied => {
            if error.kind() != ErrorKind::Unavailable {
                tracing::debug!(place = connection.place, %error, "from here on each request goes alone");
                connection.gathering.refuse();
            }
            requests.into_iter().map(Told::Alone).collect()
        }
        Err(error) => to_all(count, &error),
    }
}

fn to_all<R: Plain>(count: usize, error: &BackendError) -> Vec<Told<R>> {
    (0..count).map(|_| Told::Answer(Err(error.clone()))).collect()
}
