//! Folders of servers, which are deleted with them.

use std::{
    env,
    path::{Path, PathBuf},
};

use nix::sys::statvfs::statvfs;
use tempfile::TempDir;

/// A folder for one server, in memory where there is room: hundreds of servers write thousands of small files and
/// need none of them afterwards.
///
/// # Panics
/// If it cannot be made.
pub(crate) fn of_server(prefix: &str) -> TempDir {
    let memory = Path::new(MEMORY);
    let place = if room(memory) >= ENOUGH { memory.to_owned() } else { env::temp_dir() };
    new(prefix, place)
}

/// A folder in the machine's folder for temporary files.
///
/// # Panics
/// If it cannot be made.
pub(crate) fn temporary(prefix: &str) -> TempDir {
    new(prefix, env::temp_dir())
}

fn new(prefix: &str, place: PathBuf) -> TempDir {
    tempfile::Builder::new().prefix(prefix).tempdir_in(place).expect("a temporary folder")
}

/// The free bytes of this file system; zero if there is no such folder.
fn room(place: &Path) -> u64 {
    statvfs(place).map_or(0, |facts| facts.blocks_available() * facts.fragment_size())
}

const MEMORY: &str = "/dev/shm";
/// 2 GiB: all servers that run at the same time need a fifth of it.
const ENOUGH: u64 = 2 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_not_there_has_no_room() {
        assert_eq!(room(Path::new("/no/such/place")), 0);
        assert!(room(&env::temp_dir()) > 0);
    }

    #[test]
    fn a_folder_goes_with_its_server() {
        let folder = of_server("tenure-folder-");
        let path = folder.path().to_owned();
        assert!(path.is_dir());
        drop(folder);
        assert!(!path.exists());
    }
}
