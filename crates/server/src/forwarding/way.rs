//! The way of a request: which server answers it.
//!
//! Decisions: `docs/internals/server.md`.

use std::sync::Arc;

use axum::RequestExt;
use axum::extract::{MatchedPath, RawPathParams, Request};
use axum::http::{HeaderMap, Method, StatusCode, header};
use sandglass_core::resumable::SUFFIX;
use sandglass_states::{Holder, Leads, Living, ServerId};

use super::{FORWARDED, Forwarding, IF_AWAKE, MAY_COME_BACK, is_small};
use crate::errors::ApiError;
use crate::placement::Reason;
use crate::quotas::Account;
use crate::sessions::Known;
use crate::{App, draining, load, mcp_ids, sharing};

/// Another server, which gets a request.
#[derive(Debug, Clone)]
pub(super) struct Elsewhere {
    pub(super) server: ServerId,
    pub(super) address: String,
}

/// The way of a request.
pub(super) enum Way {
    /// This server answers.
    Here,
    /// To another server.
    There(Elsewhere),
    /// Back to the server that forwarded it, which tries another way. Nothing was done.
    Back,
}

/// The parts of a request that tell where it goes.
pub(super) struct Asked {
    pub(super) what: What,
    pub(super) account: Arc<Account>,
    pub(super) is_forwarded: bool,
    /// True if the request can be sent a second time, because its body is small.
    pub(super) can_repeat: bool,
    /// True if the server that forwarded it can try another way.
    pub(super) may_come_back: bool,
    /// True if that server only guesses that the session is here.
    pub(super) is_guess: bool,
}

/// The thing that a request is for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A session, by its id.
    Session(String),
    /// The files of a stateless run.
    Run(String),
    /// A session of the Model Context Protocol, by its token.
    Conversation(Vec<u8>),
    /// A new session of the Model Context Protocol, whose sandbox is made later.
    NewConversation,
    /// A new session.
    NewSession,
    /// A run that leaves nothing behind.
    NewRun,
    /// A connection that makes sessions, and that nobody can resume.
    Connection,
}

impl Asked {
    /// `None` for a request that this server answers always.
    pub(super) async fn of(request: &mut Request) -> Option<Self> {
        let route = request.extensions().get::<MatchedPath>()?.as_str().to_owned();
        let what = match (request.method(), route.as_str()) {
            (_, "/mcp") if request.headers().contains_key(mcp_ids::SESSION_ID) => {
                What::Conversation(mcp_ids::token(request.headers())?)
            }
            (&Method::POST, "/mcp") => What::NewConversation,
            (&Method::POST, "/v1/sessions") => What::NewSession,
            (&Method::POST, "/execute") => What::NewRun,
            // Its first message tells if it begins a conversation, or resumes one.
            (&Method::GET, "/v1/rpc") if offers_resumable(request.headers()) => return None,
            (&Method::GET, "/v1/rpc") => What::Connection,
            _ if has_id(&route) => {
                // As the handlers read it: an id may have escapes.
                let named = request.extract_parts::<RawPathParams>().await.ok()?;
                let (_, id) = named.iter().find(|(name, _)| *name == "id")?;
                match route.starts_with("/execute/") {
                    true => What::Run(id.to_owned()),
                    false => What::Session(id.to_owned()),
                }
            }
            _ => return None,
        };
        let forwarded = request.headers().get(FORWARDED);
        Some(Self {
            what,
            account: Arc::clone(request.extensions().get::<Arc<Account>>()?),
            is_forwarded: forwarded.is_some(),
            can_repeat: is_small(request),
            may_come_back: forwarded.is_some_and(|value| value == MAY_COME_BACK || value == IF_AWAKE),
            is_guess: forwarded.is_some_and(|value| value == IF_AWAKE),
        })
    }

    pub(super) fn id(&self) -> &str {
        match &self.what {
            What::Session(id) | What::Run(id) => id,
            What::Conversation(_) | What::NewConversation | What::NewSession | What::NewRun | What::Connection => "",
        }
    }

    /// True if the server that answers is to have room for a session.
    fn makes_session(&self) -> bool {
        matches!(self.what, What::NewSession | What::NewConversation)
    }

    /// The way of a request that any server can answer, and that this one leaves to the others.
    pub(super) fn left_to_others(&self, app: &App, why: Reason, tried: &[ServerId]) -> Way {
        match (self.is_forwarded, self.may_come_back) {
            (true, true) if why != Reason::Busy => Way::Back,
            (true, _) => Way::Here,
            // What cannot be sent twice is safer here.
            (false, _) if why == Reason::Busy && !self.can_repeat => Way::Here,
            (false, _) => load::another(app, (why, self.makes_session()), tried)
                .and_then(Elsewhere::of)
                .map_or(Way::Here, Way::There),
        }
    }
}

impl Elsewhere {
    pub(super) fn of(living: Living) -> Option<Self> {
        Some(Self {
            server: living.server,
            address: living.address?,
        })
    }
}

impl Forwarding {
    /// The server that answered last for the session of a request, if the request can be sent again in case the session has moved.
    pub(super) fn guess(&self, app: &App, asked: &Asked) -> Option<Elsewhere> {
        let What::Session(id) = &asked.what else { return None };
        if asked.is_forwarded || !asked.can_repeat || app.sessions.of(&asked.account.owner, id).is_ok() {
            return None;
        }
        let elsewhere = self.remembered.of(&asked.account.owner, id)?;
        let states = app.suspension.as_ref()?.states();
        if states.seems_to_live(elsewhere.server) {
            return Some(elsewhere);
        }
        self.remembered.forget(&asked.account.owner, id);
        None
    }
}

/// The way of a request. These servers have done nothing with it.
pub(super) async fn way(app: &App, asked: &Asked, tried: &[ServerId]) -> Result<Way, ApiError> {
    let drains = app.draining.is_cancelled();
    let id = match &asked.what {
        What::NewConversation | What::NewSession | What::NewRun => return new(app, asked, tried),
        // Carried through this server, it would break at the end of the drain.
        What::Connection if drains => return Err(ApiError::shutting_down()),
        What::Connection => return Ok(Way::Here),
        What::Conversation(token) => return to_holder(app, asked, token).await,
        What::Session(id) | What::Run(id) => id,
    };
    let (Some(suspension), account) = (&app.suspension, &asked.account) else {
        return Ok(Way::Here);
    };
    let is_session = matches!(asked.what, What::Session(_));
    let is_stored = drains && is_session && draining::hand_over(app, account, id).await?;
    // A session that is awake here, or moves, is this server's until it finds out otherwise.
    let asleep = match app.sessions.of(&account.owner, id) {
        Ok((Known::Awake(_), _) | (_, Some(_))) => return Ok(Way::Here),
        Ok((Known::Asleep(asleep), None)) => Some(asleep),
        Err(_) => None,
    };
    if asked.is_guess {
        return Ok(Way::Back);
    }
    let Some(living) = suspension.elsewhere(&account.owner, id).await? else {
        return Ok(match is_stored {
            true => asked.left_to_others(app, Reason::Draining, tried),
            false => Way::Here,
        });
    };
    if let Some(asleep) = asleep {
        sharing::let_go(app, &asleep);
    }
    app.kept.let_go_of(&account.owner, id);
    if asked.is_forwarded {
        return match drains && asked.may_come_back {
            true => Ok(Way::Back),
            false => Err(twice(id)),
        };
    }
    // Without an address, the handler tells that the session is elsewhere.
    Ok(Elsewhere::of(living).map_or(Way::Here, Way::There))
}

/// The way to the server that holds a session of the Model Context Protocol. If there is none, this server tells the client so.
async fn to_holder(app: &App, asked: &Asked, token: &[u8]) -> Result<Way, ApiError> {
    let Some(suspension) = &app.suspension else {
        return Ok(Way::Here);
    };
    if suspension.tenant(&asked.account.owner)?.leads(token) != Leads::Elsewhere {
        return Ok(Way::Here);
    }
    let holder = suspension.holder(&asked.account.owner, token.to_owned()).await;
    match holder.ok_or_else(unknown_holder)? {
        Holder::Nobody | Holder::Ended => Ok(Way::Here),
        Holder::Other(_) if asked.is_forwarded => Err(twice("of the Model Context Protocol")),
        Holder::Other(living) => Elsewhere::of(living).map(Way::There).ok_or_else(unknown_holder),
    }
}

/// The error for a session of the Model Context Protocol that may be on another server.
fn unknown_holder() -> ApiError {
    let message = "the store does not tell now which server has the session; nothing was done: try again";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "state_unavailable", message).retry_after(1)
}

/// Returns true if a client offers the resumable form of a subprotocol.
fn offers_resumable(headers: &HeaderMap) -> bool {
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
    offered
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|protocol| protocol.trim().ends_with(SUFFIX))
}

/// The way of new work.
fn new(app: &App, asked: &Asked, tried: &[ServerId]) -> Result<Way, ApiError> {
    let Some(why) = load::reason(app) else {
        return Ok(Way::Here);
    };
    let others = draining::others(app).len();
    match asked.left_to_others(app, why, tried) {
        Way::Here if why == Reason::Full && asked.what == What::NewSession && others > 0 && !asked.is_forwarded => {
            Err(all_full(others))
        }
        way => Ok(way),
    }
}

/// The error for a session that no server has a place for.
fn all_full(others: usize) -> ApiError {
    let message = format!(
        "this server and the other servers that it knows ({others}) have no room for another session; nothing was done: try again later"
    );
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_full", message).retry_after(10)
}

/// Returns true for a route of a session, or of the files of a stateless run.
pub(super) fn has_id(route: &str) -> bool {
    let parts: Vec<_> = route.split('/').collect();
    matches!(
        parts.as_slice(),
        ["", "v1", "sessions", "{id}", ..] | ["", "execute", "{id}", ..]
    )
}

/// The error for a request that would be forwarded a second time.
pub(super) fn twice(id: &str) -> ApiError {
    let message = format!(
        "session {id} is on a third server; nothing was done. It may have moved just now: try again. If this comes again, the value of \
         --advertise of a server leads to another one"
    );
    ApiError::new(StatusCode::LOOP_DETECTED, "forwarded_twice", message).retry_after(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_sessions_and_runs_are_known() {
        for route in [
            "/v1/sessions/{id}/execute",
            "/v1/sessions/{id}",
            "/execute/{id}/files/{*path}",
        ] {
            assert!(has_id(route), "{route}");
        }
        for route in ["/v1/sessions", "/execute", "/health", "/v1/rpc"] {
            assert!(!has_id(route), "{route}");
        }
    }
}
