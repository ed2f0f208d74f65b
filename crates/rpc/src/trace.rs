//! The trace of a request, as its client names it.

use sandglass_host::traces::{self, Trace};
use serde_json::value::RawValue;

/// The trace of a request. One that is wrong counts as none, because a client's mistake there shall not cost it the answer.
pub(crate) fn of_request(traceparent: Option<&RawValue>, tracestate: Option<&RawValue>) -> Trace {
    let text = |json: &RawValue| serde_json::from_str::<String>(json.get()).ok();
    let parent = traceparent.filter(|_| traces::is_enabled()).and_then(text);
    traces::of_caller(parent.and_then(|parent| traces::caller(&parent, tracestate.and_then(text).as_deref())))
}
