//! Just enough Rust for the rules: code without comments and literals, and which lines are compiled for tests only.

use proc_macro2::{Delimiter, Group, Spacing, Span, TokenStream, TokenTree};

/// What keeps an item out of what we ship.
const TEST_ATTRIBUTES: &[&str] = &["cfg(test)", "cfg(all(test", "cfg(doctest)", "cfg(all(doctest"];

/// A file of Rust, line for line.
#[derive(Debug)]
pub(crate) struct Code {
    /// Comments, strings and characters are blank.
    pub(crate) text: String,
    /// For each line: whether it is compiled for tests only.
    pub(crate) tests: Vec<bool>,
}

impl Code {
    /// A text that is not Rust stays as it is: the compiler refuses it anyway.
    pub(crate) fn read(text: &str) -> Self {
        let lines = text.lines().count();
        let Ok(tokens) = text.parse::<TokenStream>() else {
            return Self { text: text.to_owned(), tests: vec![false; lines] };
        };
        let mut canvas = Canvas {
            lines: text.lines().map(|line| vec![' '; line.chars().count()]).collect(),
            tests: vec![false; lines],
        };
        canvas.draw(tokens);
        let lines: Vec<String> = canvas.lines.into_iter().map(String::from_iter).collect();
        Self { text: lines.join("\n") + "\n", tests: canvas.tests }
    }
}

struct Canvas {
    lines: Vec<Vec<char>>,
    tests: Vec<bool>,
}

impl Canvas {
    fn draw(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = &tokens[..];
        while let [token, next @ ..] = rest {
            if let Some(attribute) = attribute(rest) {
                // A comment with three slashes arrives as an attribute.
                if token.span().source_text().is_some_and(|text| !text.starts_with('#')) {
                    rest = &rest[attribute.tokens..];
                    continue;
                }
                let what: String = attribute.group.stream().to_string().split_whitespace().collect();
                if TEST_ATTRIBUTES.iter().any(|start| what.starts_with(start)) {
                    let last = tokens.last().map_or(0, |token| token.span().end().line);
                    let end = if attribute.is_inner { last } else { end_of_item(rest) };
                    self.tests[token.span().start().line - 1..end].fill(true);
                }
            }
            self.draw_one(token);
            rest = next;
        }
    }

    fn draw_one(&mut self, token: &TokenTree) {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                self.put(group.span_open(), open);
                self.draw(group.stream());
                self.put(group.span_close(), close);
            }
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.starts_with(|c: char| c.is_ascii_digit()) {
                    self.put(literal.span(), &text);
                }
            }
            TokenTree::Ident(ident) => self.put(ident.span(), &ident.to_string()),
            TokenTree::Punct(punct) => self.put(punct.span(), &punct.as_char().to_string()),
        }
    }

    fn put(&mut self, span: Span, text: &str) {
        let start = span.start();
        for (place, c) in self.lines[start.line - 1][start.column..].iter_mut().zip(text.chars()) {
            *place = c;
        }
    }
}

struct Attribute<'a> {
    group: &'a Group,
    is_inner: bool,
    tokens: usize,
}

/// The attribute that starts here, if one does.
fn attribute(tokens: &[TokenTree]) -> Option<Attribute<'_>> {
    match tokens {
        [TokenTree::Punct(hash), TokenTree::Group(group), ..] if hash.as_char() == '#' => {
            Some(Attribute { group, is_inner: false, tokens: 2 })
        }
        [TokenTree::Punct(hash), TokenTree::Punct(bang), TokenTree::Group(group), ..]
            if (hash.as_char(), bang.as_char()) == ('#', '!') =>
        {
            Some(Attribute { group, is_inner: true, tokens: 3 })
        }
        _ => None,
    }
}

/// The last line of the item, field or element that starts, with its attributes, at the first of these tokens.
fn end_of_item(tokens: &[TokenTree]) -> usize {
    let (mut angles, mut before, mut rest, mut end) = (0, ' ', tokens, 0);
    while let [token, next @ ..] = rest {
        end = token.span().end().line;
        if let Some(attribute) = attribute(rest) {
            rest = &rest[attribute.tokens..];
            continue;
        }
        match token {
            // A list of imports, or a value in braces: the semicolon follows.
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                return match next.first() {
                    Some(TokenTree::Punct(p)) if p.as_char() == ';' => p.span().end().line,
                    _ => end,
                };
            }
            TokenTree::Punct(punct) => {
                match punct.as_char() {
                    '<' => angles += 1,
                    // Not the end of an arrow.
                    '>' if !matches!(before, '-' | '=') => angles -= 1,
                    ';' => return end,
                    ',' if angles <= 0 => return end,
                    _ => {}
                }
                before = if punct.spacing() == Spacing::Joint { punct.as_char() } else { ' ' };
            }
            _ => before = ' ',
        }
        rest = next;
    }
    end
}

/// Whether `word` stands in `text` as a word of its own, not inside a longer one.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(index, _)| {
        let before = text[..index].chars().next_back();
        let after = text[index + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code with runs of blanks drawn together.
    fn seen(text: &str) -> String {
        Code::read(text).text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        assert_eq!(seen("a // b\nc /* d /* e */ f */ g\n/// h\nj\n//! i\nk"), "a c g j k");
        assert_eq!(seen(r#"a("b // \" c", 'd', '\'', '"', b"e", '\u{1F600}') f"#), "a( , , , , , ) f");
        assert_eq!(seen(r###"a(r"b", r#"c " d"#, br"e", r#type, 7) f"###), "a( , , , r#type, 7) f");
        assert_eq!(seen("fn a<'b>(c: &'b str) {}"), "fn a<'b>(c: &'b str) {}");
        assert_eq!(seen("half ( of it"), "half ( of it");
    }

    #[test]
    fn lines_keep_their_numbers() {
        let code = Code::read("a\n/* b\nc */\n\"d\ne\"\nf").text;
        assert_eq!(code.lines().map(str::trim).collect::<Vec<_>>(), ["a", "", "", "", "", "f"]);
    }

    #[test]
    fn an_item_for_tests_ends_where_it_ends() {
        for (text, expected) in [
            ("#[cfg(test)]\nuse a;\nb!();", 2),
            ("#[cfg(test)]\nuse a::{\nb};\nc!();", 3),
            ("#[cfg(test)]\n#[b]\nfn a<C, D>(b: [u8; 2]) -> E<F, G> {\n    c();\n}\nd!();", 5),
            ("#[cfg(all(test, unix))]\nconst A: B = B {\n};\nc!();", 3),
        ] {
            let tests = Code::read(text).tests;
            assert_eq!(tests.iter().take_while(|is_test| **is_test).count(), expected, "{text}");
            assert_eq!(tests.iter().filter(|is_test| **is_test).count(), expected, "{text}");
        }
        assert_eq!(
            Code::read("struct A {\n#[cfg(test)]\na: B<C, D>,\nb: u8,\n}").tests,
            [false, true, true, false, false]
        );
        assert_eq!(Code::read("#![cfg(test)]\nfn a() {}\n").tests, [true; 2]);
    }

    #[test]
    fn a_word_is_not_found_inside_a_longer_one() {
        assert!(has_word("see L1.", "L1"));
        assert!(!has_word("L12, XL1, L1_b", "L1"));
    }
}
