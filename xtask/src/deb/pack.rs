//! From a program and the files of the tree to one package.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    deb::contents::{self, Source},
    step::{Failure, io, output_of},
};

const CHANGELOG: &str = "packaging/debian/changelog";
const CONTROL: &str = "packaging/debian/control";

/// What `dpkg --verify` compares.
const SUMS: &str = "find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum";

/// The tool that finds libraries reads the control file of a source, of which there is none.
const STAND_IN: &str = "Source: tenure\n\nPackage: tenure\nArchitecture: any\n";

/// What a package is made of, and where.
#[derive(Debug)]
pub(super) struct Pack {
    /// Of the tree.
    pub(super) root: PathBuf,
    /// Everything here is ours.
    pub(super) folder: PathBuf,
    /// The command, as it was built.
    pub(super) program: PathBuf,
}

impl Pack {
    /// The changelog of the package has to have this version on top, with a number of Debian's behind it.
    pub(super) fn is_of(&self, built: &str) -> Result<(), Failure> {
        let version = self.changelog("Version")?;
        if version.rsplit_once('-').is_some_and(|(upstream, _)| upstream == built) {
            return Ok(());
        }
        let what = format!("{CHANGELOG} has {version}, and the command is {built}: add an entry");
        Err(Failure::new("deb", what))
    }

    /// Lays the files out, and makes one of them all.
    pub(super) fn make(&self, notices: &str) -> Result<PathBuf, Failure> {
        let tree = self.folder.join("tenure");
        if tree.exists() {
            fs::remove_dir_all(&tree).map_err(|e| io(&tree, &e))?;
        }
        for (path, source) in contents::files(&self.root, notices)? {
            let file = tree.join(path.trim_end_matches(".gz"));
            self.lay(&file, &source)?;
            if path.ends_with(".gz") {
                output_of(Command::new("gzip").args(["-9", "--no-name"]).arg(&file))?;
            }
        }
        let installed = tree.join("usr/bin/tenure");
        let strip = ["--strip-unneeded", "-R", ".comment", "-R", ".note"];
        output_of(Command::new("strip").args(strip).arg(&installed))?;
        let (version, architecture) =
            (self.changelog("Version")?, output_of(Command::new("dpkg").arg("--print-architecture"))?);
        let depends = self.libraries(&installed)?;
        self.describe(
            &tree,
            &[("Version", &version), ("Architecture", &architecture), ("Depends", &depends)],
        )?;
        let package = self.folder.join(format!("tenure_{version}_{architecture}.deb"));
        let mut build = Command::new("dpkg-deb");
        build.args(["--root-owner-group", "--build"]).arg(&tree).arg(&package);
        // With this, whoever packs the same program gets the same package.
        output_of(build.env("SOURCE_DATE_EPOCH", self.changelog("Timestamp")?))?;
        Ok(package)
    }

    fn changelog(&self, field: &str) -> Result<String, Failure> {
        output_of(
            Command::new("dpkg-parsechangelog").arg("-l").arg(self.root.join(CHANGELOG)).args(["-S", field]),
        )
    }

    fn lay(&self, file: &Path, source: &Source) -> Result<(), Failure> {
        let parent = file.parent().unwrap_or(file);
        fs::create_dir_all(parent).map_err(|e| io(parent, &e))?;
        let laid = match source {
            Source::Program => fs::copy(&self.program, file).map(|_| ()),
            Source::File(from) => fs::copy(self.root.join(from), file).map(|_| ()),
            Source::Text(text) => fs::write(file, text),
            Source::Completions(shell) => {
                fs::write(file, output_of(Command::new(&self.program).args(["completions", shell]))? + "\n")
            }
        };
        laid.map_err(|e| io(file, &e))?;
        let mode = if *source == Source::Program { "0755" } else { "0644" };
        output_of(Command::new("chmod").arg(mode).arg(file)).map(|_| ())
    }

    /// Which libraries of the system the program needs, and since when they have what it calls.
    fn libraries(&self, program: &Path) -> Result<String, Failure> {
        self.lay(&self.folder.join("debian/control"), &Source::Text(STAND_IN.to_owned()))?;
        let found =
            output_of(Command::new("dpkg-shlibdeps").arg("-O").arg(program).current_dir(&self.folder))?;
        let depends = found.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
        depends.map(str::to_owned).ok_or_else(|| Failure::new("dpkg-shlibdeps", format!("it said: {found}")))
    }

    /// The files of `DEBIAN/`: what the package is, and the sums of what it has.
    fn describe(&self, tree: &Path, fields: &[(&str, &str)]) -> Result<(), Failure> {
        let in_tree = |script: &str| output_of(Command::new("sh").args(["-c", script]).current_dir(tree));
        let (sums, size) = (in_tree(SUMS)?, in_tree("du -sk usr | cut -f 1")?);
        let path = self.root.join(CONTROL);
        let control = fs::read_to_string(&path).map_err(|e| io(&path, &e))?;
        // The long description is the last field, so ours stand before.
        let (name, rest) = control.split_once('\n').unwrap_or((&control, ""));
        let fields = fields.iter().copied().chain([("Installed-Size", &*size)]);
        let fields: String = fields.map(|(field, value)| format!("{field}: {value}\n")).collect();
        self.lay(&tree.join("DEBIAN/control"), &Source::Text(format!("{name}\n{fields}{rest}")))?;
        self.lay(&tree.join("DEBIAN/md5sums"), &Source::Text(sums + "\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{deb::missing_tools, workspace::Workspace};

    /// The real tree with a program that says which words it got.
    fn pack(folder: &Path) -> Pack {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        Pack { root, folder: folder.to_owned(), program: "/bin/echo".into() }
    }

    /// A machine without the tools cannot make a package, and says so.
    fn is_no_debian() -> bool {
        let missing = missing_tools();
        missing.iter().for_each(|package| eprintln!("not tried: there is no {package}"));
        !missing.is_empty()
    }

    /// A package of another version than the command's is refused by nobody, and replaces nothing.
    #[test]
    fn the_changelog_of_the_package_has_the_version_of_the_command() {
        if is_no_debian() {
            return;
        }
        let (workspace, pack) = (Workspace::load().unwrap(), pack(Path::new("/")));
        pack.is_of(&workspace.package("tenure-cli").unwrap().version).unwrap();
        let refused = pack.is_of("0.0.9").unwrap_err().to_string();
        assert!(refused.contains("the command is 0.0.9: add an entry"), "{refused}");
    }

    /// What is not on the list is not in the package; without the right place or mode it is not found.
    #[test]
    fn a_package_has_the_command_its_pages_and_its_completions() {
        if is_no_debian() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let package = pack(folder.path()).make("the licences").unwrap();
        let listed = output_of(Command::new("dpkg-deb").arg("--contents").arg(&package)).unwrap();
        for (mode, path) in [
            ("-rwxr-xr-x", "usr/bin/tenure"),
            ("-rw-r--r--", "usr/share/man/man1/tenure.1.gz"),
            ("-rw-r--r--", "usr/share/man/man1/tenure-run.1.gz"),
            ("-rw-r--r--", "usr/share/bash-completion/completions/tenure"),
            ("-rw-r--r--", "usr/share/zsh/vendor-completions/_tenure"),
            ("-rw-r--r--", "usr/share/fish/vendor_completions.d/tenure.fish"),
            ("-rw-r--r--", "usr/share/doc/tenure/copyright"),
            ("-rw-r--r--", "usr/share/doc/tenure/third-party-licenses.gz"),
            ("-rw-r--r--", "usr/share/doc/tenure/examples/systemd/tenure-nightly.service"),
        ] {
            let is_there =
                |line: &str| line.starts_with(&format!("{mode} root/root")) && line.ends_with(path);
            assert!(listed.lines().any(is_there), "{path}: {listed}");
        }
        let show =
            |field: &str| output_of(Command::new("dpkg-deb").arg("-f").arg(&package).arg(field)).unwrap();
        assert!(show("Depends").starts_with("libc6 (>= "), "{}", show("Depends"));
        assert!(show("Description").contains("\n Locks as leases"), "{}", show("Description"));
        let bash = folder.path().join("tenure/usr/share/bash-completion/completions/tenure");
        assert_eq!(fs::read_to_string(bash).unwrap(), "completions bash\n");
    }
}
