//! The files of the book: pages of `docs`, READMEs of the stores, pages made from data; with links as they are there.

use std::collections::BTreeMap;

use super::{SETTINGS, markdown, tables};

/// Stores whose README is a page, and what the page is called.
const STORES: &[(&str, &str)] = &[
    ("memory", "Memory"),
    ("sqlite", "SQLite"),
    ("redis", "Redis"),
    ("redlock", "Redlock"),
    ("postgres", "PostgreSQL"),
    ("mysql", "MariaDB and MySQL"),
    ("zookeeper", "ZooKeeper"),
    ("etcd", "etcd"),
];

/// Every file of the book by its path below the source of the site.
pub(super) fn all(texts: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    let repository = repository(texts.get("Cargo.toml").map_or("", String::as_str));
    let mut files = BTreeMap::new();
    for (path, text) in texts {
        let Some(place) = place(path) else { continue };
        let page = if path.ends_with(".toml") {
            tables::page(path, text).map_err(|why| format!("{path}: {why}"))?
        } else if let Some((_, title)) = store(path) {
            titled(title, text)
        } else {
            text.clone()
        };
        let is_page = place.ends_with(".md");
        let page = if is_page { linked(path, &page, repository.as_deref()) } else { page };
        files.insert(format!("pages/{place}"), page);
    }
    let settings = texts.get(SETTINGS).ok_or_else(|| format!("{SETTINGS} is missing"))?;
    files.insert("zensical.toml".to_owned(), settings.clone());
    Ok(files)
}

/// Where a file of the repository stands in the book, if it does.
pub(super) fn place(path: &str) -> Option<String> {
    if let Some((name, _)) = store(path) {
        return Some(format!("reference/stores/{name}.md"));
    }
    let inside = path.strip_prefix("docs/")?;
    if inside.starts_with("decisions/") {
        return None;
    }
    match inside.strip_suffix(".toml") {
        Some(data) if inside.contains('/') => Some(format!("{data}.md")),
        Some(_) => None,
        None => [".md", ".svg", ".css"].iter().any(|end| inside.ends_with(end)).then(|| inside.to_owned()),
    }
}

fn store(path: &str) -> Option<&'static (&'static str, &'static str)> {
    let name = path.strip_prefix("crates/tenure-")?.strip_suffix("/README.md")?;
    STORES.iter().find(|(store, _)| *store == name)
}

/// Where the repository is, if the manifest says so.
fn repository(manifest: &str) -> Option<String> {
    let line = manifest.lines().find(|line| line.starts_with("repository = "))?;
    line.split('"').nth(1).map(str::to_owned)
}

/// A README is the front page of its crate's docs: it has no title there, or one of its own.
fn titled(title: &str, readme: &str) -> String {
    let below: Vec<String> = markdown::lines(readme)
        .map(|(_, line, is_prose)| {
            let is_heading = is_prose && markdown::heading(line).is_some();
            if is_heading { format!("#{line}") } else { line.to_owned() }
        })
        .collect();
    match readme.strip_prefix("# ").and_then(|rest| rest.split_once('\n')) {
        Some((_, rest)) => format!("# {title}\n{rest}"),
        None => format!("# {title}\n\n{}\n", below.join("\n")),
    }
}

/// The page with links as they are in the book. What is not in it is linked in the repository, or not at all.
fn linked(path: &str, page: &str, repository: Option<&str>) -> String {
    let own = place(path).unwrap_or_default();
    let mut made = String::new();
    for (_, line, is_prose) in markdown::lines(page) {
        let mut rest = 0;
        for link in markdown::links(line).iter().filter(|_| is_prose) {
            made.push_str(&line[rest..link.start]);
            made.push_str(&replaced(path, &own, link, &line[link.start..link.end], repository));
            rest = link.end;
        }
        made.push_str(&line[rest..]);
        made.push('\n');
    }
    made
}

fn replaced(path: &str, own: &str, link: &markdown::Link, whole: &str, repository: Option<&str>) -> String {
    let (file, name) =
        link.target.split_once('#').map_or((link.target.as_str(), None), |(f, n)| (f, Some(n)));
    if file.is_empty() || link.target.contains(':') || link.target.contains(' ') {
        return whole.to_owned();
    }
    let target = markdown::resolve(path, file);
    let name = name.map_or(String::new(), |name| format!("#{name}"));
    let mark = if whole.starts_with('!') { "!" } else { "" };
    match (place(&target), repository) {
        (Some(there), _) => format!("{mark}[{}]({}{name})", link.text, relative(own, &there)),
        (None, Some(repository)) => format!("[{}]({repository}/blob/main/{target}{name})", link.text),
        (None, None) => link.text.clone(),
    }
}

/// The way from one page to another.
fn relative(from: &str, to: &str) -> String {
    let depth = from.matches('/').count();
    format!("{}{to}", "../".repeat(depth))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        let settings = (SETTINGS, "[project]\n");
        let texts =
            files.iter().chain([&settings]).map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        all(&texts.collect()).unwrap()
    }

    #[test]
    fn links_lead_to_pages_of_the_book_or_are_words() {
        let page = "[r](../../crates/tenure-redis/README.md#a) [x](../../src/a.rs) ![p](p.svg) [d](../decisions/1.md)\n";
        let files = book(&[("docs/guides/a.md", page), ("crates/tenure-redis/README.md", "Redis.\n# A\n")]);
        assert_eq!(
            files["pages/guides/a.md"],
            "[r](../reference/stores/redis.md#a) x ![p](../guides/p.svg) d\n"
        );
        assert_eq!(files["pages/reference/stores/redis.md"], "# Redis\n\nRedis.\n## A\n");
    }

    #[test]
    fn what_is_not_in_the_book_is_linked_where_the_repository_is() {
        let manifest = ("Cargo.toml", "repository = \"https://x.y/z\"\n");
        let files = book(&[manifest, ("docs/a.md", "[x](../src/a.rs)\n")]);
        assert_eq!(files["pages/a.md"], "[x](https://x.y/z/blob/main/src/a.rs)\n");
    }

    #[test]
    fn decisions_and_settings_are_no_pages() {
        assert_eq!(place("docs/decisions/0001-a.md"), None);
        assert_eq!(place(SETTINGS), None);
        assert_eq!(place("docs/evidence/track-record.toml").as_deref(), Some("evidence/track-record.md"));
    }
}
