//! The classes of the server, read once for this machine: a start from an archive of them costs a third less of the processor.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    time::SystemTime,
};

pub(super) const JAR: &str = "/usr/share/java/zookeeper.jar";

/// What a server is started with to read them from the archive, which is made if there is none. It stays in the machine's folder
/// for temporary files, for the next test. A Java that cannot use it reads the classes themselves.
///
/// `record` starts a server with the option that it is given, and has it end in order: then it writes down what it has read.
pub(super) fn from_archive(record: impl FnOnce(&str)) -> String {
    let place = place();
    if !place.exists() {
        let lock = File::create(place.with_extension("lock")).expect("a file in the temporary folder");
        lock.lock().expect("a lock on our own file");
        if !place.exists() {
            let making = place.with_extension("making");
            record(&format!("-XX:ArchiveClassesAtExit={}", making.display()));
            // One that makes none is not asked again and again.
            File::options().create(true).append(true).open(&making).expect("a file in the temporary folder");
            fs::rename(&making, &place).expect("our own file");
        }
    }
    format!("-XX:SharedArchiveFile={}", place.display())
}

/// An archive is of one Java and one jar.
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

/// Changes with how servers are started, so that an older archive is not taken.
const FORM: &str = "1";
