//! Compression and encryption of what is stored.
//!
//! A sealed text is [`MAGIC`], a random salt, and the encrypted text with its tag. The encrypted text is the length of the content, and
//! the content compressed. Each salt gives a key of its own, so no key encrypts two texts. The name is authenticated as well, so one
//! sealed text cannot take the place of another.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::Prk;

use crate::error::{StateError, no_random_numbers};
use crate::names::Name;

/// The beginning of a sealed text: its kind and format.
const MAGIC: &[u8; 4] = b"SGS1";
const SALT_BYTES: usize = 16;
const LENGTH_BYTES: usize = 4;
/// Bytes of a tag of AES-GCM.
const TAG_BYTES: usize = 16;
/// The level of compression. States are packed already, and files often are.
const LEVEL: i32 = 3;
/// The most bytes of one content.
pub(crate) const MOST_CONTENT: usize = 4 << 20;
/// The most bytes of a sealed text. Content that cannot be compressed grows a little.
pub(crate) const MOST_SEALED: u64 = (MOST_CONTENT + (MOST_CONTENT >> 6) + 1024) as u64;

/// Seals and opens texts with keys derived from one secret.
#[derive(Debug, Clone)]
pub(crate) struct Sealer(Prk);

impl Sealer {
    pub(crate) fn new(secret: Prk) -> Self {
        Self(secret)
    }

    /// Seals a content of at most [`MOST_CONTENT`] bytes.
    pub(crate) fn seal(&self, name: &Name, content: &[u8]) -> Result<Vec<u8>, StateError> {
        let length = u32::try_from(content.len())
            .ok()
            .filter(|_| content.len() <= MOST_CONTENT);
        let length = length.ok_or(StateError::TooLarge {
            bytes: content.len() as u64,
            most: MOST_CONTENT as u64,
        })?;
        let packed = zstd::bulk::compress(content, LEVEL)
            .map_err(|error| StateError::io("a state cannot be compressed", error))?;
        let mut salt = [0; SALT_BYTES];
        getrandom::fill(&mut salt).map_err(|_| no_random_numbers())?;
        let mut text = [&length.to_le_bytes(), packed.as_slice()].concat();
        self.key(&salt)?
            .seal_in_place_append_tag(nonce(), Aad::from(about(name)), &mut text)
            .map_err(|_| StateError::Key("a state cannot be encrypted".to_owned()))?;
        Ok([MAGIC.as_slice(), &salt, &text].concat())
    }

    /// Opens what was sealed under this name.
    ///
    /// # Errors
    /// [`StateError::Damaged`] for anything else.
    pub(crate) fn open(&self, name: &Name, sealed: Vec<u8>) -> Result<Vec<u8>, StateError> {
        let damaged = |what: &str| StateError::Damaged(format!("{name} {what}"));
        let mut sealed = sealed;
        if sealed.len() < MAGIC.len() + SALT_BYTES + LENGTH_BYTES + TAG_BYTES {
            return Err(damaged("is cut off"));
        }
        let (head, text) = sealed.split_at_mut(MAGIC.len() + SALT_BYTES);
        let (magic, salt) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(damaged("does not begin as a stored state does"));
        }
        let text = self
            .key(salt)?
            .open_in_place(nonce(), Aad::from(about(name)), text)
            .map_err(|_| damaged("is cut off, was changed, or was written with another key"))?;
        let (length, packed) = text
            .split_at_checked(LENGTH_BYTES)
            .ok_or_else(|| damaged("is cut off"))?;
        let length = length
            .try_into()
            .map_or(usize::MAX, |length| u32::from_le_bytes(length) as usize);
        if length > MOST_CONTENT {
            return Err(damaged("says that it is too large"));
        }
        // The capacity bounds the content, whatever the compressed text says.
        let content = zstd::bulk::decompress(packed, length).map_err(|_| damaged("cannot be unpacked"))?;
        match content.len() == length {
            true => Ok(content),
            false => Err(damaged("has another length than it says")),
        }
    }

    fn key(&self, salt: &[u8]) -> Result<LessSafeKey, StateError> {
        let key = self
            .0
            .expand(&[b"text".as_slice(), salt], &AES_256_GCM)
            .map(UnboundKey::from);
        key.map(LessSafeKey::new)
            .map_err(|_| StateError::Key("the key of a state cannot be derived".to_owned()))
    }
}

/// The nonce of all texts. Each has its own key.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

/// The data that is authenticated with a text.
fn about(name: &Name) -> Vec<u8> {
    [MAGIC.as_slice(), name.to_string().as_bytes()].concat()
}
