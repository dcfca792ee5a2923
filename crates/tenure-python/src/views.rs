//! What a store tells, as JSON: `python/tenure/views.py` reads it, which is the format of `tenure ls --json`.

use pyo3::{PyResult, exceptions::PyRuntimeError};
use serde_json::{Map, Value};
use tenure::{election::Leader, once::LastRun};

/// # Errors
/// If it has no JSON form, which is a bug.
pub(crate) fn json<T: ?Sized + Json>(value: &T) -> PyResult<String> {
    value
        .value()
        .map(|value| value.to_string())
        .map_err(|error| PyRuntimeError::new_err(format!("BUG in tenure: {error}")))
}

pub(crate) trait Json {
    fn value(&self) -> serde_json::Result<Value>;
}

macro_rules! views {
    ($($view:ident)*) => {$(
        impl Json for tenure::view::$view {
            fn value(&self) -> serde_json::Result<Value> {
                serde_json::to_value(self)
            }
        }
    )*};
}

views!(LockView HolderView WaiterView Finding);

impl<T: Json> Json for Vec<T> {
    fn value(&self) -> serde_json::Result<Value> {
        self.iter().map(Json::value).collect::<serde_json::Result<_>>().map(Value::Array)
    }
}

impl Json for Leader {
    fn value(&self) -> serde_json::Result<Value> {
        let mut fields = Map::new();
        fields.insert("owner".into(), self.owner.clone().into());
        fields.insert("term".into(), self.term.get().into());
        fields.insert("label".into(), serde_json::to_value(&self.label)?);
        fields.insert("proclaimed".into(), self.proclaimed.clone().into());
        fields.insert("is_this_process".into(), self.is_this_process.into());
        Ok(Value::Object(fields))
    }
}

impl Json for LastRun {
    fn value(&self) -> serde_json::Result<Value> {
        let mut fields = Map::new();
        fields.insert("by".into(), self.by.clone().into());
        fields.insert("ago".into(), self.ago.as_secs_f64().into());
        Ok(Value::Object(fields))
    }
}
