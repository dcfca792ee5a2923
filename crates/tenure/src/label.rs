//! The label of this process.

use std::sync::LazyLock;

use tenure_core::Label;

static LABEL: LazyLock<Label> = LazyLock::new(|| {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    let uid = nix::unistd::getuid();
    let user =
        nix::unistd::User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
    let command = std::env::args_os().next().unwrap_or_default();
    Label::new(&host, std::process::id(), &user, &command.to_string_lossy())
});

/// Host, pid, user and program of this process: the label that its locks have by default, which others see when they ask for
/// the holder. [`Lock::label`](crate::Lock::label) sets another one.
pub fn this_process() -> Label {
    LABEL.clone()
}
