//! The master key, and the keys of a tenant, which are derived from it.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::hmac;

use crate::error::{StateError, no_random_numbers};
use crate::names::{ObjectId, SessionId, TenantId, read_hex};
use crate::seal::Sealer;

const KEY_BYTES: usize = 32;
/// The most bytes that are read of a file of a key.
const MOST_FILE_BYTES: u64 = 4096;

/// The key of all states of a store. Who has it can read and forge all of them.
#[derive(Clone)]
pub struct MasterKey(Prk);

impl fmt::Debug for MasterKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("MasterKey")
    }
}

impl MasterKey {
    /// Reads a key: 64 hexadecimal digits, as `openssl rand -hex 32` prints them.
    ///
    /// # Errors
    /// [`StateError::Key`] for another text, which the error does not tell.
    pub fn parse(text: &str) -> Result<Self, StateError> {
        let mut key = [0; KEY_BYTES];
        if !read_hex(&text.trim().to_ascii_lowercase(), &mut key) {
            let problem = "a key of states has 64 hexadecimal digits; `openssl rand -hex 32` makes a good one";
            return Err(StateError::Key(problem.to_owned()));
        }
        let salt = Salt::new(HKDF_SHA256, b"states of Sandglass, format 1");
        Ok(Self(salt.extract(&key)))
    }

    /// Reads the key in a file.
    ///
    /// # Errors
    /// [`StateError::Io`] when the file cannot be read, [`StateError::Key`] when it holds no key, or all users can read it.
    pub fn from_file(path: &Path) -> Result<Self, StateError> {
        let shown = path.display();
        let fail = |error| StateError::io(format!("the key of states in {shown} cannot be read"), error);
        let file = OpenOptions::new().read(true).open(path).map_err(fail)?;
        if file.metadata().map_err(fail)?.mode() & 0o007 != 0 {
            return Err(StateError::Key(format!(
                "all users can read the key of states in {shown}: run `chmod o-rwx {shown}`"
            )));
        }
        let mut text = String::new();
        file.take(MOST_FILE_BYTES).read_to_string(&mut text).map_err(fail)?;
        Self::parse(&text).map_err(|error| match error {
            StateError::Key(problem) => StateError::Key(format!("{shown}: {problem}")),
            error => error,
        })
    }

    /// Reads the key in a file, which is made with a new key if it is missing. Only its owner can read a new file.
    ///
    /// # Errors
    /// As [`MasterKey::from_file`]; also when the file cannot be made.
    pub fn from_file_or_new(path: &Path) -> Result<Self, StateError> {
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key).map_err(|_| no_random_numbers())?;
        let mut text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        text.push('\n');
        let fail = |error| StateError::io(format!("the key of states in {} cannot be made", path.display()), error);
        if !path.try_exists().map_err(fail)? {
            make_file(path, text.as_bytes()).map_err(fail)?;
        }
        Self::from_file(path)
    }

    /// The sealer of texts that belong to no tenant.
    pub(crate) fn sealer(&self) -> Result<Sealer, StateError> {
        secret(&self.0, b"store", "").map(Sealer::new)
    }

    /// The keys of an owner.
    pub(crate) fn tenant(&self, owner: &str) -> Result<TenantKeys, StateError> {
        let own = secret(&self.0, b"tenant", owner)?;
        let [id, names] = [derive(&own, b"id", "")?, derive(&own, b"names", "")?];
        let sessions = derive(&own, b"sessions", "")?;
        let conversations = derive(&own, b"conversations", "")?;
        let mut short = [0; 16];
        short.copy_from_slice(&id[..16]);
        Ok(TenantKeys {
            id: TenantId(short),
            names: hmac::Key::new(hmac::HMAC_SHA256, &names),
            sessions: hmac::Key::new(hmac::HMAC_SHA256, &sessions),
            conversations: hmac::Key::new(hmac::HMAC_SHA256, &conversations),
            sealer: Sealer::new(secret(&own, b"texts", "")?),
        })
    }
}

/// Makes a file that only its owner can read, unless it is there. It has its whole content from the first moment: a process that is killed
/// meanwhile leaves a part under another name.
fn make_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".part-{:016x}", u64::from_le_bytes(random)));
    let part = PathBuf::from(name);
    let made = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&part)?;
        file.write_all(content)?;
        file.sync_all()?;
        // A link never replaces a file, as a renaming would.
        match fs::hard_link(&part, path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    })();
    let _ = fs::remove_file(&part);
    made
}

/// The keys of a tenant.
#[derive(Debug, Clone)]
pub(crate) struct TenantKeys {
    pub(crate) id: TenantId,
    names: hmac::Key,
    sessions: hmac::Key,
    pub(crate) conversations: hmac::Key,
    pub(crate) sealer: Sealer,
}

impl TenantKeys {
    /// The id of the object with this content. Nobody without the key can find it out, or see if the tenant has such an object.
    pub(crate) fn object(&self, content: &[u8]) -> ObjectId {
        let mut id = [0; 32];
        for (byte, hashed) in id.iter_mut().zip(hmac::sign(&self.names, content).as_ref()) {
            *byte = *hashed;
        }
        ObjectId(id)
    }

    /// The id of the session with this name. Nobody without the key can find the name out.
    pub(crate) fn session(&self, name: &str) -> SessionId {
        let mut id = [0; 16];
        for (byte, hashed) in id.iter_mut().zip(hmac::sign(&self.sessions, name.as_bytes()).as_ref()) {
            *byte = *hashed;
        }
        SessionId(id)
    }
}

/// A key for a purpose. Each purpose and owner has another one.
fn derive(secret: &Prk, purpose: &[u8], owner: &str) -> Result<[u8; KEY_BYTES], StateError> {
    let about = [purpose, b"\0".as_slice(), owner.as_bytes()];
    let mut key = [0; KEY_BYTES];
    let derived = secret
        .expand(&about, HKDF_SHA256)
        .and_then(|bytes| bytes.fill(&mut key));
    derived.map_err(|_| StateError::Key("a key of states cannot be derived".to_owned()))?;
    Ok(key)
}

/// As [`derive`], for a key from which others are derived.
fn secret(from: &Prk, purpose: &[u8], owner: &str) -> Result<Prk, StateError> {
    derive(from, purpose, owner).map(|key| Prk::new_less_safe(HKDF_SHA256, &key))
}
