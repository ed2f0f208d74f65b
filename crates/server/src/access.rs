//! Access to the server: bearer keys, the `Host` that a server without keys accepts, and the origins of pages.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sandglass_host::args::{KEYS_VARIABLE, Secrets};
use sha2::{Digest, Sha256};

/// The shortest key, in characters. A shorter key could be guessed.
const LEAST_KEY_CHARS: usize = 16;
/// The longest key, in characters.
const MOST_KEY_CHARS: usize = 512;
/// The longest name of an owner, in characters.
const MOST_NAME_CHARS: usize = 64;
/// The beginning of the name of a key without a name. The first bytes of its digest follow, as hexadecimal digits.
const NAMELESS: &str = "key-";
const NAMELESS_BYTES: usize = 8;
/// The prefix of the WebSocket subprotocol that carries a key.
pub const KEY_PROTOCOL: &str = "sandglass.key.";
/// The owner of sessions on a server without keys.
pub const LOCAL: &str = "local";

/// The server's keys, stored as hashes.
#[derive(Clone, Default)]
pub struct Keys(Vec<Key>);

#[derive(Clone)]
struct Key {
    owner: Arc<str>,
    digest: [u8; 32],
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Keys({})", self.0.len())
    }
}

impl Keys {
    /// Reads keys, one per line or separated by commas. A line is `name key`, or only the key. Its name is then `key-` with 16 digits
    /// of the key's digest, wherever the key stands. Several lines of one name are several keys of one owner. Lines that begin with
    /// `#` are comments.
    ///
    /// # Errors
    /// The fault and its line, without the key.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut keys = Self::default();
        let lines = text.split(['\n', ',']).map(str::trim).enumerate();
        for (index, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            keys.add(line)
                .map_err(|problem| format!("key {}: {problem}", index + 1))?;
        }
        Ok(keys)
    }

    /// Reads the keys in a file.
    ///
    /// # Errors
    /// The file cannot be read, holds no key, or holds an invalid one.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("the file of keys {} cannot be read: {error}", path.display()))?;
        let keys = Self::parse(&text).map_err(|problem| format!("{}, {problem}", path.display()))?;
        if keys.is_empty() {
            return Err(format!("{} holds no keys", path.display()));
        }
        Ok(keys)
    }

    /// The keys of both sets.
    ///
    /// # Errors
    /// One key has two names.
    pub fn and(mut self, other: Self) -> Result<Self, String> {
        for key in other.0 {
            self.insert(key)?;
        }
        Ok(self)
    }

    /// Returns true when there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names of the owners, each once.
    pub fn owners(&self) -> Vec<Arc<str>> {
        let mut owners: Vec<_> = self.0.iter().map(|key| Arc::clone(&key.owner)).collect();
        owners.sort();
        owners.dedup();
        owners
    }

    /// The key's owner. The search takes the same time for every key.
    pub fn owner_of(&self, key: &[u8]) -> Option<Arc<str>> {
        let digest = digest(key);
        let mut owner = None;
        for known in &self.0 {
            if are_same(&known.digest, &digest) {
                owner = Some(Arc::clone(&known.owner));
            }
        }
        owner
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_whitespace();
        let (owner, key) = match (words.next(), words.next(), words.next()) {
            (Some(key), None, _) => (nameless(key), key),
            // Only the key itself may lead to the sessions of a key without a name.
            (Some(name), Some(_), None) if is_nameless(name) => {
                return Err(format!(
                    "\"{NAMELESS}\" and {} hexadecimal digits name keys without a name: give another name",
                    2 * NAMELESS_BYTES
                ));
            }
            (Some(name), Some(key), None) => (name.to_owned(), key),
            _ => return Err("must be a key, or a name and a key".to_owned()),
        };
        if !is_name(&owner) {
            return Err(format!(
                "a name has 1 to {MOST_NAME_CHARS} letters, digits, \".\", \"_\" or \"-\", and begins with a letter or digit"
            ));
        }
        if !(LEAST_KEY_CHARS..=MOST_KEY_CHARS).contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(format!(
                "a key has {LEAST_KEY_CHARS} to {MOST_KEY_CHARS} visible ASCII characters; `openssl rand -hex 32` makes a good one"
            ));
        }
        self.insert(Key {
            owner: owner.into(),
            digest: digest(key.as_bytes()),
        })
    }

    fn insert(&mut self, key: Key) -> Result<(), String> {
        match self.0.iter().find(|known| known.digest == key.digest) {
            Some(known) if known.owner != key.owner => {
                Err(format!("\"{}\" and \"{}\" have the same key", known.owner, key.owner))
            }
            Some(_) => Ok(()),
            None => {
                self.0.push(key);
                Ok(())
            }
        }
    }
}

/// The keys of a server that listens at `listen`: those in the file, and those in the environment.
///
/// # Errors
/// A key is invalid, or the address is not a loopback address and there are no keys.
pub fn keys(file: Option<&Path>, secrets: &Secrets, listen: SocketAddr) -> Result<Keys, String> {
    let from_file = file.map(Keys::from_file).transpose()?;
    let from_environment = secrets
        .keys
        .as_deref()
        .map(|text| Keys::parse(text).map_err(|problem| format!("{KEYS_VARIABLE}, {problem}")))
        .transpose()?;
    let keys = from_file
        .unwrap_or_default()
        .and(from_environment.unwrap_or_default())?;
    if keys.is_empty() && !listen.ip().is_loopback() {
        return Err(format!(
            "{listen} is not a loopback address, and there are no keys: anybody could run code here. \
             Give --keys-file or {KEYS_VARIABLE}, or listen on 127.0.0.1"
        ));
    }
    Ok(keys)
}

/// The origins of a server with these keys, from the values of `--allow-origin`.
///
/// # Errors
/// A text is no origin, or `*` is given without keys.
pub fn origins(allowed: &[String], keys: &Keys) -> Result<Origins, String> {
    let origins = Origins::parse(allowed)?;
    if origins.any() && keys.is_empty() {
        return Err(
            "--allow-origin \"*\" needs keys: any page that is open in a browser here could run code".to_owned(),
        );
    }
    Ok(origins)
}

/// Returns true for a valid name. Names become folders of workspaces.
fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.len() <= MOST_NAME_CHARS
        && name.starts_with(|char: char| char.is_ascii_alphanumeric())
        && name.bytes().all(allowed)
}

/// The name of a key without a name. Sessions and folders of the key are found by it, so it must not depend on other keys.
fn nameless(key: &str) -> String {
    let digest = digest(key.as_bytes());
    let digits = digest.iter().take(NAMELESS_BYTES).map(|byte| format!("{byte:02x}"));
    format!("{NAMELESS}{}", digits.collect::<String>())
}

fn is_nameless(name: &str) -> bool {
    name.strip_prefix(NAMELESS).is_some_and(|digits| {
        digits.len() == 2 * NAMELESS_BYTES && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

/// Compares all bytes, wherever the first difference is. Timing would tell little anyway, because a client cannot choose
/// digests.
fn are_same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    let difference = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(difference) == 0
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// The key of a request: from `Authorization: Bearer …`, or from a WebSocket's subprotocols.
pub fn presented_key(headers: &HeaderMap) -> Option<Vec<u8>> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        return scheme
            .eq_ignore_ascii_case(b"bearer ")
            .then(|| key.trim_ascii().to_vec());
    }
    let protocols = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
    protocols
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .find_map(|protocol| protocol.trim().strip_prefix(KEY_PROTOCOL))
        .and_then(|key| URL_SAFE_NO_PAD.decode(key).ok())
}

/// Returns true when `Host` names this machine. This stops DNS rebinding: a page of another site, whose name resolves to this
/// machine, sends its own name as `Host`.
pub fn is_local_host(headers: &HeaderMap, uri: &Uri) -> bool {
    host(headers, uri).and_then(name_of).is_some_and(|name| {
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    })
}

fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let header = only(headers, &header::HOST).and_then(|host| host.to_str().ok());
    // An absolute target (`GET http://host/…`) takes precedence.
    uri.authority().map(axum::http::uri::Authority::as_str).or(header)
}

/// The value of a header that occurs once. If a header occurs twice, a proxy may have checked the other one.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).into_iter();
    values.next().filter(|_| values.next().is_none())
}

/// The name in a `Host` header without its port; `None` for a malformed header.
fn name_of(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(name)
}

/// The origins whose pages may send requests.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    allowed: Vec<String>,
    any: bool,
}

impl Origins {
    /// Reads the values of `--allow-origin`: `https://app.example`, `http://localhost:5173`, or `*` for all.
    ///
    /// # Errors
    /// A text is no origin.
    pub fn parse(origins: &[String]) -> Result<Self, String> {
        let mut parsed = Self::default();
        for origin in origins {
            let origin = origin.trim().trim_end_matches('/').to_ascii_lowercase();
            if origin == "*" {
                parsed.any = true;
                continue;
            }
            let uri: Option<Uri> = origin.parse().ok();
            let is_origin = uri.as_ref().is_some_and(|uri| {
                uri.scheme().is_some()
                    && uri.authority().is_some()
                    && !origin.splitn(4, '/').nth(3).is_some_and(|_| true)
            });
            if !is_origin {
                return Err(format!(
                    "\"{origin}\" is no origin: give a scheme, a host and perhaps a port, such as https://app.example:8443"
                ));
            }
            parsed.allowed.push(origin);
        }
        Ok(parsed)
    }

    /// Returns true when pages of every origin may send requests.
    pub fn any(&self) -> bool {
        self.any
    }

    /// Judges the `Origin` of a request.
    pub fn judge(&self, headers: &HeaderMap, uri: &Uri) -> Origin {
        if !headers.contains_key(header::ORIGIN) {
            return Origin::None;
        }
        let Some(Ok(origin)) = only(headers, &header::ORIGIN).map(HeaderValue::to_str) else {
            return Origin::Forbidden;
        };
        let lower = origin.to_ascii_lowercase();
        if self.any || self.allowed.contains(&lower) {
            return Origin::Allowed(origin.to_owned());
        }
        let own = host(headers, uri).map(str::to_ascii_lowercase);
        let same = ["http://", "https://"].iter().any(|scheme| {
            lower
                .strip_prefix(scheme)
                .is_some_and(|rest| Some(rest) == own.as_deref())
        });
        if same { Origin::None } else { Origin::Forbidden }
    }
}

/// The meaning of a request's `Origin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// No page of another origin sent the request.
    None,
    /// A page of this origin sent the request, and may do so.
    Allowed(String),
    /// A page sent the request, and may not do so.
    Forbidden,
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef";

    fn headers(pairs: &[(header::HeaderName, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| (name.clone(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn keys_have_owners_and_names_can_have_several() {
        let text = format!("# keys\n\nann {KEY}-1\r\nann {KEY}-2\n{KEY}-3,bob {KEY}-4");
        let keys = Keys::parse(&text).unwrap();
        let owner = |key: &str| keys.owner_of(key.as_bytes()).map(|owner| owner.to_string());
        assert_eq!(owner(&format!("{KEY}-1")).as_deref(), Some("ann"));
        assert_eq!(owner(&format!("{KEY}-2")).as_deref(), Some("ann"));
        let third = nameless(&format!("{KEY}-3"));
        assert_eq!(owner(&format!("{KEY}-3")), Some(third.clone()));
        assert_eq!(owner(&format!("{KEY}-4")).as_deref(), Some("bob"));
        assert_eq!(owner(KEY), None);
        assert_eq!(owner(""), None);
        let owners: Vec<_> = keys.owners().iter().map(ToString::to_string).collect();
        assert_eq!(owners, ["ann", "bob", third.as_str()]);
    }

    /// An owner's name leads to stored sessions, folders and quotas. No other key may come to have it.
    #[test]
    fn a_key_without_a_name_has_the_same_owner_wherever_it_stands() {
        let keys = |text: &str| Keys::parse(text).unwrap();
        let owner = |keys: &Keys, key: &str| keys.owner_of(key.as_bytes()).unwrap();
        let [one, two] = ["a-first-key-0123456789", "a-second-key-0123456789"];
        let both = keys(&format!("{one}\n{two}"));
        assert_ne!(owner(&both, one), owner(&both, two));
        // The line above it is deleted.
        assert_eq!(owner(&keys(two), two), owner(&both, two));
        // One is in the file, the other in the environment.
        let joined = keys(one).and(keys(two)).unwrap();
        assert_eq!(joined.owners().len(), 2);
        assert_eq!(owner(&joined, one), owner(&both, one));
        // Names that earlier servers gave are names like any other.
        assert_eq!(&*owner(&keys(&format!("key-2 {one}\n{two}")), one), "key-2");
        for name in [&*owner(&both, one), "key-0123456789ABCDEF"] {
            let problem = Keys::parse(&format!("{name} {two}")).unwrap_err();
            assert!(
                problem.contains("give another name") && !problem.contains(two),
                "{problem}"
            );
        }
    }

    /// Keys are compared by digests, so the time of a comparison does not show how close a guess is.
    #[test]
    fn keys_are_known_by_all_of_their_digest() {
        let known = digest(KEY.as_bytes());
        assert!(are_same(&known, &known.clone()));
        for bit in 0..known.len() * 8 {
            let mut other = known;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!are_same(&known, &other), "{bit}");
        }
        // Half of the bits differ, wherever the first difference between the keys is.
        for at in 0..KEY.len() {
            let mut near = KEY.as_bytes().to_vec();
            near[at] ^= 1;
            let differ: u32 = known.iter().zip(digest(&near)).map(|(a, b)| (a ^ b).count_ones()).sum();
            assert!((64..192).contains(&differ), "{at}: {differ}");
        }
        let keys = Keys::parse(&format!("ann {KEY}\nbob {KEY}0")).unwrap();
        for near in [
            &KEY[..KEY.len() - 1],
            &format!("{KEY}\0"),
            &format!("{KEY} "),
            &KEY.to_uppercase(),
        ] {
            assert_eq!(keys.owner_of(near.as_bytes()), None, "{near:?}");
        }
        // Nothing else of a key is kept.
        let [ann, _] = keys.0.as_slice() else {
            panic!("two keys")
        };
        let Key { owner, digest } = ann;
        assert_eq!((&**owner, digest), ("ann", &known));
    }

    #[test]
    fn bad_keys_are_refused_and_never_repeated() {
        for line in [
            "short",
            "a b c",
            "../up 0123456789abcdef",
            ".. 0123456789abcdef",
            "ann ключключключключ",
        ] {
            let problem = Keys::parse(line).unwrap_err();
            assert!(problem.starts_with("key 1: "), "{problem}");
            assert!(
                !problem.contains("0123456789abcdef") && !problem.contains("short"),
                "{problem}"
            );
        }
        let twice = Keys::parse(&format!("ann {KEY}\nbob {KEY}")).unwrap_err();
        assert!(twice.contains("same key") && !twice.contains(KEY), "{twice}");
        assert_eq!(format!("{:?}", Keys::parse(KEY).unwrap()), "Keys(1)");
    }

    #[test]
    fn keys_come_in_the_authorization_header_or_as_a_subprotocol() {
        let bearer = |value| presented_key(&headers(&[(header::AUTHORIZATION, value)]));
        assert_eq!(bearer("Bearer abc").as_deref(), Some(&b"abc"[..]));
        assert_eq!(bearer("bearer  abc ").as_deref(), Some(&b"abc"[..]));
        assert_eq!(bearer("Basic abc"), None);
        assert_eq!(bearer("x"), None);
        let protocol = |value| presented_key(&headers(&[(header::SEC_WEBSOCKET_PROTOCOL, value)]));
        assert_eq!(
            protocol("sandglass.v1, sandglass.key.YWJj").as_deref(),
            Some(&b"abc"[..])
        );
        assert_eq!(protocol("sandglass.v1"), None);
        assert_eq!(protocol("sandglass.key.!!"), None);
    }

    #[test]
    fn a_keyless_server_is_called_by_a_name_of_this_machine() {
        let local = |host| is_local_host(&headers(&[(header::HOST, host)]), &Uri::from_static("/health"));
        for host in [
            "localhost",
            "LOCALHOST:8788",
            "127.0.0.1:1",
            "127.1.2.3",
            "[::1]:8788",
            "[::1]",
        ] {
            assert!(local(host), "{host}");
        }
        for host in [
            "example.com",
            "localhost.example.com:8788",
            "10.0.0.1",
            "0.0.0.0",
            "[::2]:1",
            "",
            "127.0.0.1.example.com",
            "[::1]example.com",
            "[::1].example.com:8788",
            "[::1]@example.com",
            "[::1",
            "localhost:80@example.com",
            "localhost@example.com",
        ] {
            assert!(!local(host), "{host}");
        }
        assert!(!is_local_host(&HeaderMap::new(), &Uri::from_static("/")));
        let two = HeaderMap::from_iter(
            ["localhost", "example.com"].map(|host| (header::HOST, HeaderValue::from_static(host))),
        );
        assert!(!is_local_host(&two, &Uri::from_static("/health")));
        let absolute = Uri::from_static("http://example.com/health");
        assert!(!is_local_host(&headers(&[(header::HOST, "localhost")]), &absolute));
    }

    #[test]
    fn pages_of_other_origins_must_be_allowed() {
        let origins = Origins::parse(&["https://App.example/".to_owned()]).unwrap();
        let judge = |origin| {
            let headers = headers(&[(header::HOST, "localhost:8788"), (header::ORIGIN, origin)]);
            origins.judge(&headers, &Uri::from_static("/v1/sessions"))
        };
        assert_eq!(judge("http://localhost:8788"), Origin::None);
        assert_eq!(
            judge("https://app.example"),
            Origin::Allowed("https://app.example".to_owned())
        );
        assert_eq!(judge("http://localhost:9000"), Origin::Forbidden);
        assert_eq!(judge("https://app.example.evil"), Origin::Forbidden);
        assert_eq!(judge("null"), Origin::Forbidden);
        assert_eq!(origins.judge(&HeaderMap::new(), &Uri::from_static("/")), Origin::None);
        assert!(Origins::parse(&["app.example".to_owned()]).is_err());
        assert!(Origins::parse(&["https://app.example/path".to_owned()]).is_err());
        assert!(Origins::parse(&["*".to_owned()]).unwrap().any());
    }
}
