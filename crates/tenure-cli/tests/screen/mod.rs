//! A pseudo-terminal with a program on it: what is typed, what is seen, who has the foreground.

use std::{
    io::{Read, Write},
    sync::{Arc, Mutex},
    thread,
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use tenure_testkit::patience::eventually;

use crate::stage::{PATIENCE, Stage, process::kill_descendants};

/// A terminal with a program as the leader of its session; the program ends with the test.
pub(crate) struct Screen {
    master: Box<dyn MasterPty + Send>,
    keyboard: Box<dyn Write + Send>,
    program: Box<dyn Child + Send + Sync>,
    shown: Arc<Mutex<Vec<u8>>>,
    /// Up to where it was looked at.
    looked: usize,
}

impl Screen {
    /// Starts a program on the stage.
    pub(crate) fn start(stage: &Stage, program: &[&str]) -> Self {
        Self::start_with(stage, program, &[])
    }

    pub(crate) fn start_with(stage: &Stage, program: &[&str], environment: &[(&str, &str)]) -> Self {
        let size = PtySize { rows: 24, cols: 160, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).unwrap();
        let mut command = CommandBuilder::new(program[0]);
        command.args(&program[1..]);
        command.cwd(stage.path(""));
        command.env_clear();
        for (key, value) in stage.environment() {
            command.env(key, value);
        }
        for (key, value) in
            [&[("TERM", "xterm"), ("tenure", env!("CARGO_BIN_EXE_tenure"))], environment].concat()
        {
            command.env(key, value);
        }
        let program = pair.slave.spawn_command(command).unwrap();
        let shown = Arc::<Mutex<Vec<u8>>>::default();
        let (mut reader, screen) = (pair.master.try_clone_reader().unwrap(), shown.clone());
        thread::spawn(move || {
            let mut some = [0; 4096];
            // An error is the end: nobody has the terminal any more.
            while let Ok(count @ 1..) = reader.read(&mut some) {
                screen.lock().unwrap().extend(&some[..count]);
            }
        });
        let keyboard = pair.master.take_writer().unwrap();
        Self { master: pair.master, keyboard, program, shown, looked: 0 }
    }

    /// An interactive shell with job control, whose first prompt has been seen.
    pub(crate) fn shell(stage: &Stage) -> Self {
        let bash = ["bash", "--norc", "--noprofile", "-i"];
        let environment = [("TERM", "dumb"), ("PS1", "ready> "), ("HISTFILE", "")];
        let mut screen = Self::start_with(stage, &bash, &environment);
        screen.sees("ready> ");
        screen
    }

    /// Presses keys.
    pub(crate) fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }

    /// Waits until `text` is shown, after all that was waited for before.
    pub(crate) fn sees(&mut self, text: &str) {
        let (shown, looked) = (self.shown.clone(), self.looked);
        let what = format!("the terminal shows {text:?}");
        let found = std::panic::catch_unwind(|| {
            eventually(&what, PATIENCE, || {
                let shown = shown.lock().unwrap();
                let at = shown[looked..].windows(text.len()).position(|part| part == text.as_bytes())?;
                Some(looked + at + text.len())
            })
        });
        self.looked = found.unwrap_or_else(|_| panic!("{what}; it shows {:?}", self.all()));
    }

    /// All that was shown.
    pub(crate) fn all(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.program.process_id().unwrap()).unwrap()
    }

    /// Hangs the terminal up, as a broken connection does.
    pub(crate) fn hang_up(&mut self) {
        // The system does this when the last master is closed.
        let [leader, group] = [self.pid(), self.foreground()].map(Pid::from_raw);
        let _ = kill(leader, Signal::SIGHUP);
        let _ = killpg(group, Signal::SIGHUP);
    }

    /// The process group that reads what is typed.
    pub(crate) fn foreground(&self) -> i32 {
        self.master.process_group_leader().unwrap()
    }

    /// Waits for the end of the program, and until all that it said is shown.
    pub(crate) fn ended(&mut self) -> u32 {
        let what = format!("the program on the terminal ends; it shows {:?}", self.all());
        let status = eventually(&what, PATIENCE, || self.program.try_wait().unwrap());
        // As a shell has it.
        match status.signal() {
            Some("Interrupt") => 130,
            Some("Quit") => 131,
            _ => status.exit_code(),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.program.try_wait().unwrap().is_none() {
            kill_descendants(self.program.process_id().unwrap());
            let _ = self.program.kill();
            let _ = self.program.wait();
        }
    }
}
