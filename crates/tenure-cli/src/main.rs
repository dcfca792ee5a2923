//! The command `tenure`: runs a program under a lock, shows holders and waiters, breaks a lock.

mod args;
mod bench;
mod calendar;
mod child;
mod death;
mod doctor;
#[cfg(target_os = "linux")]
mod drift;
mod every;
mod exit;
mod lease;
mod live;
#[cfg(test)]
mod man_tests;
mod nested;
mod processes;
mod release;
mod run;
mod signals;
mod store;
mod supervisor;
mod text;
mod view;
mod waiting;
mod watcher;

use std::{io, os::unix::net::UnixStream, panic, process::ExitCode};

use clap::Parser;
use tenure::command::shown;
use tracing_subscriber::{field::MakeExt, fmt::format::debug_fn};

use crate::{
    args::{Cli, Verb},
    exit::Stop,
};

fn main() -> ExitCode {
    signals::block();
    // The inner verbs come first and stay away from everything else: they run between fork and exec of a child, beside it, or last.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().as_deref().and_then(|verb| verb.to_str()) {
        Some(child::VERB) => return child::exec(arguments),
        Some(watcher::VERB) => return watcher::watch(arguments),
        Some(death::VERB) => return death::die(arguments),
        _ => {}
    }
    panic::set_hook(Box::new(|why| exit::warn(&why.to_string().replace('\n', " "))));
    match Cli::try_parse() {
        // A panic has said why. It is ours, or the system's, which gives a driver no thread.
        Ok(cli) => panic::catch_unwind(|| main_loop(cli)).unwrap_or_else(|_| ExitCode::from(exit::INTERNAL)),
        Err(error) if error.use_stderr() => exit::say(&Stop::usage(exit::one_line(&error))),
        Err(help) => {
            let text = help.render();
            let text = match text::is_colourful(&io::stdout()) {
                true => text.ansi().to_string(),
                false => text.to_string(),
            };
            view::print_exactly(&text).map_or_else(|stop| exit::say(&stop), |()| ExitCode::SUCCESS)
        }
    }
}

/// Everything waits on the main thread: a child's death signal belongs to the thread that made it.
fn main_loop(cli: Cli) -> ExitCode {
    init_tracing(cli.global.verbose);
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            return exit::say(&Stop::internal(format!("the async runtime cannot be started: {error}")));
        }
    };
    let global = cli.global;
    let done = runtime.block_on(async {
        match cli.verb {
            Verb::Run(args) => run::run(&global, args).await,
            Verb::Lead(args) => run::lead(&global, args).await,
            Verb::Ls(args) => view::ls(&global, &args).await,
            Verb::Show(args) => view::show(&global, &args).await,
            Verb::Watch(args) => live::watch(&global, &args).await,
            Verb::Break(args) => view::break_lock(&global, &args).await,
            Verb::Doctor(args) => doctor::doctor(&global, &args).await,
            Verb::Bench(args) => bench::bench(&global, &args).await,
            Verb::Lock(args) => lease::lock(&global, args).await,
            Verb::Renew(args) => lease::renew(&global, &args).await,
            Verb::Unlock(args) => lease::unlock(&global, &args).await,
            Verb::Attach(args) => lease::attach(&global, args).await,
            Verb::Completions { shell } => view::completions(shell),
        }
    });
    // A look-up of a name that hangs must not keep us: nothing that is left there matters any more.
    runtime.shutdown_background();
    let code = match done {
        Ok(code) => code,
        Err(stop) => {
            exit::say(&stop);
            stop.code()
        }
    };
    if let Ok(ourselves) = processes::ourselves() {
        death::die_if(code, &ourselves);
    }
    ExitCode::from(code)
}

/// Its part that listens to signals panics where it gets no descriptors. So those are asked for before, and some more:
/// without
/// them there is no store either.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let _room = [UnixStream::pair()?, UnixStream::pair()?, UnixStream::pair()?];
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn init_tracing(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => tracing::Level::INFO,
        2 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    let colour = text::is_colourful(&io::stderr());
    // What is logged may have come from the store.
    let fields = debug_fn(|out, field, value| match (field.name(), format!("{value:?}")) {
        ("message", value) => write!(out, "{}", shown(&value).within(4096)),
        (name, value) => write!(out, "{name}={}", shown(&value)),
    });
    let logs = tracing_subscriber::fmt().fmt_fields(fields.delimited(" ")).with_max_level(level);
    logs.with_writer(|| text::Log).with_ansi(colour).init();
}
