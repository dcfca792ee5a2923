//! A client of Redis that knows nothing of Tenure: RESP2 over a blocking socket.

use std::{
    io::{BufRead, BufReader, Error, Read, Result, Write},
    net::TcpStream,
    time::Duration,
};

/// A connection.
pub struct Raw {
    stream: BufReader<TcpStream>,
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing.
    Nil,
    /// A number.
    Int(i64),
    /// A text, a simple one too.
    Text(String),
    /// Several.
    List(Vec<Self>),
    /// A refusal.
    Error(String),
}

impl Reply {
    /// The text.
    ///
    /// # Panics
    /// If it is none.
    pub fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            other => panic!("no text: {other:?}"),
        }
    }

    /// The number.
    ///
    /// # Panics
    /// If it is none.
    pub fn int(self) -> i64 {
        match self {
            Self::Int(n) => n,
            other => panic!("no number: {other:?}"),
        }
    }

    /// The words of a refusal.
    pub fn error(&self) -> Option<&str> {
        if let Self::Error(text) = self { Some(text) } else { None }
    }
}

impl Raw {
    /// To a server on this machine.
    ///
    /// # Panics
    /// If nobody is there.
    pub fn connect(port: u16) -> Self {
        Self::try_connect(port).expect("a server listens there")
    }

    /// The same, if somebody is there.
    ///
    /// # Errors
    /// The socket's.
    pub fn try_connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Asks and waits for the answer.
    ///
    /// # Panics
    /// If the connection breaks.
    pub fn command(&mut self, words: &[&str]) -> Reply {
        self.try_command(words).expect("the server answers")
    }

    /// The same.
    ///
    /// # Errors
    /// The socket's.
    pub fn try_command(&mut self, words: &[&str]) -> Result<Reply> {
        self.send(words)?;
        self.read()
    }

    /// Asks and does not wait.
    ///
    /// # Errors
    /// The socket's.
    pub fn send(&mut self, words: &[&str]) -> Result<()> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes())
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// The socket's.
    pub fn read(&mut self) -> Result<Reply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(Error::other("the connection was closed"));
        }
        let (kind, rest) =
            line.trim_end().split_at_checked(1).ok_or_else(|| Error::other("an empty answer"))?;
        let count = || rest.parse::<i64>().map_err(Error::other);
        Ok(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(count()?),
            "$" => match usize::try_from(count()?) {
                Ok(len) => {
                    let mut bytes = vec![0; len + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(len);
                    Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
                }
                Err(_) => Reply::Nil,
            },
            "*" => match usize::try_from(count()?) {
                Ok(len) => Reply::List((0..len).map(|_| self.read()).collect::<Result<_>>()?),
                Err(_) => Reply::Nil,
            },
            _ => return Err(Error::other(format!("no answer of Redis: {line:?}"))),
        })
    }
}
