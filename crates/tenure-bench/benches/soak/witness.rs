//! `Marks`: files by which holders notice each other, across processes.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tenure::Guard;

/// A mutex is held: its file is locked until this is dropped, or the process ends.
pub(crate) struct Mark(File);

impl Drop for Mark {
    /// Not by closing alone: a process that is just being started has a copy of the descriptor until it runs its program.
    fn drop(&mut self) {
        self.0.unlock().expect("it is locked");
    }
}

/// What a holder finds.
pub(crate) enum Found {
    Alone(Mark),
    /// The holder before stays past its lease, as a process that was paused may.
    Overstays,
    /// Two hold at the same time, or a token did not grow.
    Wrong(String),
}

/// Marks that a mutex is held, in the file of its name: the token, the end of the lease and the process, 20 digits each.
pub(crate) fn mark(folder: &Path, guard: &Guard) -> Found {
    let path = folder.join(guard.name().as_str());
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.expect("the folder is ours");
    if file.try_lock().is_err() {
        let [token, end, pid] = read(&file);
        let (now, is_ours) = (now_ms(), guard.check().is_ok());
        return if is_ours && now < end {
            let (name, ours, left) = (guard.name(), guard.token(), end - now);
            Found::Wrong(format!("{name}: {ours} beside {token} of {pid}, {left} ms before its end"))
        } else {
            Found::Overstays
        };
    }
    let (before, token) = (read(&file)[0], guard.token().get());
    if token <= before {
        return Found::Wrong(format!("{}: token {token} after {before}", guard.name()));
    }
    let end = now_ms() + millis(guard.remaining());
    let pid = std::process::id();
    file.write_all_at(format!("{token:020}{end:020}{pid:020}").as_bytes(), 0).expect("the folder is ours");
    Found::Alone(Mark(file))
}

fn read(file: &File) -> [u64; 3] {
    let mut text = [0; 60];
    if file.read_exact_at(&mut text, 0).is_err() {
        return [0; 3];
    }
    let number = |at: usize| std::str::from_utf8(&text[at..at + 20]).ok()?.parse().ok();
    [0, 20, 40].map(|at| number(at).unwrap_or(0))
}

fn now_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970"))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("it fits")
}
