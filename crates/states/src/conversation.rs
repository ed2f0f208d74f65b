//! Conversations that a server holds in its memory: their tokens, which lead other servers there.
//!
//! A token is a secret, the home of the server, and a tag. The ids of sessions begin with the home as well, so it tells a client nothing
//! new. The tag is made with a key of the owner, so nobody without the key of states can make a token that leads anywhere, and a token
//! leads only its own owner. The server itself compares the whole token.
//!
//! Decisions: `docs/internals/server.md`.

use ring::hmac;

use crate::error::StateError;
use crate::lease::Living;
use crate::names::HomeId;
use crate::states::Tenant;

/// The bytes of the secret with which a token begins.
const SECRET_BYTES: usize = 32;
const HOME_BYTES: usize = 8;
const TAG_BYTES: usize = 32;

/// The direction of a token, without a question to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leads {
    /// No server gave this token to this owner.
    Nowhere,
    /// This server gave it.
    Here,
    /// Another server gave it, which may have ended.
    Elsewhere,
}

/// The end of the way to a conversation that is not held here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// No server gave this token to this owner, or this server gave it.
    Nobody,
    /// The server that gave the token has ended.
    Ended,
    /// Another server, which lives.
    Other(Living),
}

impl Tenant {
    /// The token of a conversation with this secret, which leads other servers to this one. The secret alone if this server tells others no
    /// address.
    pub fn conversation(&self, secret: &[u8; SECRET_BYTES]) -> Vec<u8> {
        let mut token = secret.to_vec();
        if let Some(home) = self.servers().home() {
            token.extend_from_slice(&home.0);
            let tag = hmac::sign(self.conversations(), &token);
            token.extend_from_slice(tag.as_ref());
        }
        token
    }

    /// The direction of a token of this owner.
    pub fn leads(&self, token: &[u8]) -> Leads {
        match self.home_in(token) {
            None => Leads::Nowhere,
            Some(home) if self.servers().home() == Some(home) => Leads::Here,
            Some(_) => Leads::Elsewhere,
        }
    }

    /// The server that holds the conversation with this token. May ask the store.
    ///
    /// # Errors
    /// [`StateError`]: the store does not tell.
    pub fn holder(&self, token: &[u8]) -> Result<Holder, StateError> {
        let (Leads::Elsewhere, Some(home)) = (self.leads(token), self.home_in(token)) else {
            return Ok(Holder::Nobody);
        };
        let living = self.servers().at_home(home)?;
        Ok(living.map_or(Holder::Ended, Holder::Other))
    }

    /// The home in a token of this owner.
    fn home_in(&self, token: &[u8]) -> Option<HomeId> {
        if token.len() != SECRET_BYTES + HOME_BYTES + TAG_BYTES {
            return None;
        }
        let (about, tag) = token.split_at_checked(SECRET_BYTES + HOME_BYTES)?;
        hmac::verify(self.conversations(), about, tag).ok()?;
        about.last_chunk().copied().map(HomeId)
    }
}
