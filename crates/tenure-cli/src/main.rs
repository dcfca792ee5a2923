//! The command `tenure`: runs a program under a lock, shows holders and waiters, breaks a lock.

mod args;
mod bench;
mod beside;
mod calendar;
mod child;
mod death;
mod doctor;
#[cfg(target_os = "linux")]
mod drift;
mod every;
mod exit;
mod front;
mod health;
mod hold;
mod lease;
mod lines;
mod live;
#[cfg(test)]
mod man_tests;
mod nested;
mod ownership;
mod processes;
mod refusals;
mod release;
mod run;
mod signals;
mod sources;
mod store;
mod supervisor;
mod terminal;
mod text;
mod view;
mod waiting;
mod watcher;
mod worker;

use std::{ffi::OsString, io, os::unix::net::UnixStream, panic, process::ExitCode, time::Duration};

use clap::{CommandFactory, Parser};
use nix::sys::signal::SigSet;
use tenure::command::shown;
use tracing_subscriber::{field::MakeExt, fmt::format::debug_fn};

use crate::{
    args::{Cli, Verb},
    exit::Stop,
    signals::Signals,
    waiting::pause,
    worker::Message,
};

fn main() -> ExitCode {
    signals::block();
    // The inner verbs come first, separate from everything else: they run between fork and exec of a child, next to it, or last.
    let mut arguments = std::env::args_os().skip(1).peekable();
    match arguments
        .next_if(|verb| INNER.iter().any(|inner| verb == inner))
        .as_deref()
        .and_then(|verb| verb.to_str())
    {
        Some(child::VERB) => return child::exec(arguments),
        Some(watcher::VERB) => return watcher::watch(arguments),
        Some(death::VERB) => return death::die(arguments),
        Some(front::FREE) => return free(arguments),
        Some(hold::GUARD) => return hold::guard(arguments),
        Some(hold::STAND_IN) => return hold::stand_in(arguments),
        Some(worker::VERB) => match worker::become_one(&mut arguments) {
            Ok(at_start) => signals::take_over(&at_start),
            Err(error) => {
                return exit::say(&Stop::usage(format!("{} is not a verb for users: {error}", worker::VERB)));
            }
        },
        _ => {}
    }
    panic::set_hook(Box::new(|why| exit::warn(&why.to_string().replace('\n', " "))));
    match Cli::try_parse_from(written(arguments)) {
        Ok(cli) if front::stands_before(&cli.verb) => front::stand(&cli.global),
        Ok(cli) => {
            let is_hold = matches!(cli.verb, Verb::Hold(_));
            // A panic has printed its reason. It is a bug of Tenure, or the system starts no thread for a driver.
            panic::catch_unwind(|| main_loop(cli)).unwrap_or_else(|_| {
                if is_hold {
                    hold::refuse(exit::INTERNAL);
                }
                ExitCode::from(exit::INTERNAL)
            })
        }
        Err(error) if error.use_stderr() => {
            if verb().as_deref() == Some("hold") {
                hold::refuse(exit::USAGE);
            }
            exit::say(&Stop::usage(exit::one_line(&error, verb().as_deref())))
        }
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

/// The verbs that are not for users.
const INNER: [&str; 7] =
    [child::VERB, watcher::VERB, death::VERB, front::FREE, worker::VERB, hold::GUARD, hold::STAND_IN];

/// A command line without what is inside of it for inner verbs.
fn written(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    [OsString::from("tenure")].into_iter().chain(arguments)
}

/// `__free`: a front frees the locks of its dead worker.
fn free(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    // A TERM to all processes of a service is not for this one, which ends soon.
    let _ = SigSet::all().thread_block();
    let Ok(cli) = Cli::try_parse_from(written(arguments)) else { return ExitCode::from(exit::USAGE) };
    let Ok(runtime) = runtime() else { return ExitCode::from(exit::INTERNAL) };
    let code = runtime.block_on(front::free(&cli.global)).unwrap_or_else(|stop| stop.code());
    // A name lookup that hangs must not delay the exit.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// The verb on the command line: its help page explains the usage error.
fn verb() -> Option<String> {
    let written = std::env::args_os().skip(1).filter_map(|word| word.into_string().ok());
    let command = Cli::command();
    written.take_while(|word| word != "--").find(|word| command.find_subcommand(word).is_some())
}

/// Everything waits on the main thread: a child's death signal belongs to the thread that made it.
fn main_loop(cli: Cli) -> ExitCode {
    init_tracing(&cli.global);
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            if matches!(cli.verb, Verb::Hold(_)) {
                hold::refuse(exit::INTERNAL);
            }
            return exit::say(&Stop::internal(format!("cannot start the async runtime: {error}")));
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
            Verb::Hold(args) if args.script.is_some() => run::hold(&global, &args).await,
            Verb::Hold(_) => hold::hold().await,
            Verb::Lock(args) => lease::lock(&global, args).await,
            Verb::Renew(args) => lease::renew(&global, &args).await,
            Verb::Unlock(args) => lease::unlock(&global, &args).await,
            Verb::Ownership(args) => ownership::ownership(&global, &args).await,
            Verb::Attach(args) => lease::attach(&global, args).await,
            Verb::Completions { shell } => view::completions(shell),
        }
    });
    let code = match done {
        Ok(code) => code,
        Err(stop) => {
            exit::tell(&stop);
            stop.code()
        }
    };
    runtime.block_on(last_lines());
    // A name lookup that hangs must not delay the exit: nothing that is left there matters any more.
    runtime.shutdown_background();
    if !worker::tell(&Message::Ends(death::reason(code)))
        && let Ok(ourselves) = processes::ourselves()
    {
        death::die_if(code, &ourselves);
    }
    ExitCode::from(code)
}

/// Waits until the last lines are written, or for a signal.
async fn last_lines() {
    let Ok(mut signals) = Signals::listen() else { return };
    let written = async {
        while !lines::flush(POLL) {
            pause(POLL).await;
        }
    };
    tokio::select! {
        biased;
        () = written => {}
        _ = signals.asked_to_end() => {}
        () = pause(exit::LAST_LINES) => {}
    }
}

/// Between two checks of that.
const POLL: Duration = Duration::from_millis(20);

/// Its signal handling panics if the system provides no descriptors. So these and some more are opened before;
/// without them no store could be reached either.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let _room = [UnixStream::pair()?, UnixStream::pair()?, UnixStream::pair()?];
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn init_tracing(global: &args::Global) {
    let level = match global.verbose {
        0 if global.quiet => return,
        0 => return refusals::init(),
        // The lines of progress are the command's own; these are what may go wrong on the way.
        1 => tracing::Level::WARN,
        2 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    let colour = text::is_colourful(&io::stderr());
    // A logged text may come from the store.
    let fields = debug_fn(|out, field, value| match (field.name(), format!("{value:?}")) {
        ("message", value) => write!(out, "{}", shown(&value).within(4096)),
        (name, value) => write!(out, "{name}={}", shown(&value)),
    });
    let logs = tracing_subscriber::fmt().fmt_fields(fields.delimited(" ")).with_max_level(level);
    logs.with_writer(|| lines::Log).with_ansi(colour).init();
}
