//! An archive of the server's classes, made once for this machine: with it a start takes a third less processor time.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    time::SystemTime,
};

pub(super) const JAR: &str = "/usr/share/java/zookeeper.jar";

/// The option by which a server reads the classes from the archive, which is made if there is none. The archive stays
/// in the machine's folder for temporary files, so that the next test can use it. A Java that cannot use it reads the
/// classes themselves.
///
/// `record` starts a server with the option that it is given, and makes it end in order: the server then writes the
/// archive.
pub(super) fn from_archive(record: impl FnOnce(&str)) -> String {
    let place = place();
    if !place.exists() {
        let lock = File::create(place.with_extension("lock")).expect("a file in the temporary folder");
        lock.lock().expect("a lock on our own file");
        if !place.exists() {
            let making = place.with_extension("making");
            record(&format!("-XX:ArchiveClassesAtExit={}", making.display()));
            // If no archive was made, an empty file prevents further tries.
            File::options().create(true).append(true).open(&making).expect("a file in the temporary folder");
            fs::rename(&making, &place).expect("our own file");
        }
    }
    format!("-XX:SharedArchiveFile={}", place.display())
}

/// An archive is valid for one Java and one jar.
fn place() -> PathBuf {
    let java = fs::canonicalize("/usr/bin/java").unwrap_or_default();
    let [java, jar] = [&java, Path::new(JAR)].map(changed);
    env::temp_dir().join(format!("tenure-zookeeper-{java}-{jar}-{FORM}.jsa"))
}

/// When a file was changed, in seconds; zero if there is none.
fn changed(file: &Path) -> u64 {
    let at = fs::metadata(file).and_then(|facts| facts.modified());
    at.ok().and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()).map_or(0, |since| since.as_secs())
}

/// Change it when servers are started in another way, so that no older archive is used.
const FORM: &str = "1";
