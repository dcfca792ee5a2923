//! `impl QuorumNode`: what a server does besides as one node of a Redlock quorum.

use async_trait::async_trait;
use tenure_core::{BackendError, ErrorKind, FencingToken, LockName, Outcome, OwnerId, QuorumNode, Raised};

use crate::{
    backend::Redis,
    error,
    keys::{Counting, Keys},
    script::number,
    session::Session,
};

impl Redis {
    /// # Errors
    /// `Unsupported`, if this handle was not made for that.
    fn must_be(&self, is_so: bool, message: &str) -> Result<(), BackendError> {
        if is_so {
            return Ok(());
        }
        let error = BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message.to_owned());
        Err(error.with("redis", self.config().place_name()))
    }

    /// One attempt through an open gate. `None`: it is closed.
    async fn raise_through(
        &self,
        session: &Session,
        gate: &str,
        keys: &Keys,
        (owner, to): (OwnerId, FencingToken),
    ) -> Result<Option<Raised>, BackendError> {
        let script = &self.scripts().raise;
        let mut call = script.call(&[&keys.lock, &keys.counter(), self.config().record()]);
        call.arg(gate).arg(&owner.hex()[..]).arg(to.get());
        match number(&session.ask(script, &call).await?) {
            Some(1) => Ok(Some(Raised::Raised)),
            Some(0) => Ok(Some(Raised::Gone)),
            Some(-1) => Ok(None),
            _ => Err(error::unreadable(session.place(), "a raise")),
        }
    }
}

#[async_trait]
impl QuorumNode for Redis {
    /// The `run_id`, asked for each time: whoever wants to know it also wants to know whether this server answers.
    async fn identity(&self) -> Result<String, BackendError> {
        self.must_be(!self.is_cluster(), "a Redis Cluster is more than one server")?;
        let session = self.sessions.session().await?;
        let mut info = redis::cmd("INFO");
        let answer = session.command(info.arg("server")).await?;
        let text: Option<String> = redis::from_redis_value(answer).ok();
        let run_id =
            text.as_ref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("run_id:")));
        run_id.map(str::to_owned).ok_or_else(|| error::unreadable(session.place(), "who it is"))
    }

    async fn another(&self) -> Result<Self, BackendError> {
        Ok(Self::sharing(self.sessions.shared.clone()))
    }

    /// Only those who hold alone are raised; a quorum knows no others.
    async fn raise(&self, name: &LockName, owner: OwnerId, to: FencingToken) -> Result<Raised, BackendError> {
        let is_node = self.config().counting() == Counting::Quorum;
        self.must_be(is_node, "this Redis server is no node of a quorum")?;
        let keys = self.keys(name)?;
        for _ in 0..3 {
            let session = self.sessions.session().await?;
            let (gate, now) = (session.gate(), self.sessions.host().now());
            if let Some(text) = self.sessions.pass(&session, &gate, now)? {
                session.stand(now).await?;
                if let Some(raised) = self.raise_through(&session, text, &keys, (owner, to)).await? {
                    return Ok(raised);
                }
            }
            session.recheck(&gate).await?;
        }
        let session = self.sessions.session().await?;
        Err(session.gate().refusal(session.place(), self.sessions.host().now()))
    }
}
