//! The files of the tree: what git tracks, or would track.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use crate::step::Failure;

/// Every text file by its path from the root, with `/`. A new file is here before it is added; what is not UTF-8 is not here.
pub(crate) fn texts(root: &Path) -> Result<BTreeMap<String, String>, Failure> {
    let failed = |why: String| Failure::new("git ls-files", why);
    let output = Command::new("git")
        // OK because we only list: a checkout that belongs to another user (CI) is no danger here.
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|e| failed(format!("cannot start git: {e}")))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let texts = listed.split_terminator('\0').filter_map(|path| {
        // What is deleted but still tracked cannot be read, and is gone for us too.
        let text = fs::read_to_string(root.join(path)).ok()?;
        Some((path.to_owned(), text))
    });
    Ok(texts.collect())
}
