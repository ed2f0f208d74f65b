//! Reads code that comes piece by piece, as a model writes it.

use js_sys::{Function, JsString, Promise, Reflect, Symbol};
use wasm_bindgen::prelude::*;
use web_sys::{ReadableStream, ReadableStreamDefaultReader};

use super::glue::{describe, disregard, get};
use super::stop::{Stop, Waited};
use sandglass_core::error::Error;

/// The source of the pieces: a stream's reader or an async iterator. Only the names of their methods differ.
pub(super) struct Pieces {
    from: JsValue,
    next: Function,
    end: Option<Function>,
}

impl Pieces {
    /// Opens the source that was given to `executeStream`.
    pub(super) fn of(code: &JsValue) -> Result<Self, Error> {
        let wrong = || Error::invalid("code", "must be a ReadableStream or an async iterable of strings");
        let (from, next, end): (JsValue, _, _) = match code.dyn_ref::<ReadableStream>() {
            Some(stream) => {
                let reader = ReadableStreamDefaultReader::new(stream).map_err(|_| {
                    let why = "is a stream that somebody else reads; nothing was run";
                    Error::invalid("code", why)
                })?;
                (reader.into(), "read", "cancel")
            }
            None if code.is_object() => {
                let iterate = Reflect::get(code, Symbol::async_iterator().as_ref()).unwrap_or_default();
                let iterate: &Function = iterate.dyn_ref().ok_or_else(wrong)?;
                let iterator = iterate.call0(code).map_err(|_| wrong())?;
                (iterator, "next", "return")
            }
            None => return Err(wrong()),
        };
        let method = |name| get(&from, name).dyn_into::<Function>().ok();
        let (next, end) = (method(next).ok_or_else(wrong)?, method(end));
        Ok(Self { from, next, end })
    }

    /// Reads all pieces, and returns the text. When `stop` ends the reading, or the text exceeds `most` UTF-16 units, returns the text so
    /// far. `on_lines` hears complete lines at once: the whole text so far, and the position of the new lines.
    pub(super) async fn read(
        &self,
        stop: &Stop,
        most: u32,
        mut on_lines: impl FnMut(&str, usize),
    ) -> Result<JsString, Error> {
        let (mut code, mut lines, mut taken, mut told) = (JsString::from(""), String::new(), 0, 0);
        loop {
            let piece = match self.next(stop).await {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(code),
                Err(Waited::Rejected(why)) => {
                    return Err(Error::SourceFailed(format!(
                        "the code could not be read: {}; nothing was run",
                        describe(&why)
                    )));
                }
                Err(Waited::Stopped) => {
                    self.give_up();
                    return Ok(code);
                }
            };
            if !piece.is_string() {
                self.give_up();
                return Err(Error::invalid("code", "has a piece that is no string; nothing was run"));
            }
            code = code.concat(&piece);
            if code.length() > most {
                self.give_up();
                return Ok(code);
            }
            // A piece may end within a pair of surrogates. The first half is a unit from U+D800 to U+DBFF.
            let mut end = code.length();
            if end > taken && (55_296.0..56_320.0).contains(&code.char_code_at(end - 1)) {
                end -= 1;
            }
            lines.push_str(&String::from(code.slice(taken, end)));
            taken = end;
            let complete = lines.rfind('\n').map_or(0, |end| end + 1);
            if complete > told {
                on_lines(&lines[..complete], told);
                told = complete;
            }
        }
    }

    async fn next(&self, stop: &Stop) -> Result<Option<JsValue>, Waited> {
        let next = self.next.call0(&self.from).map_err(Waited::Rejected)?;
        let step = stop.wait(Promise::resolve(&next)).await?;
        let done = get(&step, "done").is_truthy();
        Ok((!done).then(|| get(&step, "value")))
    }

    /// Tells the source that nobody reads any more.
    fn give_up(&self) {
        if let Some(Ok(ended)) = self.end.as_ref().map(|end| end.call0(&self.from)) {
            disregard(Promise::resolve(&ended));
        }
    }
}
