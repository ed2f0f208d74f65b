//! [Jupyter's messages](https://jupyter-client.readthedocs.io/en/stable/messaging.html#the-wire-protocol) as parts of ZeroMQ
//! messages: the sender's identities, a delimiter, the signature, and four signed parts of JSON.

use std::fmt::Write;

use bytes::Bytes;
use ring::hmac;

const DELIMITER: &[u8] = b"<IDS|MSG>";

/// Signs messages, and checks signatures. Clones have the same key.
#[derive(Clone)]
pub struct Signer(Option<hmac::Key>);

/// A message whose signature is correct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The identities of the sender, by which a reply reaches it.
    pub identities: Vec<Bytes>,
    /// Header, parent header, metadata and content, as JSON that is not parsed yet.
    pub json: [Bytes; 4],
    /// Unsigned bytes that belong to the message.
    pub buffers: Vec<Bytes>,
}

impl Signer {
    /// A signer with the key of a connection file. An empty key stands for no signatures at all.
    #[must_use]
    pub fn new(key: &str) -> Self {
        Self((!key.is_empty()).then(|| hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes())))
    }

    /// The parts of a message to the peer with the first identity.
    #[must_use]
    pub fn seal(&self, identities: Vec<Bytes>, json: [Bytes; 4]) -> Vec<Bytes> {
        let mut parts = identities;
        parts.extend([Bytes::from_static(DELIMITER), self.sign(&json).into()]);
        parts.extend(json);
        parts
    }

    /// Opens a message, and leaves its JSON unparsed.
    ///
    /// # Errors
    /// The reason: a part is missing, or the signature is wrong.
    pub fn open(&self, mut parts: Vec<Bytes>) -> Result<Opened, &'static str> {
        let delimiter = parts.iter().position(|part| part == DELIMITER);
        let mut rest = delimiter.map(|at| parts.split_off(at)).unwrap_or_default().into_iter();
        let (Some(_), Some(signature)) = (rest.next(), rest.next()) else {
            return Err("a message without a signature");
        };
        let buffers = rest.as_slice().get(4..).unwrap_or_default().to_vec();
        let json: Vec<Bytes> = rest.take(4).collect();
        let json = <[Bytes; 4]>::try_from(json).map_err(|_| "a message that lacks parts")?;
        if let Some(key) = &self.0 {
            let tag = bytes_of(&signature).ok_or("a message with an odd signature")?;
            hmac::verify(key, &json.concat(), &tag).map_err(|_| "a message with a wrong signature")?;
        }
        Ok(Opened {
            identities: parts,
            json,
            buffers,
        })
    }

    fn sign(&self, json: &[Bytes]) -> String {
        let Some(key) = &self.0 else { return String::new() };
        let mut context = hmac::Context::with_key(key);
        json.iter().for_each(|part| context.update(part));
        context.sign().as_ref().iter().fold(String::new(), |mut text, byte| {
            // Writing to a String does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// The bytes that hexadecimal digits encode.
pub(super) fn bytes_of(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16);
    let byte = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
        _ => None,
    };
    digits.chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(key: &str) -> Vec<Bytes> {
        let json = [r#"{"msg_id": "7"}"#, "{}", "{}", r#"{"status": "ok"}"#].map(Bytes::from);
        Signer::new(key).seal(vec!["route".into()], json)
    }

    #[test]
    fn a_message_is_believed_by_its_signature() {
        let ours = Signer::new("ours");
        let mut sent = sealed("ours");
        sent.push("a buffer".into());
        let opened = ours.open(sent.clone()).unwrap();
        assert_eq!(opened.identities, ["route"]);
        assert_eq!(opened.json[3], r#"{"status": "ok"}"#);
        assert_eq!(opened.buffers, ["a buffer"]);
        assert!(ours.open(sealed("theirs")).is_err());
        assert!(ours.open(sealed("")).is_err());
        for index in 3..7 {
            let mut forged = sent.clone();
            forged[index] = r#"{"status": "error"}"#.into();
            assert!(ours.open(forged).is_err());
        }
        for length in 0..7 {
            assert!(ours.open(sent[..length].to_vec()).is_err());
            assert!(Signer::new("").open(sent[..length].to_vec()).is_err());
        }
    }

    #[test]
    fn without_a_key_nothing_is_signed() {
        let sent = sealed("");
        assert!(sent[2].is_empty());
        assert!(Signer::new("").open(sent).is_ok());
    }

    #[test]
    fn digits_stand_for_bytes() {
        assert_eq!(bytes_of(b"00fF"), Some(vec![0, 255]));
        assert_eq!(bytes_of(b"0"), None);
        assert_eq!(bytes_of(b"0g"), None);
    }
}
