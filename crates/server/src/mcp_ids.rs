//! The ids of sessions of the Model Context Protocol. For its client, an id is a token that leads the other servers of a cluster to the one
//! that has the session (`sandglass_states::Holder`). Its secret is the id by which the protocol's library knows the session.
//!
//! Decisions: `docs/internals/server.md`.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::App;
use super::errors::ApiError;

/// The header with the id of a session of the protocol.
pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// The bytes of an id: the digits of a UUID.
const ID_BYTES: usize = 32;

/// Puts the library's id of a session in the place of its token.
pub fn arrive(app: &App, headers: &mut HeaderMap) {
    if let Some(id) = named(headers).and_then(|token| own_id(app, &token)) {
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

/// The id of the session that a request names, as bytes.
fn named(headers: &HeaderMap) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(headers.get(SESSION_ID)?).ok()
}

/// The token in a request for a session of the protocol, which leads to its server.
pub fn token(headers: &HeaderMap) -> Option<Vec<u8>> {
    named(headers).filter(|token| token.len() > ID_BYTES)
}

/// The library's id in a token. `None` for what is no token.
fn own_id(app: &App, token: &[u8]) -> Option<HeaderValue> {
    app.home()?;
    let digits = token.get(..ID_BYTES).filter(|_| token.len() > ID_BYTES)?;
    let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
    let digits = std::str::from_utf8(digits).ok()?;
    let groups = [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ];
    HeaderValue::from_str(&groups.join("-")).ok()
}
