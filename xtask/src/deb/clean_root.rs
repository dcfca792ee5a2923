//! A Debian that has never seen Rust or this tree: the package is installed there, and used.

use std::{fs, path::Path, process::Command};

use crate::{
    step::{Failure, Steps, io, output_of, succeeds},
    workspace::Workspace,
};

const SUITE: &str = "bookworm";

/// What is in it beside the essential: what reads man pages and completions, and a cron to check a crontab with.
const INCLUDE: &str = "man-db,bash-completion,zsh,fish,cron";

/// What is done there.
const SCRIPT: &str = "packaging/debian/try.sh";

/// Enters a root with namespaces of its own: whatever is mounted or started there ends with the script.
const ENTER: &str =
    r#"mount -t proc proc "$1/proc" && exec chroot "$1" /usr/bin/env -i HOME=/root PATH="$PATH" sh /try.sh"#;

/// Makes the root (once), unpacks it anew, installs the package and uses it.
pub(super) fn try_package(
    steps: &mut Steps,
    workspace: &Workspace,
    (folder, package): (&Path, &Path),
) -> Result<(), Failure> {
    let archive = folder.join(format!("{SUITE}.tar"));
    if !archive.exists() {
        if !succeeds(Command::new("mmdebstrap").arg("--version")) {
            return Err(Failure::new("clean root", "please run: sudo apt-get install mmdebstrap"));
        }
        let mut make = Command::new("mmdebstrap");
        make.args(["--quiet", "--variant=minbase", &format!("--include={INCLUDE}"), SUITE]).arg(&archive);
        steps.command("mmdebstrap", &mut make)?;
    }
    let root = folder.join("root");
    steps.work("clean root", || unpack(&archive, &root))?;
    for (from, to) in [(package, "tenure.deb"), (&*workspace.root.join(SCRIPT), "try.sh")] {
        fs::copy(from, root.join(to)).map_err(|e| io(from, &e))?;
    }
    let mut enter = Command::new("unshare");
    enter.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh"]).arg(&root);
    steps.command("try", enter.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"))
}

fn unpack(archive: &Path, root: &Path) -> Result<(), Failure> {
    if root.exists() {
        fs::remove_dir_all(root).map_err(|e| io(root, &e))?;
    }
    fs::create_dir_all(root).map_err(|e| io(root, &e))?;
    output_of(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(root)).map(|_| ())
}
