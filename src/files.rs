//! The public methods for files.

use js_sys::{JsString, Promise};
use wasm_bindgen::prelude::*;
use web_sys::Blob;

use super::arguments::{entries, text};
use super::convert::as_bytes;
use super::glue::well_formed;
use super::outbox::JsBody;
use super::sandbox::{FilesPromise, Sandbox, ValuePromise, VoidPromise};
use sandglass_core::error::Error;
use sandglass_core::limits::MAX_PATH_BYTES;
use sandglass_core::session::{Body, Command, FileCommand};

#[wasm_bindgen]
impl Sandbox {
    /// Writes a file: completely, or not at all. Makes missing folders. The path is relative to the working folder, in which Python starts,
    /// or an absolute path in the working folder or in `/tmp`. A `Blob` or `File` goes to the guest directly, without passing through the
    /// page's memory.
    #[wasm_bindgen(js_name = writeFile)]
    pub fn write_file(
        &self,
        #[wasm_bindgen(unchecked_param_type = "string")] path: &JsValue,
        #[wasm_bindgen(unchecked_param_type = "string | Uint8Array | ArrayBuffer | Blob")] data: &JsValue,
    ) -> VoidPromise {
        let command = file_path(path).and_then(|path| {
            let most = self.driver().options().limits.max_value_bytes;
            Ok(FileCommand::Write {
                path,
                data: contents(data, most)?,
            })
        });
        self.ask(command).unchecked_into()
    }

    /// The contents of a file, as bytes or as text.
    #[wasm_bindgen(js_name = readFile, skip_typescript)]
    pub fn read_file(&self, path: &JsValue, options: &JsValue) -> ValuePromise {
        let command = file_path(path).and_then(|path| {
            let text = wants_text(options)?;
            Ok(FileCommand::Read { path, text })
        });
        self.ask(command).unchecked_into()
    }

    /// Lists all files and folders in the working folder, or below the folder given, by path.
    #[wasm_bindgen(js_name = listFiles)]
    pub fn list_files(&self, #[wasm_bindgen(unchecked_optional_param_type = "string")] path: &JsValue) -> FilesPromise {
        let path = if path.is_undefined() {
            Ok(".".to_owned())
        } else {
            file_path(path)
        };
        self.ask(path.map(FileCommand::List)).unchecked_into()
    }

    /// Removes a file, or a folder with its contents. Rejects with code `file_not_found` when the path does not exist.
    #[wasm_bindgen(js_name = removeFile)]
    pub fn remove_file(&self, #[wasm_bindgen(unchecked_param_type = "string")] path: &JsValue) -> VoidPromise {
        self.ask(file_path(path).map(FileCommand::Remove)).unchecked_into()
    }

    fn ask(&self, command: Result<FileCommand<JsBody>, Error>) -> Promise {
        let asked = command.map(|command| self.current.call(|driver| Ok(driver.submit(Command::File(command)))));
        self.promise(asked)
    }
}

fn file_path(value: &JsValue) -> Result<String, Error> {
    let path = text("path", value)?;
    // Counts the escapes: each stands for a byte that is not UTF-8.
    let escapes = path.matches("\\udc").count();
    let problem = if path.is_empty() {
        "must not be empty"
    } else if path.len() > MAX_PATH_BYTES + 5 * escapes {
        "is too long"
    } else if path.contains('\0') {
        "holds a character that no path has"
    } else {
        return Ok(path);
    };
    Err(Error::invalid("path", problem))
}

/// The new contents of a file.
fn contents(data: &JsValue, most: f64) -> Result<JsBody, Error> {
    let body = if let Some(text) = data.dyn_ref::<JsString>() {
        if !well_formed(text) {
            return Err(Error::invalid(
                "data",
                "holds a lone surrogate, which UTF-8 cannot carry",
            ));
        }
        JsBody::Text(text.clone())
    } else if let Some(blob) = data.dyn_ref::<Blob>() {
        JsBody::Blob(blob.clone())
    } else if let Some(bytes) = as_bytes(data) {
        JsBody::Bytes(bytes.slice(0, bytes.length()))
    } else {
        return Err(Error::invalid(
            "data",
            "must be a string, a Uint8Array, an ArrayBuffer or a Blob; nothing was written",
        ));
    };
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
    let size = body.size() as f64;
    if size > most {
        return Err(Error::NotSerializable(format!(
            "the data take {size} bytes, maxValueSize is {most}; nothing was written"
        )));
    }
    Ok(body)
}

fn wants_text(options: &JsValue) -> Result<bool, Error> {
    let mut text = false;
    for (name, value) in entries(options, "options")? {
        text = match (name.as_str(), value.as_string().as_deref()) {
            _ if value.is_undefined() => continue,
            ("encoding", Some("utf-8" | "utf8")) => true,
            ("encoding", _) => return Err(Error::invalid(name, "must be \"utf-8\", or left out for bytes")),
            _ => return Err(Error::invalid(name, "there is no such option of readFile")),
        };
    }
    Ok(text)
}
