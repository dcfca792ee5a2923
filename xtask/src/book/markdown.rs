//! What the book has to know of Markdown: headings, links, and what is code.

/// A link as `[text](target)`, or an image.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// Where it begins in its line, with the `!` of an image, and where it ends.
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) text: String,
    pub(crate) target: String,
}

/// The lines of a page by number, and whether each is prose; fences and what they enclose are not.
pub(crate) fn lines(page: &str) -> impl Iterator<Item = (usize, &str, bool)> {
    let mut fence: Option<&str> = None;
    page.lines().enumerate().map(move |(index, line)| {
        let mark = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark));
        let is_prose = fence.is_none() && mark.is_none();
        match (fence, mark) {
            (None, Some(opened)) => fence = Some(opened),
            (Some(opened), Some(closed)) if opened == closed => fence = None,
            _ => {}
        }
        (index + 1, line, is_prose)
    })
}

/// The links of a line of prose.
pub(crate) fn links(line: &str) -> Vec<Link> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(middle) = line[from..].find("](").map(|offset| from + offset) {
        let after = middle + 2;
        let Some(end) = line[after..].find(')').map(|offset| after + offset) else { break };
        if let Some(open) = opening(&line[..middle])
            && line[..open].matches('`').count().is_multiple_of(2)
        {
            let start = if line[..open].ends_with('!') { open - 1 } else { open };
            let (text, target) = (line[open + 1..middle].to_owned(), line[after..end].to_owned());
            found.push(Link { start, end: end + 1, text, target });
        }
        from = end;
    }
    found
}

/// Where the links of a line lead, with that of a definition such as `[name]: target`.
pub(crate) fn targets(line: &str) -> Vec<String> {
    let inline = links(line).into_iter().map(|link| link.target);
    let defined = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    inline.chain(defined.map(|(_, target)| target.to_owned())).collect()
}

/// The bracket that belongs to the end of this text.
fn opening(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (index, character) in text.char_indices().rev() {
        match character {
            ']' => depth += 1,
            '[' if depth == 0 => return Some(index),
            '[' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Level and text of a heading.
pub(crate) fn heading(line: &str) -> Option<(usize, &str)> {
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    let text = line[level..].strip_prefix(' ')?;
    (1..=6).contains(&level).then_some((level, text.trim()))
}

/// The name by which a heading is linked.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .collect::<String>();
    kept.split([' ', '-']).filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
}

/// Whether a page has a heading of this name.
pub(crate) fn has_anchor(page: &str, name: &str) -> bool {
    lines(page)
        .any(|(_, line, is_prose)| is_prose && heading(line).is_some_and(|(_, text)| anchor(text) == name))
}

/// The path that a relative link of a page means, from the root.
pub(crate) fn resolve(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            other => parts.push(other),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_images_are_found_and_code_is_none() {
        let line = "see [`a`](x.md#y) and ![b](c.svg), not `[d](e.md)`";
        let found: Vec<(String, String)> = links(line)
            .into_iter()
            .map(|link| (line[link.start..link.end].to_owned(), link.target))
            .collect();
        let expected = [("[`a`](x.md#y)", "x.md#y"), ("![b](c.svg)", "c.svg")];
        assert_eq!(found, expected.map(|(whole, target)| (whole.to_owned(), target.to_owned())));
    }

    #[test]
    fn a_heading_in_a_fence_is_none() {
        let page = "# One\n```sh\n# two\n```\n## The `run` of three, again\n";
        assert!(has_anchor(page, "one") && has_anchor(page, "the-run-of-three-again"));
        assert!(!has_anchor(page, "two"));
    }
}
