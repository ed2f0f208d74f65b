//! The address of NATS servers, as an operator writes it.

use std::net::IpAddr;

use async_nats::ServerAddr;
use percent_encoding::percent_decode_str;

use crate::error::StateError;

const FORM: &str = "must be nats://HOST[:PORT][,nats://HOST2…][/BUCKET], with tls:// for TLS, and nats://USER:PASSWORD@HOST for a login";
/// The buckets, if the address names none.
const BUCKET: &str = "sandglass";
/// The most characters of a bucket's name.
const MOST_BUCKET: usize = 64;

/// Servers of one cluster, and the beginning of the names of the buckets there.
pub(super) struct Address {
    pub(super) servers: Vec<ServerAddr>,
    /// The user and the password. No address has them, so nothing that tells one tells them.
    pub(super) login: Option<(String, String)>,
    pub(super) bucket: String,
}

impl Address {
    /// # Errors
    /// [`StateError::Key`], which does not tell the text: it may have a password.
    pub(super) fn parse(text: &str) -> Result<Self, StateError> {
        let malformed = || StateError::Key(FORM.to_owned());
        let mut address = Self {
            servers: Vec::new(),
            login: None,
            bucket: BUCKET.to_owned(),
        };
        let count = text.split(',').count();
        for (index, text) in text.split(',').enumerate() {
            let known = text.starts_with("nats://") || text.starts_with("tls://");
            if !known {
                return Err(malformed());
            }
            let server: ServerAddr = text.parse().map_err(|_| malformed())?;
            let mut url = server.into_inner();
            if url.query().is_some() || url.fragment().is_some() || url.host_str().is_none_or(str::is_empty) {
                return Err(malformed());
            }
            match url.path().trim_start_matches('/') {
                "" => {}
                bucket if index + 1 == count && is_bucket(bucket) => bucket.clone_into(&mut address.bucket),
                _ => return Err(malformed()),
            }
            url.set_path("");
            if !url.username().is_empty() {
                let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(String::from);
                let user = decoded(url.username()).map_err(|_| malformed())?;
                let password = decoded(url.password().unwrap_or_default()).map_err(|_| malformed())?;
                let login = Some((user, password));
                if address.login.is_some() && address.login != login {
                    let problem = "all servers of a cluster take the same user and password: give them once";
                    return Err(StateError::Key(problem.to_owned()));
                }
                address.login = login;
                url.set_username("").map_err(|()| malformed())?;
            }
            url.set_password(None).map_err(|()| malformed())?;
            address
                .servers
                .push(ServerAddr::from_url(url).map_err(|_| malformed())?);
        }
        Ok(address)
    }

    /// Returns true if all servers are on this machine. Another name of the machine than `localhost` does not count.
    pub(super) fn is_local(&self) -> bool {
        self.servers.iter().all(|server| match server.host().parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => server.host().eq_ignore_ascii_case("localhost"),
        })
    }

    /// The servers as a text.
    pub(super) fn shown(&self) -> String {
        let all: Vec<_> = self
            .servers
            .iter()
            .map(|server| format!("{}:{}", server.host(), server.port()))
            .collect();
        all.join(", ")
    }
}

fn is_bucket(text: &str) -> bool {
    text.len() <= MOST_BUCKET
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_a_login_and_a_bucket_are_read() {
        let one = Address::parse("nats://localhost").unwrap();
        assert_eq!(
            (one.shown().as_str(), one.bucket.as_str()),
            ("localhost:4222", "sandglass")
        );
        assert_eq!(one.login, None);
        let all = Address::parse("nats://ann:p%40ss@a:1,nats://b,tls://[::1]:3/states-1").unwrap();
        assert_eq!(
            (all.shown().as_str(), all.bucket.as_str()),
            ("a:1, b:4222, ::1:3", "states-1")
        );
        assert_eq!(all.login, Some(("ann".to_owned(), "p@ss".to_owned())));
        assert!(!format!("{:?}", all.servers).contains("p%40ss"));
    }

    #[test]
    fn servers_of_this_machine_are_known() {
        let is_local = |text| Address::parse(text).unwrap().is_local();
        assert!(is_local("nats://localhost,nats://127.0.0.2:1,tls://[::1]/states"));
        for text in [
            "nats://localhost,nats://192.0.2.1",
            "nats://localhost.example",
            "nats://[2001:db8::1]",
        ] {
            assert!(!is_local(text), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_without_telling_them() {
        for text in [
            "",
            "localhost:4222",
            "nats://",
            "ws://localhost",
            "nats://ann:secret@a,nats://bob:secret@b",
            "nats://secret@a/one/two",
            "nats://a/secret?x",
            "nats://a/secret.x",
            "nats://a/secret,nats://b",
            "nats://a/sec ret",
        ] {
            let refused = Address::parse(text).err().unwrap().to_string();
            assert!(!refused.contains("secret"), "{refused}");
        }
    }
}
