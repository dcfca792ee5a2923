//! Default files of several accounts in use at the same time: a lock in one file does not exclude the same lock in another.

use std::{io, path::Path};

/// The default file of another account that a process of this host uses now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Beside {
    pub(crate) uid: u32,
    pub(crate) file: String,
}

/// Shows the other accounts that this one uses this file, until this process ends, and returns the file of another one, if
/// one is in use.
///
/// # Errors
/// If this system has no such names.
#[cfg(target_os = "linux")]
pub(crate) fn others(uid: u32, file: &Path) -> io::Result<Option<Beside>> {
    use std::{
        os::{linux::net::SocketAddrExt, unix::net},
        sync::OnceLock,
    };

    /// A name that the kernel forgets with its process, and that each account can read.
    static SHOWN: OnceLock<net::UnixDatagram> = OnceLock::new();
    let file = file.to_string_lossy();
    let mine = format!("{PREFIX}{uid}:{}:{}", std::process::id(), &file[..file.floor_char_boundary(LONGEST)]);
    let socket = net::UnixDatagram::bind_addr(&net::SocketAddr::from_abstract_name(mine)?)?;
    // OK to drop a second one: the first shows the same.
    let _ = SHOWN.set(socket);
    Ok(first_other(&std::fs::read_to_string("/proc/net/unix")?, uid, &file))
}

/// As on Linux, where such names exist.
#[cfg(not(target_os = "linux"))]
pub(crate) fn others(_: u32, _: &Path) -> io::Result<Option<Beside>> {
    Ok(None)
}

/// The first of another account and another file. Any process may choose such a name, so one without
/// a path is ignored.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has such names"))]
fn first_other(sockets: &str, own: u32, file: &str) -> Option<Beside> {
    let mine = &file[..file.floor_char_boundary(LONGEST)];
    sockets.lines().find_map(|line| {
        let (_, shown) = line.split_once(&format!(" @{PREFIX}"))?;
        let mut parts = shown.splitn(3, ':');
        let (uid, _pid, file) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
        let is_path = file.starts_with('/') && !file.contains(char::is_control);
        (is_path && uid != own && file != mine).then(|| Beside { uid, file: file.to_owned() })
    })
}

const PREFIX: &str = "tenure-default:";
/// The kernel takes 107 bytes for a name.
const LONGEST: usize = 70;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_another_account_is_found_and_its_own_is_not() {
        let line = |name: &str| format!("ffff8: 00000002 00000000 00000000 0002 01 4711 {name}\n");
        let own = line("@tenure-default:0:12:/root/locks.db") + &line("/run/x") + &line("");
        assert_eq!(first_other(&own, 0, "/root/locks.db"), None);
        assert_eq!(first_other(&own, 1000, "/root/locks.db"), None, "two accounts may use one file");
        let other =
            own + &line("@tenure-default:x:1:/y") + &line("@tenure-default:1000:13:/home/a b/locks.db");
        let found = Beside { uid: 1000, file: "/home/a b/locks.db".to_owned() };
        assert_eq!(first_other(&other, 0, "/root/locks.db"), Some(found));
    }

    /// What one process shows, another one of the same host sees.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_in_use_is_seen() {
        let (file, long) = (format!("/x/{}/locks.db", std::process::id()), "/ü".repeat(60));
        let uid = nix::unistd::Uid::effective().as_raw();
        assert!(others(uid, Path::new(&file)).is_ok() && others(uid, Path::new(&long)).is_ok());
        let all = std::fs::read_to_string("/proc/net/unix").unwrap();
        assert!(first_other(&all, uid + 1, "/elsewhere").is_some());
    }
}
