//! C libraries that a process loads before its own.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::folder;

/// The library that is compiled from this source, for `LD_PRELOAD`.
///
/// It is compiled once for the machine and stays in the folder for temporary files. Each test is a process, and
/// compiling takes longer than most tests.
///
/// # Panics
/// If there is no C compiler, or if it refuses the source.
pub fn library(name: &str, source: &str) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    let place = env::temp_dir().join(format!("tenure-{name}-{:016x}.so", hasher.finish()));
    if !place.exists() {
        let folder = folder::temporary("tenure-shim-");
        fs::write(folder.path().join(SOURCE), source).expect("a file in the temporary folder");
        let output = Command::new("cc")
            .args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", LIBRARY, SOURCE])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("cannot start cc: {error}; `cargo xtask test` installs it"));
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let library = folder.path().join(LIBRARY);
        // Servers may run as other users.
        fs::set_permissions(&library, fs::Permissions::from_mode(0o755)).expect("our own file");
        // The file appears whole or not at all, even if several processes compile it.
        fs::rename(library, &place).expect("one folder of temporary files");
    }
    place
}

const SOURCE: &str = "shim.c";
const LIBRARY: &str = "shim.so";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Shared;

    #[test]
    fn a_library_is_compiled_once_for_each_source() {
        let source = |what: &str| format!("int of_{}(void) {{ return 1; }}\n", what.replace('-', "_"));
        let (one, other) = (source(&Shared::part()), source(&Shared::part()));
        let compiled = library("probe", &one);
        let written = fs::metadata(&compiled).unwrap().modified().unwrap();
        assert_eq!(library("probe", &one), compiled);
        assert_eq!(fs::metadata(&compiled).unwrap().modified().unwrap(), written, "the same file");
        let second = library("probe", &other);
        assert_ne!(second, compiled);
        for path in [compiled, second] {
            assert!(fs::read(&path).unwrap().starts_with(b"\x7fELF"), "{}", path.display());
            fs::remove_file(path).unwrap();
        }
    }

    #[test]
    #[should_panic(expected = "probe: shim.c")]
    fn a_source_that_does_not_compile_is_named() {
        library("probe", "no C\n");
    }
}
