//! A Debian that has never seen Rust or this tree: the package is installed there, and used.

use std::{fs, path::Path, process::Command};

use crate::{
    step::{Failure, Steps, io, output_of, succeeds},
    workspace::Workspace,
};

/// What the scripts say with.
const EXPECT: &str = "packaging/expect.sh";

/// Enters a root with namespaces of its own: whatever is mounted or started there ends with the script.
const ENTER: &str =
    r#"mount -t proc proc "$1/proc" && exec chroot "$1" /usr/bin/env -i HOME=/root PATH="$PATH" sh /try.sh"#;

/// A root that is made once, and unpacked anew for each try.
pub(crate) struct CleanRoot {
    /// The release of Debian.
    pub(crate) suite: &'static str,
    /// What is in it beside the essential.
    pub(crate) include: &'static str,
    /// What is done there.
    pub(crate) script: &'static str,
}

impl CleanRoot {
    /// Makes the root, installs the package under this name and uses it.
    pub(crate) fn try_package(
        &self,
        steps: &mut Steps,
        workspace: &Workspace,
        (folder, package, name): (&Path, &Path, &str),
    ) -> Result<(), Failure> {
        let archive = folder.join(format!("{}.tar", self.suite));
        if !archive.exists() {
            if !succeeds(Command::new("mmdebstrap").arg("--version")) {
                return Err(Failure::new("clean root", "please run: sudo apt-get install mmdebstrap"));
            }
            let mut make = Command::new("mmdebstrap");
            make.args(["--quiet", "--variant=minbase", &format!("--include={}", self.include), self.suite]);
            steps.command("mmdebstrap", make.arg(&archive))?;
        }
        let root = folder.join("root");
        steps.work("clean root", || unpack(&archive, &root))?;
        let [script, words] = [self.script, EXPECT].map(|file| workspace.root.join(file));
        for (from, to) in [(package, name), (&*script, "try.sh"), (&*words, "expect.sh")] {
            fs::copy(from, root.join(to)).map_err(|e| io(from, &e))?;
        }
        let mut enter = Command::new("unshare");
        enter.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh"]).arg(&root);
        steps.command("try", enter.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"))
    }
}

fn unpack(archive: &Path, root: &Path) -> Result<(), Failure> {
    if root.exists() {
        fs::remove_dir_all(root).map_err(|e| io(root, &e))?;
    }
    fs::create_dir_all(root).map_err(|e| io(root, &e))?;
    output_of(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(root)).map(|_| ())
}
