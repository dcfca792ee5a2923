//! `Volume`: whether a file is on a file system that several machines may share.

use std::{fmt, fs, io, os::unix::fs::MetadataExt, path::Path};

/// File systems that several machines share. Leases are counted by one machine's clock, and SQLite's log is in one machine's
/// memory.
const NETWORK: &str = "afs beegfs ceph cifs fuse.ceph fuse.glusterfs fuse.s3fs fuse.sshfs gfs2 gpfs lustre \
                       nfs nfs4 ocfs2 smb3 smbfs";

/// The kind of file system that a file is on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Volume {
    /// A file system of this machine, or one of which nothing is known.
    #[default]
    Local,
    /// One that several machines share.
    Network(String),
    /// One that several machines may share: a program or another kernel serves it.
    Unknown(String),
    /// The list of mounts cannot be read.
    Unreadable,
}

impl Volume {
    /// The volume of a file, or of the nearest directory above it that exists.
    pub fn of(path: &Path) -> Self {
        let found = path.ancestors().find_map(|path| fs::metadata(path).ok());
        let Some(device) = found.and_then(|found| device(found.dev())) else { return Self::Local };
        Self::read(fs::read_to_string("/proc/self/mountinfo"), &device)
    }

    fn read(mounts: io::Result<String>, device: &str) -> Self {
        let Ok(mounts) = mounts else { return Self::Unreadable };
        let Some(kind) = mount_type(&mounts, device) else { return Self::Local };
        if NETWORK.split(' ').any(|known| known == kind) {
            Self::Network(kind.to_owned())
        } else if kind.starts_with("fuse.") || ["fuse", "9p", "virtiofs"].contains(&kind) {
            Self::Unknown(kind.to_owned())
        } else {
            Self::Local
        }
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("a local file system"),
            Self::Network(kind) => write!(f, "a network file system ({kind})"),
            Self::Unknown(kind) => write!(f, "a file system that may be shared ({kind})"),
            Self::Unreadable => {
                f.write_str("a file system of unknown type (/proc/self/mountinfo cannot be read)")
            }
        }
    }
}

/// The device of a file as the kernel writes it in its list of mounts.
#[cfg(target_os = "linux")]
fn device(number: u64) -> Option<String> {
    use nix::sys::stat::{major, minor};
    Some(format!("{}:{}", major(number), minor(number)))
}

#[cfg(not(target_os = "linux"))]
fn device(_number: u64) -> Option<String> {
    None
}

/// From the list of all mounts, as in `/proc/self/mountinfo`: device in the third field, type after the dash.
fn mount_type<'a>(mounts: &'a str, device: &str) -> Option<&'a str> {
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(device))?;
    mount.split_once(" - ")?.1.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
31 21 0:28 / /mnt/nfs rw shared:9 - nfs4 server:/export rw
32 21 0:29 / /mnt/ssh rw - fuse.sshfs me@there: rw
33 21 0:30 / /mnt/stick rw - fuseblk /dev/sdb1 rw
34 21 0:31 / /mnt/cloud rw - fuse.rclone cloud: rw
35 21 0:32 / /mnt/host rw - 9p host rw
36 21 0:33 / /mnt/guest rw - virtiofs guest rw
";

    #[test]
    fn a_file_system_is_shared_or_may_be_or_is_local() {
        let read = |device| Volume::read(Ok(MOUNTS.to_owned()), device);
        for (device, kind) in [("0:28", "nfs4"), ("0:29", "fuse.sshfs")] {
            assert_eq!(read(device), Volume::Network(kind.to_owned()));
        }
        for (device, kind) in [("0:31", "fuse.rclone"), ("0:32", "9p"), ("0:33", "virtiofs")] {
            assert_eq!(read(device), Volume::Unknown(kind.to_owned()));
        }
        for device in ["8:1", "0:30", "0:2", ""] {
            assert_eq!(read(device), Volume::Local, "{device}");
        }
        let unreadable = Volume::read(Err(io::ErrorKind::PermissionDenied.into()), "8:1");
        assert!(unreadable == Volume::Unreadable && unreadable.to_string().contains("mountinfo"));
    }

    #[test]
    fn this_machine_has_a_device_in_its_list_of_mounts() {
        if !cfg!(target_os = "linux") {
            return;
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let device = device(fs::metadata("/proc").unwrap().dev()).unwrap();
        assert!(mounts.lines().any(|line| line.split(' ').nth(2) == Some(&device)), "{device}: {mounts}");
        let below = Path::new("/proc/no/such/folder");
        assert_eq!(Volume::of(below), Volume::of(Path::new("/proc")));
    }
}
