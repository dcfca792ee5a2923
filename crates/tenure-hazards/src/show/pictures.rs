//! Pictures as files, one for each half, and whether they tell what those of another run tell.

use std::{fs, io, path::Path};

use tenure_picture::story;

use crate::{
    runner::Report,
    setup::Half,
    show::draw::{id, picture},
};

/// The file and the text of each half that was played.
pub fn of(shown: &Report) -> Vec<(String, String)> {
    let halves = [(Half::Naive, &shown.naive), (Half::Tenure, &shown.tenure)];
    let played = halves.into_iter().filter_map(|(half, outcome)| Some((half, outcome.played.as_ref()?)));
    played
        .map(|(half, played)| {
            (format!("{}.svg", id(shown.scene, half)), picture(shown.scene, half, played).svg() + "\n")
        })
        .collect()
}

/// Writes them into a folder.
///
/// # Errors
/// If a file cannot be written.
pub fn write(folder: &Path, shown: &[Report]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    shown.iter().flat_map(of).try_for_each(|(file, text)| fs::write(folder.join(file), text))
}

/// What the pictures in a folder tell that these do not, and the other way round, but for times: one line each.
pub fn compare(folder: &Path, shown: &[Report]) -> Vec<String> {
    let mut lines = Vec::new();
    for (file, text) in shown.iter().flat_map(of) {
        let Ok(old) = fs::read_to_string(folder.join(&file)) else {
            lines.push(format!("{file}: is not there"));
            continue;
        };
        let (old, new) = (story(&old), story(&text));
        lines.extend(old.difference(&new).map(|words| format!("{file}: was told, and is not: {words}")));
        lines.extend(new.difference(&old).map(|words| format!("{file}: is told, and was not: {words}")));
    }
    lines
}
