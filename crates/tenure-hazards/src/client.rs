//! A client's process from inside. It does what the scene orders, with the scheme that it is given.

use std::{process::ExitCode, thread, time::Duration};

use crate::{
    protocol::{Client, Message, Order, Step, order, send},
    schemes::{self, Scheme},
};

/// The word that makes the program a client.
pub const CLIENT: &str = "__client";

/// The variable in which a client finds where locks are kept: an argument would show a password to every user.
pub(crate) const URL: &str = "TENURE_HAZARDS_URL";

/// The word that makes the program the work of a script.
pub const WORK: &str = "__work";

/// Works for the time in the first argument, in ms, and reports it.
pub fn work(args: &[String]) -> ExitCode {
    let Some(work) = args.first().and_then(|ms| ms.parse().ok()).map(Duration::from_millis) else {
        return ExitCode::FAILURE;
    };
    send(Message::Locked { alias: std::process::id().to_string(), token: None });
    thread::sleep(work);
    send(Message::Leaves);
    send(Message::Unlocked);
    ExitCode::SUCCESS
}

/// Plays a client: scheme, name, lock, ttl in ms. Returns when no more orders come.
pub fn run(args: &[String]) -> ExitCode {
    match played(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut words = error.to_string();
            let mut source = error.source();
            while let Some(cause) = source {
                words = format!("{words}: {cause}");
                source = cause.source();
            }
            send(Message::Fails(words));
            ExitCode::FAILURE
        }
    }
}

fn played(args: &[String]) -> Step {
    let [scheme, name, lock, ttl] = args else { return Err("four words are needed".into()) };
    let mut me = Client {
        name: name.clone(),
        lock: lock.clone(),
        url: std::env::var(URL)?,
        ttl: Duration::from_millis(ttl.parse()?),
        pauses: false,
    };
    let scheme = schemes::named(scheme).ok_or_else(|| format!("there is no scheme {scheme}"))?;
    let mut scheme = (scheme.make)(&me)?;
    send(Message::Ready);
    while let Some(order) = order()? {
        me.does(&mut *scheme, order)?;
    }
    Ok(())
}

impl Client {
    fn does(&mut self, scheme: &mut dyn Scheme, order: Order) -> Step {
        match order {
            Order::Lock { pauses } => self.locks(scheme, pauses)?,
            Order::Unlock { pauses } => self.unlocks(scheme, pauses)?,
            Order::Connect => {
                self.pauses = false;
                scheme.lock(self)?;
                scheme.unlock(self)?;
                send(Message::Unlocked);
            }
            Order::Turn { work } => {
                self.locks(scheme, false)?;
                thread::sleep(work);
                self.unlocks(scheme, false)?;
            }
            Order::Forget => send(Message::Abandons),
            Order::Write { text, pauses } => {
                self.pauses = pauses;
                if scheme.believes() {
                    self.gap("before the write")?;
                    send(Message::Writes { text, token: scheme.token() });
                } else {
                    send(Message::HeldBack);
                }
            }
            Order::Add { pauses } => {
                self.pauses = pauses;
                let is_taken = scheme.add(self)?;
                send(Message::Added(is_taken));
            }
            // It was in no gap: the scheme has none.
            Order::GoOn => {}
        }
        Ok(())
    }

    fn locks(&mut self, scheme: &mut dyn Scheme, pauses: bool) -> Step {
        self.pauses = pauses;
        scheme.lock(self)?;
        send(Message::Locked { alias: scheme.alias(self), token: scheme.token() });
        Ok(())
    }

    fn unlocks(&mut self, scheme: &mut dyn Scheme, pauses: bool) -> Step {
        self.pauses = pauses;
        send(Message::Leaves);
        scheme.unlock(self)?;
        send(Message::Unlocked);
        Ok(())
    }
}
