//! Just enough Rust for the rules: code without comments and literals, and where items end.

/// The text with comments, strings and characters blanked; line breaks stay, so lines keep their numbers.
pub(crate) fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    let mut previous = ' ';
    while let Some(first) = rest.chars().next() {
        let hidden = hidden_length(rest, previous);
        let (piece, tail) = rest.split_at(hidden.unwrap_or_else(|| first.len_utf8()));
        if hidden.is_some() {
            code.extend(piece.chars().map(|c| if c == '\n' { c } else { ' ' }));
            previous = ' ';
        } else {
            code.push(first);
            previous = first;
        }
        rest = tail;
    }
    code
}

/// Each line's number, with the code from its start to the end of the file.
pub(crate) fn from_each_line(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut start = 0;
    code.split_inclusive('\n').enumerate().map(move |(index, line)| {
        let rest = &code[start..];
        start += line.len();
        (index + 1, rest)
    })
}

/// How many lines the item takes that starts (with its attributes) at the start of this code.
pub(crate) fn item_lines(code: &str) -> usize {
    let mut depth = 0_i32;
    for (index, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        let is_end = depth < 0 || (depth == 0 && matches!(c, '}' | ';'));
        if is_end {
            return lines_to(code, index);
        }
    }
    lines_to(code, code.len())
}

/// Whether `word` stands in `text` as a word of its own, not inside a longer one.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(index, _)| {
        let before = text[..index].chars().next_back();
        let after = text[index + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// Whether a character can be part of a name.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn lines_to(code: &str, index: usize) -> usize {
    code[..index].matches('\n').count() + 1
}

/// The length of the comment or literal that starts here, if one does.
fn hidden_length(rest: &str, previous: char) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(block_comment_length(rest));
    }
    if rest.starts_with('"') {
        return Some(string_length(rest));
    }
    if rest.starts_with('\'') {
        return character_length(rest);
    }
    if is_word(previous) { None } else { raw_string_length(rest) }
}

/// Block comments nest.
fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0;
    let mut index = 0;
    while index < rest.len() {
        if rest[index..].starts_with("/*") {
            depth += 1;
            index += 2;
        } else if rest[index..].starts_with("*/") {
            depth -= 1;
            index += 2;
            if depth == 0 {
                return index;
            }
        } else {
            index += rest[index..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

fn string_length(rest: &str) -> usize {
    let mut is_escaped = false;
    for (index, c) in rest.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return index + 1,
            _ => {}
        }
    }
    rest.len()
}

/// None for a lifetime, which starts as a character does.
fn character_length(rest: &str) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        chars.next();
        return chars.find(|(_, c)| *c == '\'').map(|(index, _)| index + 1);
    }
    chars.next().filter(|(_, c)| *c == '\'').map(|(index, _)| index + 1)
}

/// `r"…"`, `r#"…"#`, also of bytes and C strings; not a raw name like `r#type`.
fn raw_string_length(rest: &str) -> Option<usize> {
    let marked = rest.strip_prefix(['b', 'c']).unwrap_or(rest).strip_prefix('r')?;
    let inside = marked.trim_start_matches('#');
    let hashes = &marked[..marked.len() - inside.len()];
    let inside = inside.strip_prefix('"')?;
    let end = format!("\"{hashes}");
    let length = inside.find(&end).map_or(inside.len(), |index| index + end.len());
    Some(rest.len() - inside.len() + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code with runs of blanks drawn together.
    fn seen(text: &str) -> String {
        code_only(text).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_are_no_code() {
        assert_eq!(seen("a // b\nc /* d /* e */ f */ g\n/// h\n//! i"), "a c g");
    }

    #[test]
    fn literals_are_no_code() {
        assert_eq!(seen(r#"a("b // \" c", 'd', '\'', '"', b"e", '\u{1F600}') f"#), "a( , , , , b , ) f");
        assert_eq!(seen(r###"a(r"b", r#"c " d"#, br"e", r#type) f"###), "a( , , , r#type) f");
    }

    #[test]
    fn lifetimes_are_code() {
        assert_eq!(
            seen("fn a<'b>(c: &'b str, d: &'static str) {}"),
            "fn a<'b>(c: &'b str, d: &'static str) {}"
        );
    }

    #[test]
    fn lines_keep_their_numbers() {
        let code = code_only("a\n/* b\nc */\n\"d\ne\"\nf");
        assert_eq!(code.lines().map(str::trim).collect::<Vec<_>>(), ["a", "", "", "", "", "f"]);
    }

    #[test]
    fn an_item_ends_at_its_semicolon_or_brace() {
        assert_eq!(item_lines("#[cfg(test)]\nuse a;\nb"), 2);
        assert_eq!(item_lines("#[cfg(test)]\nfn a(b: [u8; 2]) {\n    c();\n}\nd"), 4);
        assert_eq!(item_lines("#[cfg(test)]\n    a: u8,\n}\n"), 3);
    }

    #[test]
    fn a_word_is_not_found_inside_a_longer_one() {
        assert!(has_word("see L1.", "L1"));
        assert!(!has_word("L12, XL1, L1_b", "L1"));
    }
}
