//! `Asked`: a claim on its way to the store. Dropped before its answer, it is left to a task: see `in_flight`.

use std::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tenure_core::{Asker, BoxFuture, Claim, OwnerId};

use crate::engine::{
    Engine,
    in_flight::{Answer, is_unknown, life_of},
};

/// A claim on its way, in the hands of its asker.
pub(crate) struct Asked<'a> {
    engine: &'a Engine,
    owner: OwnerId,
    /// How long it may last, whatever it is granted.
    life: Duration,
    asker: Asker,
    asking: Option<BoxFuture<'static, Answer>>,
    /// What was never polled was not sent.
    is_sent: bool,
    /// The program chose the owner, and may repeat the claim elsewhere: one answered release is the last one.
    is_chosen: bool,
}

impl<'a> Asked<'a> {
    /// Nothing is sent before it is polled.
    pub(crate) fn new(engine: &'a Engine, claim: &Claim, is_chosen: bool) -> Self {
        let (backend, owner, life) = (engine.backend.clone(), claim.owner, life_of(claim.ttl));
        let asker = Asker::new();
        let claim = Claim { asker: asker.clone(), ..claim.clone() };
        let asking = Some(Box::pin(async move { backend.claim(&claim).await }) as BoxFuture<'static, Answer>);
        Self { engine, owner, life, asker, asking, is_sent: false, is_chosen }
    }
}

impl Future for Asked<'_> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        self.is_sent = true;
        let asking = self.asking.as_mut().expect("BUG: polled after its answer");
        let answer = std::task::ready!(asking.as_mut().poll(context));
        self.asking = None;
        if is_unknown(&answer) && !self.is_chosen {
            let until = self.engine.host.now() + self.life;
            self.engine.in_flight().set_unknown(self.owner, until);
        }
        Poll::Ready(answer)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let Some(asking) = self.asking.take().filter(|_| self.is_sent) else { return };
        self.asker.leave();
        if self.engine.is_ours() {
            let host = self.engine.host.clone();
            let (owner, life, is_chosen) = (self.owner, self.life, self.is_chosen);
            let left = self.engine.in_flight().leave(owner, life, is_chosen, host.clone(), asking);
            // It goes on in its own runtime, where its timers are. Outside of any its outcome stays unknown.
            drop(host.try_spawn(Box::pin(left.finish())));
        } else {
            // It has locks in it that another thread of the parent may have held.
            mem::forget(asking);
        }
    }
}
