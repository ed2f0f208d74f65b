//! The ids of sessions of the Model Context Protocol. For its client, an id is a token that leads the other servers of a cluster to the one
//! that has the session (`sandglass_states::Holder`). Its secret is the id by which the protocol's library knows the session.
//!
//! Decisions: `docs/internals/server.md`.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sandglass_states::Leads;

use super::App;
use super::errors::ApiError;

/// The header with the id of a session of the protocol.
pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// The bytes of an id: the digits of a UUID.
const ID_BYTES: usize = 32;

/// Puts the library's id of an owner's session in the place of its token, if the session is here.
pub fn arrive(app: &App, owner: &str, headers: &mut HeaderMap) {
    if let Some(id) = own_id(app, owner, headers) {
        headers.insert(SESSION_ID, id);
    }
}

/// Puts the token of an owner's session in the place of the library's id, if there are other servers.
///
/// # Errors
/// The library's id has another form.
pub fn leave(app: &App, owner: &str, headers: &mut HeaderMap) -> Result<(), ApiError> {
    let Some(suspension) = app.suspension.as_ref().filter(|_| app.home().is_some()) else {
        return Ok(());
    };
    let Some(id) = headers.get(SESSION_ID) else {
        return Ok(());
    };
    let digits: Vec<u8> = id.as_bytes().iter().copied().filter(|byte| *byte != b'-').collect();
    let unknown = || ApiError::internal("a session of the protocol has an id of another form");
    let digits: [u8; ID_BYTES] = digits.try_into().map_err(|_| unknown())?;
    let token = URL_SAFE_NO_PAD.encode(suspension.tenant(owner)?.conversation(&digits));
    let token = HeaderValue::from_str(&token).map_err(|_| unknown())?;
    headers.insert(SESSION_ID, token);
    Ok(())
}

/// The token in a request for a session.
pub fn token(headers: &HeaderMap) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(headers.get(SESSION_ID)?).ok()
}

/// The library's id in a token. `None` for what this server gave to nobody, or to another owner.
fn own_id(app: &App, owner: &str, headers: &HeaderMap) -> Option<HeaderValue> {
    let token = token(headers)?;
    let tenant = app.suspension.as_ref()?.tenant(owner).ok()?;
    let digits = token.get(..ID_BYTES).filter(|_| tenant.leads(&token) == Leads::Here)?;
    let digits = std::str::from_utf8(digits).ok()?;
    let groups = [0..8, 8..12, 12..16, 16..20, 20..ID_BYTES].map(|group| digits.get(group));
    let groups: Option<Vec<_>> = groups.into_iter().collect();
    HeaderValue::from_str(&groups?.join("-")).ok()
}
