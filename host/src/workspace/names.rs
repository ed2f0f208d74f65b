//! File names as text. A name is bytes for the system, and text for everybody else. A byte that is not UTF-8 is `\udcff`, as
//! Python escapes it in a str. A backslash that could be read as such an escape is `\x5c`. `python/sandglass/runtime/files.py`
//! has the same rule.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Characters of an escaped byte, and of an escaped backslash.
const BYTE: usize = 6;
const BACKSLASH: usize = 4;

/// A path as text, from which [`meant`] makes the path again.
pub(super) fn shown(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for (at, char) in chunk.valid().char_indices() {
            if char == '\\' && escape(&chunk.valid().as_bytes()[at..]).is_some() {
                text.push_str("\\x5c");
            } else {
                text.push(char);
            }
        }
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\udc{byte:02x}");
        }
    }
    text
}

/// The path from which [`shown`] made this text.
pub(super) fn meant(text: &str) -> Cow<'_, [u8]> {
    let mut rest = text.as_bytes();
    if !rest.contains(&b'\\') {
        return Cow::Borrowed(rest);
    }
    let mut path = Vec::with_capacity(rest.len());
    while let [first, after @ ..] = rest {
        let (byte, after) = match escape(rest) {
            Some((byte, length)) => (byte, &rest[length..]),
            None => (*first, after),
        };
        path.push(byte);
        rest = after;
    }
    Cow::Owned(path)
}

/// The byte of an escape at the begin of a text, and the escape's length.
fn escape(text: &[u8]) -> Option<(u8, usize)> {
    let digit = |digit: u8, among: &[u8]| among.iter().position(|known| *known == digit);
    match text {
        [b'\\', b'x', b'5', b'c', ..] => Some((b'\\', BACKSLASH)),
        [b'\\', b'u', b'd', b'c', high, low, ..] => {
            let (high, low) = (digit(*high, b"89abcdef")?, digit(*low, b"0123456789abcdef")?);
            Some((u8::try_from(0x80 + 16 * high + low).ok()?, BYTE))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_written_as_in_python() {
        for (path, text) in [
            (&b"\xff.bin"[..], "\\udcff.bin"),
            (b"caf\xe9", "caf\\udce9"),
            ("é\\a".as_bytes(), "é\\a"),
            (b"\\udcff", "\\x5cudcff"),
            (b"\\x5c", "\\x5cx5c"),
            // A surrogate is no UTF-8 either.
            (b"\xed\xa0\x80", "\\udced\\udca0\\udc80"),
        ] {
            assert_eq!(shown(path), text);
            assert_eq!(*meant(text), *path);
        }
        assert_eq!(*meant("\\udc7f\\uDCFF\\udcf"), *b"\\udc7f\\uDCFF\\udcf");
    }

    proptest! {
        #[test]
        fn each_name_has_its_own_text(path in prop::collection::vec(prop_oneof![prop::sample::select(b"\\udcx58af\xc3\xa9\xff".as_slice()), any::<u8>()], 0..30)) {
            let text = shown(&path);
            prop_assert_eq!(&*meant(&text), &path[..]);
        }
    }
}
