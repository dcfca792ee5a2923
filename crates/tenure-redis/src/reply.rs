//! Reading the scripts' replies.

use std::time::Duration;

use redis::Value;

/// A list that is read from the front; what is not there reads as `None`.
pub(crate) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    pub(crate) fn new(value: Value) -> Option<Self> {
        match value {
            Value::Array(items) => Some(Self(items.into_iter())),
            _ => None,
        }
    }

    pub(crate) fn number(&mut self) -> Option<i64> {
        self.0.next().as_ref().and_then(number)
    }

    pub(crate) fn count(&mut self) -> Option<u64> {
        self.number().and_then(|n| u64::try_from(n).ok())
    }

    pub(crate) fn millis(&mut self) -> Option<Duration> {
        self.count().map(Duration::from_millis)
    }

    pub(crate) fn bytes(&mut self) -> Option<Vec<u8>> {
        match self.0.next()? {
            Value::BulkString(bytes) => Some(bytes),
            Value::SimpleString(text) => Some(text.into_bytes()),
            _ => None,
        }
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        self.bytes().and_then(|bytes| String::from_utf8(bytes).ok())
    }

    pub(crate) fn list(&mut self) -> Option<Self> {
        self.0.next().and_then(Self::new)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }
}

/// An integer, or a text that is one.
pub(crate) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(n) => Some(*n),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    }
}
