//! Files of the working folder, as resources of the protocol.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rmcp::ErrorData;
use rmcp::model::{ListResourcesResult, ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use sandglass_core::execution::Change;
use sandglass_host::{Error, Execution, FileEntry};

use crate::session::Session;

/// The beginning of the address of each file.
const PREFIX: &str = "workspace:///";
/// The number of files in one page of a list.
const PAGE: usize = 500;

/// The address of a file. Each byte that could be misread is escaped.
pub fn uri(path: &str) -> String {
    let mut uri = PREFIX.to_owned();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
    uri
}

/// The path in an address.
///
/// # Errors
/// The address is of no file.
pub fn path(uri: &str) -> Result<String, ErrorData> {
    let wrong = || {
        let message = format!("{uri} is no file of the working folder: such an address begins with {PREFIX}");
        ErrorData::resource_not_found(message, None)
    };
    let path = uri.strip_prefix(PREFIX).filter(|path| !path.is_empty());
    let path = path.and_then(unescaped).ok_or_else(wrong)?;
    String::from_utf8(path).map_err(|_| wrong())
}

/// The bytes of a part of an address. `None` if an escape is malformed.
pub fn unescaped(part: &str) -> Option<Vec<u8>> {
    let (mut rest, mut bytes) = (part.bytes(), Vec::new());
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(rest.next().unwrap_or_default()).to_digit(16);
        bytes.push(match byte {
            b'%' => {
                let (high, low) = (digit()?, digit()?);
                u8::try_from(16 * high + low).ok()?
            }
            byte => byte,
        });
    }
    Some(bytes)
}

/// The template of addresses.
pub fn template() -> ResourceTemplate {
    ResourceTemplate::new("workspace:///{+path}", "file")
        .with_title("A file of the working folder")
        .with_description("A file that Python wrote or can open, by its path relative to the working folder.")
}

/// A file as a resource.
fn resource(file: &FileEntry) -> Resource {
    Resource::new(uri(&file.path), &file.path)
        .with_mime_type(mime(&file.path))
        .with_size(u64::try_from(file.size).unwrap_or_default())
}

/// A page of the files. `cursor` is the number of the page's first file.
///
/// # Errors
/// The cursor is of nobody, or the sandbox fails.
pub async fn list(session: &Session, cursor: Option<String>) -> Result<ListResourcesResult, ErrorData> {
    let wrong = || ErrorData::invalid_params("the cursor is not one of this server", None);
    let start = cursor.map_or(Ok(0), |cursor| cursor.parse().map_err(|_| wrong()))?;
    let sandbox = match session.started().await {
        Some(sandbox) => sandbox,
        // Clients ask for the list when they connect. Only a folder of the operator's has files that early.
        None if session.shared.has_workspace => session.sandbox().await.map_err(failed)?,
        None => return Ok(ListResourcesResult::default()),
    };
    let entries = sandbox.list_files("").await.map_err(failed)?;
    let files: Vec<_> = entries.iter().filter(|entry| entry.kind == "file").collect();
    let page: Vec<Resource> = files.iter().skip(start).take(PAGE).map(|file| resource(file)).collect();
    let next = start.saturating_add(page.len());
    let mut result = ListResourcesResult::with_all_items(page);
    result.next_cursor = (next < files.len()).then(|| next.to_string());
    Ok(result)
}

/// A file's contents: text if it is UTF-8.
///
/// # Errors
/// There is no such file, or it is too large.
pub async fn read(session: &Session, uri: String) -> Result<ReadResourceResult, ErrorData> {
    let path = path(&uri)?;
    let missing = || ErrorData::resource_not_found(format!("there is no file {path}"), None);
    let sandbox = match session.started().await {
        Some(sandbox) => sandbox,
        None if session.shared.has_workspace => session.sandbox().await.map_err(failed)?,
        None => return Err(missing()),
    };
    let bytes = sandbox.read_file(&*path).await.map_err(|error| match error {
        Error::FileNotFound(_) => missing(),
        error => failed(error),
    })?;
    let contents = match String::from_utf8(bytes) {
        Ok(text) => ResourceContents::text(text, uri),
        Err(error) => ResourceContents::blob(BASE64.encode(error.as_bytes()), uri),
    };
    Ok(ReadResourceResult::new(vec![contents.with_mime_type(mime(&path))]))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: impl ToString) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

/// The changes of resources by an execution: addresses of changed files, and true when files came or went.
pub fn changes(run: &Execution) -> (Vec<String>, bool) {
    let changed = run.files.iter().map(|file| uri(&file.path)).collect();
    (changed, run.files.iter().any(|file| file.change != Change::Modified))
}

/// The mime type of a file, by its name.
fn mime(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "csv" => "text/csv",
        "gif" => "image/gif",
        "html" => "text/html",
        "jpeg" | "jpg" => "image/jpeg",
        "json" => "application/json",
        "md" => "text/markdown",
        "pdf" => "application/pdf",
        "png" => "image/png",
        "py" => "text/x-python",
        "svg" => "image/svg+xml",
        "webp" => "image/webp",
        "log" | "txt" => "text/plain",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::{path, uri};

    #[test]
    fn an_address_and_its_path_say_the_same() {
        for name in ["a.csv", "sub/b c.txt", "ü?#%.bin", "100%25", "a+b", "..", "/etc/passwd"] {
            assert_eq!(path(&uri(name)).unwrap(), name);
        }
        for wrong in [
            "",
            "a.csv",
            "file:///a",
            "workspace:///",
            "workspace:///%",
            "workspace:///%zz",
            "workspace:///%ff",
        ] {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }
}
