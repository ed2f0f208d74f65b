//! Errors as clients see them: `{ "error": { "code", "message" } }`, with codes that never change.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// The code of the error for a session that is not there.
pub(super) const NO_SESSION: &str = "session_not_found";

/// The header of an error after which the server that forwarded the request may try another way.
pub(super) const UNTOUCHED: HeaderName = HeaderName::from_static("sandglass-untouched");

/// The error of a request.
#[derive(Debug, Clone)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// The stable code.
    pub code: &'static str,
    /// The message: the event, the fate of the state, and what to do.
    pub message: String,
    retry_after_seconds: Option<u64>,
    /// True if another server may do what was asked for, because nothing was done here.
    is_untouched: bool,
}

impl ApiError {
    /// An error with this status, code and message.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            retry_after_seconds: None,
            is_untouched: false,
        }
    }

    /// Adds the time after which the same request may succeed.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_seconds = Some(seconds.max(1));
        self
    }

    /// Says that nothing was done, and that another server may do it.
    #[must_use]
    pub fn untouched(mut self) -> Self {
        self.is_untouched = true;
        self
    }

    /// 400: the request is malformed.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// 400: a field is unknown, or its value has a wrong type or range.
    pub fn option(name: &str, problem: impl AsRef<str>) -> Self {
        let message = format!("{name}: {}", problem.as_ref());
        Self::new(StatusCode::BAD_REQUEST, "invalid_option", message)
    }

    /// 404: no session has this id, or it belongs to another key.
    pub fn no_session(id: &str) -> Self {
        let id: String = id.chars().take(64).collect();
        let message = format!(
            "there is no session \"{id}\": it was never there, was destroyed, has expired, or is another key's"
        );
        Self::new(StatusCode::NOT_FOUND, NO_SESSION, message)
    }

    /// 503: the server is shutting down.
    pub fn shutting_down() -> Self {
        let message = "the server is shutting down; nothing was done";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message)
            .retry_after(5)
            .untouched()
    }

    /// 503: the server was shut down, and the execution ended with it. It has no `Retry-After`, because proxies repeat
    /// by themselves what has this header.
    pub fn cut_short() -> Self {
        let message = "the server is shutting down: the code was stopped, and its variables are gone";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message)
    }

    /// 503: the server was shut down, and the execution of a kept sandbox waits for a later one.
    pub fn left_pending() -> Self {
        let message = "the server is shutting down: an execution that waited for calls is pending, and a later server goes on with it";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message)
    }

    /// 500: a fault of the server.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// The error as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        json!({ "error": { "code": self.code, "message": self.message } })
    }
}

impl From<sandglass_core::Error> for ApiError {
    fn from(error: sandglass_core::Error) -> Self {
        use sandglass_core::Error as E;
        let status = match &error {
            E::InvalidOption { .. } => StatusCode::BAD_REQUEST,
            E::NotInitialized
            | E::NoCheckpoint(_)
            | E::ExecutionPending(_)
            | E::JournalDiffers(_)
            | E::PersistInUse(_) => StatusCode::CONFLICT,
            E::Destroyed => StatusCode::GONE,
            E::BootFailed(_) | E::AssetFailed(_) | E::BackendUnavailable(_) | E::PersistFailed(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            E::PackageNotFound(_) | E::Integrity(_) | E::NotSerializable(_) | E::SourceFailed(_) | E::File(_) => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            E::FileNotFound(_) => StatusCode::NOT_FOUND,
            E::Protocol(_) | E::GuestLost(_) => StatusCode::BAD_GATEWAY,
            E::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
        };
        Self::new(status, error.code(), error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_json())).into_response();
        if let Some(seconds) = self.retry_after_seconds {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.is_untouched {
            response.headers_mut().insert(UNTOUCHED, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer realm=\"sandglass\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        // Metrics count refusals by code.
        response.extensions_mut().insert(Refused(self.code));
        response.extensions_mut().insert(Ours);
        response
    }
}

/// Marks a response whose body already has the server's form, whatever its status.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ours;

/// Marks a response as an error of this code.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refused(pub &'static str);
