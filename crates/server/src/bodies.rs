//! Request bodies, read within limits and deadlines. Long JSON is decoded on threads that serve no requests.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use super::errors::{ApiError, Ours};
use super::quotas::{Account, Held};

/// The size from which a body is decoded or encoded on a thread of its own, in bytes.
const LONG: usize = 64 << 10;

/// The limits of bodies.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// The largest body, in bytes.
    pub most_bytes: usize,
    /// The time from the head to the body's end.
    pub total: Duration,
    /// The longest pause between two pieces of a body.
    pub silence: Duration,
}

/// A body with its part of the quota.
#[derive(Debug)]
pub struct Taken<T> {
    /// The body, or the value read from it.
    pub value: T,
    /// The body's length, in bytes.
    pub size: usize,
    /// The part of the quota. Keep it as long as the value, or anything made from the value.
    pub held: Vec<Held>,
}

/// Reads a whole body.
///
/// # Errors
/// 413 when the body is too large, 408 when it is too slow, 429 when the quota is used up, 400 when the body is cut off.
pub async fn take(
    account: &Account,
    limits: BodyLimits,
    headers: &HeaderMap,
    mut body: Body,
) -> Result<Taken<Vec<u8>>, ApiError> {
    let too_large = || {
        let message = format!(
            "a body may have {} bytes, and this one has more; nothing was done",
            limits.most_bytes
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let declared = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|bytes| bytes > limits.most_bytes) {
        return Err(too_large());
    }
    // A declared length is not trusted: only received bytes take memory and quota.
    let (mut bytes, mut held) = (Vec::new(), Vec::new());
    let mut reserved = 0_usize;
    let end = Instant::now() + limits.total;
    loop {
        let silent = Instant::now() + limits.silence;
        let frame = match timeout_at(end.min(silent), body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(None) => {
                let size = bytes.len();
                return Ok(Taken {
                    value: bytes,
                    size,
                    held,
                });
            }
            Ok(Some(Err(error))) => return Err(ApiError::invalid(format!("the body could not be read: {error}"))),
            Err(_) => {
                let message = "the body did not come in time; nothing was done";
                return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message));
            }
        };
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limits.most_bytes {
            return Err(too_large());
        }
        let needed = bytes.len() + data.len();
        if needed > reserved {
            // The steps grow, so that there are few.
            let step = (needed - reserved).max(needed).min(limits.most_bytes - reserved);
            let step = match declared {
                Some(declared) if declared >= needed => step.min(declared - reserved),
                _ => step,
            };
            held.push(account.body(step)?);
            reserved += step;
            bytes.reserve_exact(reserved - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
}

/// Reads a body of JSON.
///
/// # Errors
/// As [`take`]. Also 415 for another media type, and 400 for JSON of another shape.
pub async fn take_json<T: DeserializeOwned + Send + 'static>(
    account: &Account,
    limits: BodyLimits,
    headers: &HeaderMap,
    body: Body,
) -> Result<Taken<T>, ApiError> {
    if let Some(media_type) = media_type(headers).filter(|media_type| media_type != "application/json") {
        let message = format!("the body must be JSON (Content-Type: application/json), not {media_type}");
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            message,
        ));
    }
    let Taken {
        value: bytes,
        size,
        held,
    } = take(account, limits, headers, body).await?;
    let decode = move || {
        // A missing body means an empty object.
        let bytes = if bytes.is_empty() { b"{}" } else { bytes.as_slice() };
        serde_json::from_slice(bytes)
            .map_err(|error| ApiError::invalid(format!("the body is not what is asked for: {error}")))
    };
    let value = sized(size, decode).await??;
    Ok(Taken { value, size, held })
}

/// Runs work on `size` bytes. Long work runs on a thread that serves no requests.
///
/// # Errors
/// The work panicked.
pub async fn sized<T: Send + 'static>(size: usize, work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    if size > LONG {
        off_the_workers(work).await
    } else {
        Ok(work())
    }
}

/// Runs long work on a thread that serves no requests.
///
/// # Errors
/// The work panicked.
pub async fn off_the_workers<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| ApiError::internal("work on the request ended unexpectedly; this is a bug"))
}

/// A response of JSON. `size` is the approximate length of its text, in bytes.
///
/// # Errors
/// The value cannot be written as JSON.
pub async fn json<T: Serialize + Send + 'static>(
    status: StatusCode,
    size: usize,
    value: T,
) -> Result<Response, ApiError> {
    let written = sized(size, move || serde_json::to_vec(&value)).await?;
    let bytes =
        written.map_err(|error| ApiError::internal(format!("the result cannot be written as JSON: {error}")))?;
    Ok(written_json(status, bytes))
}

/// A response of this server with a body that is JSON already.
pub fn written_json(status: StatusCode, body: impl Into<Body>) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    let mut response = (status, [(header::CONTENT_TYPE, content_type)], body.into()).into_response();
    response.extensions_mut().insert(Ours);
    response
}

/// The media type of a request's body, without parameters.
pub fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let (media_type, _) = value.split_once(';').unwrap_or((value, ""));
    Some(media_type.trim().to_ascii_lowercase())
}
