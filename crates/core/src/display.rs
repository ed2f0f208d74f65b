//! The mime types that a rich output may have, and those of them that are text.

/// The guest's HTML that may be shown, as JSON: elements, attributes, contents of style sheets, and the closing of tags.
/// `sandglass_host::sanitize_html` and `pyodide-glue/display.js` read it. Its `policy` is that of the frame with the HTML.
pub const HTML_ALLOWED: &str = include_str!("display/html.json");

/// The form of a rich output, on the wire and for users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// UTF-8 on the wire. Users get the text itself.
    Text,
    /// Raw bytes on the wire. Users get base64.
    Binary,
}

/// The kind of a mime type. Returns `None` if no rich output may have it: scripts, and text that is not a mime type.
///
/// Text is `text/*` without scripts, `image/svg+xml`, `application/json` and every `application/…+json` (charts of libraries). Other
/// images, audio, video and PDF are binary. `python/sandglass/runtime/displays.py` has the same rule.
pub fn kind(mime: &str) -> Option<Kind> {
    let (family, subtype) = mime.split_once('/')?;
    let is_token = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || "!#$&^_.+-".contains(char);
    if subtype.is_empty() || !subtype.chars().all(is_token) || subtype.contains("script") {
        return None;
    }
    match (family, subtype) {
        ("text", _) | ("image", "svg+xml") | ("application", "json") => Some(Kind::Text),
        ("application", chart) if chart.ends_with("+json") => Some(Kind::Text),
        ("image" | "audio" | "video", _) | ("application", "pdf") => Some(Kind::Binary),
        _ => None,
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::{Kind, kind};

    #[test]
    fn text_binary_and_what_is_neither() {
        for mime in [
            "text/html",
            "text/plain",
            "image/svg+xml",
            "application/json",
            "application/vnd.vegalite.v5+json",
        ] {
            assert_eq!(kind(mime), Some(Kind::Text), "{mime}");
        }
        for mime in ["image/png", "image/jpeg", "application/pdf", "audio/wav", "video/mp4"] {
            assert_eq!(kind(mime), Some(Kind::Binary), "{mime}");
        }
        for mime in [
            "",
            "png",
            "image/",
            "/png",
            "text/html; charset=utf-8",
            "text/HTML",
            "image/png\"><script>",
            "text/javascript",
            "application/javascript",
            "application/ecmascript",
            "application/octet-stream",
            "image/png/x",
            "text/é",
        ] {
            assert_eq!(kind(mime), None, "{mime}");
        }
    }
}
