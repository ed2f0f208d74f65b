//! Bodies of responses, read as they come.

use js_sys::Uint8Array;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{ReadableStreamDefaultReader, Response};

use super::glue::{disregard, get};

/// The pieces of a response's body. Dropping it ends the transfer. An error is what the browser says of a connection that broke.
pub(super) struct Chunks(Option<ReadableStreamDefaultReader>);

impl Chunks {
    pub(super) fn of(response: &Response) -> Result<Self, JsValue> {
        let reader = response.body().map(|body| body.get_reader().dyn_into());
        Ok(Self(reader.transpose()?))
    }

    pub(super) async fn next(&mut self) -> Result<Option<Uint8Array>, JsValue> {
        let Some(reader) = &self.0 else { return Ok(None) };
        let read = JsFuture::from(reader.read()).await?;
        if get(&read, "done").is_truthy() {
            return Ok(None);
        }
        get(&read, "value").dyn_into().map(Some)
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        if let Some(reader) = &self.0 {
            disregard(reader.cancel());
        }
    }
}

/// Reads a whole body. `None` if it has more than `most` bytes.
pub(super) async fn read_all(response: &Response, most: usize) -> Result<Option<Vec<u8>>, JsValue> {
    let (mut bytes, mut chunks) = (Vec::new(), Chunks::of(response)?);
    while let Some(chunk) = chunks.next().await? {
        if bytes.len() + chunk.length() as usize > most {
            return Ok(None);
        }
        bytes.extend(chunk.to_vec());
    }
    Ok(Some(bytes))
}
