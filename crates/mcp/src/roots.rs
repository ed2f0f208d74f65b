//! The folders that a client offers: the protocol's *roots*.
#![expect(
    deprecated,
    reason = "roots have no successor in the versions of the protocol that have sessions"
)]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::service::RequestContext;
use tokio::time::timeout;

use crate::resources::unescaped;

/// The beginnings of the addresses of this machine's folders.
const PREFIXES: [&str; 2] = ["file://localhost/", "file:///"];
/// The most roots of a client that count.
const MAX_ROOTS: usize = 100;
/// The time for a client to tell its roots.
const TELL: Duration = Duration::from_secs(10);

/// The client's roots on this machine. Empty if it offers none, or does not tell them in time.
pub async fn roots(context: &RequestContext<RoleServer>) -> Vec<PathBuf> {
    if context
        .client_capabilities()
        .is_none_or(|client| client.roots.is_none())
    {
        return Vec::new();
    }
    match timeout(TELL, context.peer.list_roots()).await {
        Ok(Ok(listed)) => {
            let paths = listed.roots.iter().filter_map(|root| path(&root.uri));
            paths.take(MAX_ROOTS).collect()
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, "the client does not tell its roots");
            Vec::new()
        }
        Err(_) => {
            tracing::warn!("the client did not tell its roots in time");
            Vec::new()
        }
    }
}

/// The path in a root's address.
fn path(uri: &str) -> Option<PathBuf> {
    let rest = PREFIXES.iter().find_map(|prefix| uri.strip_prefix(prefix))?;
    let mut path = b"/".to_vec();
    path.extend(unescaped(rest)?);
    Some(OsString::from_vec(path).into())
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn only_addresses_of_this_machine_are_paths() {
        for (uri, expected) in [
            ("file:///home/me/a%20b", Some("/home/me/a b")),
            ("file://localhost/srv", Some("/srv")),
            ("file:///", Some("/")),
            ("file://server/share", None),
            ("file:/srv", None),
            ("https:///srv", None),
            ("file:///%zz", None),
            ("file:///a%2", None),
        ] {
            assert_eq!(path(uri), expected.map(Into::into), "{uri}");
        }
    }
}
