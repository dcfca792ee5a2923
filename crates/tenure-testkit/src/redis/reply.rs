//! What a Redis server answers, read from its protocol (RESP2).

use std::io::{self, BufRead};

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing there.
    Nil,
    /// A whole number.
    Int(i64),
    /// A text; bytes that are no UTF-8 are replaced.
    Text(String),
    /// Several answers.
    List(Vec<Self>),
    /// The server refused, with this text.
    Error(String),
}

impl Reply {
    /// The text.
    ///
    /// # Panics
    /// If it is no text.
    #[track_caller]
    pub fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            other => panic!("expected a text, got {other:?}"),
        }
    }

    /// The number, even if the server sends it as a text.
    ///
    /// # Panics
    /// If it is no number.
    #[track_caller]
    pub fn int(self) -> i64 {
        let number = match &self {
            Self::Int(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
            _ => None,
        };
        number.unwrap_or_else(|| panic!("expected a number, got {self:?}"))
    }

    /// The list.
    ///
    /// # Panics
    /// If it is no list.
    #[track_caller]
    pub fn list(self) -> Vec<Self> {
        match self {
            Self::List(list) => list,
            other => panic!("expected a list, got {other:?}"),
        }
    }

    /// The texts of a list.
    ///
    /// # Panics
    /// If it is no list of texts.
    #[track_caller]
    pub fn texts(self) -> Vec<String> {
        self.list().into_iter().map(Self::text).collect()
    }

    /// The value that follows this name in a list of names and values.
    ///
    /// # Panics
    /// If there is no such name.
    #[track_caller]
    pub fn field(self, name: &str) -> Self {
        let mut words = self.list().into_iter();
        while let Some(word) = words.next() {
            let value = words.next();
            if word == Self::Text(name.to_owned()) {
                return value.expect("a value after the name");
            }
        }
        panic!("there is no {name}")
    }

    /// The text of a refusal.
    pub fn error(&self) -> Option<&str> {
        if let Self::Error(text) = self { Some(text) } else { None }
    }

    /// Reads one answer, and no byte more.
    pub(crate) fn read(from: &mut impl BufRead) -> io::Result<Self> {
        let line = line(from)?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(&line))?;
        match kind {
            "+" => Ok(Self::Text(rest.to_owned())),
            "-" => Ok(Self::Error(rest.to_owned())),
            ":" => Ok(Self::Int(number(rest)?)),
            "$" => bulk(from, number(rest)?),
            "*" => many(from, number(rest)?),
            _ => Err(malformed(&line)),
        }
    }
}

fn line(from: &mut impl BufRead) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.read_until(b'\n', &mut bytes)?;
    match bytes.strip_suffix(b"\r\n") {
        Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
        None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended inside a reply")),
    }
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| malformed(text))
}

fn bulk(from: &mut impl BufRead, length: i64) -> io::Result<Reply> {
    let Ok(length) = usize::try_from(length) else { return Ok(Reply::Nil) };
    let mut bytes = vec![0; length + 2];
    from.read_exact(&mut bytes)?;
    Ok(Reply::Text(String::from_utf8_lossy(&bytes[..length]).into_owned()))
}

fn many(from: &mut impl BufRead, count: i64) -> io::Result<Reply> {
    if count < 0 {
        return Ok(Reply::Nil);
    }
    (0..count).map(|_| Reply::read(from)).collect::<io::Result<Vec<_>>>().map(Reply::List)
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no RESP2: {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> io::Result<Reply> {
        Reply::read(&mut text.as_bytes())
    }

    #[test]
    fn each_kind_of_answer_is_read() {
        let reply = read("*5\r\n$2\r\na\n\r\n:-3\r\n$-1\r\n+OK\r\n*1\r\n-ERR no\r\n").unwrap();
        let refused = Reply::List(vec![Reply::Error("ERR no".into())]);
        let texts = |text: &str| Reply::Text(text.into());
        assert_eq!(reply.list(), [texts("a\n"), Reply::Int(-3), Reply::Nil, texts("OK"), refused]);
        assert_eq!(read("*-1\r\n").unwrap(), Reply::Nil);
    }

    #[test]
    fn half_an_answer_is_an_error() {
        for half in ["", "+O", "$5\r\nab", "*2\r\n:1\r\n", "+OK\n"] {
            assert_eq!(read(half).unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{half:?}");
        }
        assert_eq!(read("?\r\n").unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
