//! Calls as short texts, for messages.

use super::{Body, Encoded};
use crate::limits::MAX_VALUE_DEPTH;
use crate::protocol::Encoding;
use crate::value::{Build, read};

/// The most bytes of arguments that are read for a text.
const READ: usize = 4096;
/// The most characters of a text.
const SHOWN: usize = 120;

/// A value's text, and the texts of its items if it is a tuple.
type Sketch = (String, Option<Vec<String>>);

/// Makes texts in the style of Python's `repr`.
struct Sketcher;

/// A call as a text. It shows no more than the beginning of long arguments.
pub(super) fn shown<B: Body>(name: &str, args: &Encoded<B>) -> String {
    let size = args.body.size();
    let bytes = args.body.first(READ);
    let text = match args.encoding {
        Encoding::Text => quoted(&String::from_utf8_lossy(&bytes)),
        Encoding::Marshal | Encoding::Tagged if size <= READ => {
            let tagged = args.encoding == Encoding::Tagged;
            match read(&bytes, tagged, 2 * MAX_VALUE_DEPTH, &mut Sketcher) {
                Ok((_, Some(parts))) if parts.len() == 4 => of_call(&parts),
                Ok((text, _)) => text,
                Err(_) => format!("{size} bytes"),
            }
        }
        _ => format!("{size} bytes"),
    };
    let name: String = name.chars().take(SHOWN).collect();
    format!("{name}({})", cut(&text))
}

/// The arguments of a user's function: positional ones, keyword arguments, and the place in the code.
fn of_call(parts: &[String]) -> String {
    let positional = parts[0].trim_start_matches('[').trim_end_matches(']').to_owned();
    match parts[1].as_str() {
        "None" => positional,
        named if positional.is_empty() => format!("**{named}"),
        named => format!("{positional}, **{named}"),
    }
}

fn cut(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

fn quoted(text: &str) -> String {
    format!("{:?}", cut(text))
}

fn joined(items: &[Sketch]) -> String {
    let texts: Vec<&str> = items.iter().map(|(text, _)| text.as_str()).collect();
    texts.join(", ")
}

fn plain(text: impl Into<String>) -> Sketch {
    (text.into(), None)
}

impl Build for Sketcher {
    type Value = Sketch;

    fn none(&mut self) -> Sketch {
        plain("None")
    }

    fn bool(&mut self, value: bool) -> Sketch {
        plain(if value { "True" } else { "False" })
    }

    fn int(&mut self, value: i64) -> Sketch {
        plain(value.to_string())
    }

    fn big_int(&mut self, negative: bool, hex: &str) -> Sketch {
        plain(format!("{}0x{hex}", if negative { "-" } else { "" }))
    }

    fn float(&mut self, value: f64) -> Sketch {
        plain(format!("{value:?}"))
    }

    fn text(&mut self, value: &str) -> Sketch {
        plain(quoted(value))
    }

    fn ill_formed_text(&mut self, utf16: &[u16]) -> Sketch {
        plain(quoted(&String::from_utf16_lossy(utf16)))
    }

    fn bytes(&mut self, value: &[u8]) -> Sketch {
        plain(format!("{} bytes", value.len()))
    }

    fn list(&mut self, items: Vec<Sketch>) -> Sketch {
        plain(format!("[{}]", joined(&items)))
    }

    fn tuple(&mut self, items: Vec<Sketch>) -> Sketch {
        let text = format!("({})", joined(&items));
        (text, Some(items.into_iter().map(|(text, _)| text).collect()))
    }

    fn dict(&mut self, entries: Vec<(Sketch, Sketch)>) -> Sketch {
        let texts: Vec<String> = entries
            .iter()
            .map(|((key, _), (value, _))| format!("{key}: {value}"))
            .collect();
        plain(format!("{{{}}}", texts.join(", ")))
    }

    fn set(&mut self, items: Vec<Sketch>) -> Sketch {
        plain(format!("{{{}}}", joined(&items)))
    }

    fn date(&mut self, ms: f64) -> Sketch {
        plain(format!("datetime({ms})"))
    }

    fn array(&mut self, dtype: &str, shape: &[u32], _data: &[u8]) -> Option<Sketch> {
        Some(plain(format!("array({dtype}, {shape:?})")))
    }

    fn frame(&mut self, (columns, _): Sketch, _index: Sketch, _rows: Sketch) -> Sketch {
        plain(format!("DataFrame({columns})"))
    }

    fn opaque(&mut self, type_name: &str, _repr: &str) -> Sketch {
        plain(format!("<{}>", cut(type_name)))
    }
}
