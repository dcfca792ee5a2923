//! What is held: a guard, which releases, and its leases, which prove.

use std::sync::Mutex;

use pyo3::prelude::*;
use tenure::{Lost, backend::BoxFuture, election::Leadership, ownership::Ownership};

use crate::{
    call::Call,
    errors::{Raise, bug},
    own::Own,
    settings::Seconds,
    views::json,
};

/// A held lock, several of them, or a lead. Dropped, it is released in the background.
#[pyclass(module = "tenure._native", frozen)]
pub(crate) struct Guard {
    held: Own<Mutex<Option<Held>>>,
    proof: Own<Proof>,
}

pub(crate) enum Held {
    One(tenure::Guard),
    Several(tenure::Guards),
    Lead(Leadership),
}

/// What proves it, all or one.
#[derive(Clone)]
enum Proof {
    One(tenure::Lease),
    Several(tenure::Leases),
    Lead(tenure::election::Term),
}

/// A grant that its caller does not have yet. Dropped, it is released immediately: no work began under it.
pub(crate) struct Granted(Option<Held>);

impl Granted {
    pub(crate) fn new(held: Held) -> Self {
        Self(Some(held))
    }

    pub(crate) fn deliver(mut self) -> Guard {
        Guard::new(self.0.take().expect("BUG: delivered twice"))
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if let Some(held) = &mut self.0 {
            held.set_unused();
        }
    }
}

impl Held {
    fn set_unused(&mut self) {
        match self {
            Self::One(guard) => guard.set_unused(),
            Self::Several(guards) => guards.set_unused(),
            Self::Lead(leadership) => leadership.set_unused(),
        }
    }
}

impl Guard {
    pub(crate) fn new(held: Held) -> Self {
        let proof = match &held {
            Held::One(guard) => Proof::One(guard.lease()),
            Held::Several(guards) => Proof::Several(guards.leases()),
            Held::Lead(leadership) => Proof::Lead(leadership.term()),
        };
        Self { held: Own::new(Mutex::new(Some(held))), proof: Own::new(proof) }
    }

    fn take(&self) -> PyResult<Option<Held>> {
        Ok(self.held.get()?.lock().map_err(|_| bug("a release panicked"))?.take())
    }
}

#[pymethods]
impl Guard {
    /// Its leases, one for each lock.
    fn leases(&self) -> PyResult<Vec<Lease>> {
        Ok(match self.proof.get()? {
            Proof::One(lease) => vec![Lease::new(lease.clone())],
            Proof::Several(leases) => leases.iter().cloned().map(Lease::new).collect(),
            Proof::Lead(term) => vec![Lease::new(term.as_ref().clone())],
        })
    }

    /// Raises `Lost` if one of them is not held any more.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let checked = match self.proof.get()? {
            Proof::One(lease) => lease.check(),
            Proof::Several(leases) => leases.check(),
            Proof::Lead(term) => term.check(),
        };
        checked.map_err(|lost| lost.raise(py))
    }

    /// The answer is the loss, as a value.
    fn lost(&self) -> PyResult<Call> {
        let lost: BoxFuture<'static, Lost> = match self.proof.get()?.clone() {
            Proof::One(lease) => Box::pin(async move { lease.lost().await }),
            Proof::Several(leases) => Box::pin(async move { leases.lost().await }),
            Proof::Lead(term) => Box::pin(async move { term.lost().await }),
        };
        let make = |py: Python<'_>, lost: Lost| Ok(lost.raise(py).into_value(py));
        Ok(Call::new(async { Ok::<_, Lost>(lost.await) }, make))
    }

    /// `None` if it was released before.
    fn release(&self) -> PyResult<Option<Call>> {
        let nothing = |_: Python<'_>, (): ()| Ok(());
        Ok(self.take()?.map(|held| match held {
            Held::One(guard) => Call::new(guard.release(), nothing),
            Held::Several(guards) => Call::new(guards.release(), nothing),
            Held::Lead(leadership) => Call::new(leadership.resign(), nothing),
        }))
    }

    /// Releases it in the background, as a block that was cut off; the parent of a fork keeps it.
    fn drop_now(&self) {
        if let Ok(held) = self.take() {
            drop(held);
        }
    }

    /// The same of one that its caller never had.
    fn drop_unused(&self) {
        if let Ok(Some(mut held)) = self.take() {
            held.set_unused();
        }
    }

    /// Whether it is of this process, and not of the parent of a fork.
    fn is_ours(&self) -> bool {
        self.held.is_ours()
    }

    /// Leaves it to its ttl, for another process. The answer is its owner.
    fn detach(&self) -> PyResult<Option<Call>> {
        let Some(held) = self.take()? else { return Ok(None) };
        let detach = async move {
            match held {
                Held::One(guard) => guard.detach().await.map_err(|error| error.store_error().clone()),
                Held::Lead(lead) => lead.detach().await.map_err(|error| error.store_error().clone()),
                Held::Several(_) => unreachable!("BUG: the module detaches one lock at a time"),
            }
        };
        Ok(Some(Call::new(detach, |_, left| Ok(left.owner().to_string()))))
    }

    /// Of a lead: stores a text that the others see.
    fn proclaim(&self, text: String) -> PyResult<Call> {
        let Proof::Lead(term) = self.proof.get()? else { return Err(bug("only a lead is proclaimed")) };
        let term = term.clone();
        Ok(Call::new(async move { term.proclaim(text).await }, |_, ()| Ok(())))
    }
}

/// The proof that this process holds one lock.
#[pyclass(module = "tenure._native", frozen)]
pub(crate) struct Lease {
    lease: Own<tenure::Lease>,
}

impl Lease {
    fn new(lease: tenure::Lease) -> Self {
        Self { lease: Own::new(lease) }
    }

    pub(crate) fn lease(&self) -> PyResult<tenure::Lease> {
        self.lease.get().cloned()
    }
}

#[pymethods]
impl Lease {
    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.lease.get()?.name().to_string())
    }

    #[getter]
    fn owner(&self) -> PyResult<String> {
        Ok(self.lease.get()?.owner().to_string())
    }

    #[getter]
    fn token(&self) -> PyResult<u64> {
        Ok(self.lease.get()?.token().get())
    }

    #[getter]
    fn ttl(&self) -> PyResult<f64> {
        Ok(self.lease.get()?.ttl().as_secs_f64())
    }

    #[getter]
    fn remaining(&self) -> PyResult<f64> {
        Ok(self.lease.get()?.remaining().as_secs_f64())
    }

    #[getter]
    fn is_renewal_failing(&self) -> PyResult<bool> {
        Ok(self.lease.get()?.is_renewal_failing())
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.lease.get()?.check().map_err(|lost| lost.raise(py))
    }

    fn set_memo(&self, text: String, kept: Seconds) -> PyResult<Call> {
        let lease = self.lease.get()?.clone();
        Ok(Call::new(async move { lease.set_memo(text, kept.0).await }, |_, ()| Ok(())))
    }

    /// The waiter that asks, as JSON; `None` if there is none by then.
    fn asked_to_stop(&self, within: Option<Seconds>) -> PyResult<Call> {
        let lease = self.lease.get()?.clone();
        let make = |_: Python<'_>, by: Option<tenure::view::WaiterView>| by.as_ref().map(json).transpose();
        let asked = async move {
            match within {
                Some(within) => lease.asked_to_stop_within(within.0).await,
                None => lease.asked_to_stop().await.map(Some),
            }
        };
        Ok(Call::new(asked, make))
    }

    /// What a transaction looks for: a kind, and its texts.
    fn ownership(&self, rest: Option<Seconds>) -> PyResult<Call> {
        let lease = self.lease.get()?.clone();
        let ask = async move {
            match rest {
                Some(Seconds(rest)) => lease.ownership_resting(rest).await,
                None => lease.ownership().await,
            }
        };
        let make = |_: Python<'_>, ownership: Ownership| {
            Ok(match ownership {
                Ownership::Sql(sql) => {
                    let texts = [sql.statement(), sql.row(), sql.proof(), sql.literal()].map(str::to_owned);
                    ("sql", texts.to_vec())
                }
                Ownership::Redis(redis) => ("redis", vec![redis.key().to_owned(), redis.proof().to_owned()]),
                Ownership::Etcd { key, create_revision } => {
                    ("etcd", vec![String::from_utf8_lossy(&key).into_owned(), create_revision.to_string()])
                }
                Ownership::ZooKeeper { path } => ("zookeeper", vec![path]),
                _ => return Err(bug("an ownership that this module does not know")),
            })
        };
        Ok(Call::new(ask, make))
    }
}
