//! The progress line on a terminal during a long step.

use std::{
    convert::Infallible,
    io::{IsTerminal, stderr},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use tenure::{Host, TokioHost, shown};

/// How often the line is redrawn.
const FRAME: Duration = Duration::from_millis(100);
/// A step that is shorter than this shows no line.
const PATIENCE: Duration = Duration::from_millis(300);
/// The number of steps of a progress bar.
const STEPS: u64 = 1000;

const SPINNER: &str = "{spinner} {wide_msg}";
const BAR: &str = "{bar:24} {wide_msg}";

/// Draws the text of `message` until dropped, and then clears the line. Draws nothing if `quiet`.
pub(crate) async fn spin(quiet: bool, message: impl Fn() -> String) -> Infallible {
    let bar = ProgressBar::new_spinner();
    draw(quiet, PATIENCE, &bar, SPINNER, || bar.set_message(shown(&message()).to_string())).await
}

/// Draws a bar from 0 to 1 and a text, both from `look`, from the start until dropped; otherwise as [`spin`].
pub(crate) async fn fill(quiet: bool, look: impl Fn() -> (f64, String)) -> Infallible {
    let bar = ProgressBar::new(STEPS);
    let show = || {
        let (share, message) = look();
        bar.set_message(shown(&message).to_string());
        // OK because it is clamped to what a bar has.
        bar.set_position((share.clamp(0.0, 1.0) * STEPS as f64) as u64);
    };
    draw(quiet, Duration::ZERO, &bar, BAR, show).await
}

async fn draw(
    quiet: bool,
    patience: Duration,
    bar: &ProgressBar,
    template: &str,
    show: impl Fn(),
) -> Infallible {
    if quiet || !stderr().is_terminal() {
        std::future::pending::<()>().await;
    }
    pause(patience).await;
    // OK because the templates are constants that a test draws.
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    let _wipe = Wipe(bar);
    loop {
        show();
        bar.tick();
        pause(FRAME).await;
    }
}

struct Wipe<'a>(&'a ProgressBar);

impl Drop for Wipe<'_> {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Waits on the clock that counts suspend.
pub(crate) async fn pause(d: Duration) {
    TokioHost.sleep_until(TokioHost.now() + d).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_of_the_line_are_some() {
        for template in [SPINNER, BAR] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
