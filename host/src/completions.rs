//! OpenAI-compatible `/chat/completions` endpoints: one request, one reply. The caller decides about retries.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::Context;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use sandglass_rlm::limits::MAX_REPLY_BYTES;
use sandglass_rlm::openai::{Failure, Reply, RetryAfter, StreamReader, completions_url, read_reply, refusal};
use sandglass_rlm::query;

use crate::traces;

/// Bytes of an error response that are read.
const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// The time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// An endpoint. Its key is in requests, and nowhere else.
#[derive(Clone)]
pub struct Completions {
    client: Client,
    url: Url,
    key: Option<String>,
}

impl Completions {
    /// The endpoint at this address, such as `https://api.example.com/v1`.
    ///
    /// # Errors
    /// What is wrong with the address or the key.
    pub fn new(base_url: &str, key: Option<&str>) -> Result<Self, String> {
        let is_fit = |url: &Url| {
            matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none()
        };
        let url = Url::parse(&completions_url(base_url)).ok().filter(is_fit);
        let url =
            url.ok_or("must be an http or https address without a key in it, such as https://api.example.com/v1")?;
        let key = key.map(str::trim).filter(|key| !key.is_empty());
        let json = HeaderValue::from_static("application/json");
        let accepted = HeaderValue::from_static("application/json, text/event-stream");
        let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, json), (ACCEPT, accepted)]);
        if let Some(key) = key {
            let mut value = HeaderValue::try_from(format!("Bearer {key}"))
                .map_err(|_| "its key has characters that no header may have")?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        use_tls();
        let client = Client::builder()
            .default_headers(headers)
            // A redirect is refused, because the key and the prompts would go to another address.
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .build()
            .map_err(|error| format!("cannot be asked: {error}"))?;
        Ok(Self {
            client,
            url,
            key: key.map(str::to_owned),
        })
    }

    /// The address of requests.
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// The host and the port of the address.
    pub(crate) fn server(&self) -> Option<(&str, u16)> {
        self.url.host_str().zip(self.url.port_or_known_default())
    }

    /// The key, which must be removed from quoted texts, because endpoints quote it.
    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    fn without_key(&self, text: String) -> String {
        query::without_key(text, self.key.as_deref())
    }

    /// Makes one attempt of at most `timeout_ms` milliseconds. `on_text` receives the text of a streamed reply as it comes.
    ///
    /// # Errors
    /// The reason why there is no reply.
    pub async fn attempt(&self, body: String, timeout_ms: f64, on_text: OnText<'_>) -> Result<Reply, Failure> {
        let within = Duration::from_secs_f64(timeout_ms.max(1.0) / 1_000.0);
        let answered = tokio::time::timeout(within, self.send(body, on_text)).await;
        answered.unwrap_or(Err(Failure::TimedOut(timeout_ms)))
    }

    async fn send(&self, body: String, on_text: OnText<'_>) -> Result<Reply, Failure> {
        let mut headers = HeaderMap::new();
        traces::inject(&Context::current(), &mut headers);
        let sent = self
            .client
            .post(self.url.clone())
            .headers(headers)
            .body(body)
            .send()
            .await;
        let response = sent.map_err(|error| Failure::Unreachable(told(error)))?;
        let status = response.status();
        let headers = response.headers().clone();
        let mut bytes = Vec::new();
        if status.is_success() {
            let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
            if kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")) {
                return self.hear(response, on_text).await;
            }
            read(response, MAX_REPLY_BYTES, &mut bytes).await?;
            let reply = read_reply(&bytes)?;
            return Ok(Reply {
                text: self.without_key(reply.text),
                ..reply
            });
        }
        // A cut body does not change the reason.
        let _ = read(response, MAX_REFUSAL_BYTES, &mut bytes).await;
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let retry_after = RetryAfter {
            seconds_or_date: header(RETRY_AFTER.as_str()),
            milliseconds: header("retry-after-ms"),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = now.as_secs_f64() * 1_000.0;
        Err(refusal(status.as_u16(), &bytes, retry_after, now_ms))
    }

    /// Reads a streamed reply as it comes.
    async fn hear(&self, mut response: Response, on_text: OnText<'_>) -> Result<Reply, Failure> {
        let mut reader = StreamReader::default();
        let mut held = String::new();
        while !reader.is_done()
            && let Some(piece) = response.chunk().await.map_err(cut)?
        {
            held = self.without_key(held + &reader.push(&piece)?);
            let kept = held.split_off(held.len() - self.begins_key(&held));
            if !held.is_empty() {
                on_text(&held);
            }
            held = kept;
        }
        let reply = reader.end()?;
        if !held.is_empty() {
            on_text(&held);
        }
        Ok(Reply {
            text: self.without_key(reply.text),
            ..reply
        })
    }

    /// The number of bytes at the end of `text` that may begin the key.
    fn begins_key(&self, text: &str) -> usize {
        let key = self.key.as_deref().unwrap_or_default();
        let mut begins = (1..key.len()).rev().filter_map(|len| key.get(..len));
        begins.find(|begin| text.ends_with(begin)).map_or(0, str::len)
    }
}

/// Chooses the cryptography of TLS for this process.
pub fn use_tls() {
    // Another part of the program may have chosen a provider already, and any provider will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Receives the new text of a reply.
pub type OnText<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// Reads the body of a response, at most `most` bytes of it.
async fn read(mut response: Response, most: usize, into: &mut Vec<u8>) -> Result<(), Failure> {
    while let Some(piece) = response.chunk().await.map_err(cut)? {
        let room = most - into.len();
        into.extend_from_slice(&piece[..piece.len().min(room)]);
        if piece.len() > room {
            let what = format!("the endpoint's reply is longer than {most} bytes");
            return Err(Failure::Final(what));
        }
    }
    Ok(())
}

fn cut(error: reqwest::Error) -> Failure {
    Failure::Broken(format!("the connection was cut: {}", told(error)))
}

/// The most telling cause. Models and Python get the cause without the address, which is the operator's.
fn told(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut innermost: &dyn std::error::Error = &error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// A random number from 0 to 1, which spreads attempts.
pub(crate) fn chance() -> f64 {
    f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_holds_no_key_and_a_key_fits_into_a_header() {
        for address in [
            "api.example",
            "ftp://api.example",
            "https://key@api.example",
            "https://:key@api.example",
            "",
        ] {
            let problem = Completions::new(address, None).err().unwrap();
            assert!(problem.contains("http or https address"), "{address}: {problem}");
        }
        let problem = Completions::new("https://api.example", Some("a\nb")).err().unwrap();
        assert!(problem.contains("characters"), "{problem}");
        let endpoint = Completions::new("https://api.example/v1/", Some(" secret-key\n")).unwrap();
        assert_eq!(endpoint.url(), "https://api.example/v1/chat/completions");
        assert_eq!(endpoint.without_key("no secret-key".to_owned()), "no [key]");
        for (text, held) in [
            ("a secret-ke", "secret-ke"),
            ("a s", "s"),
            ("secret-key", ""),
            ("ss", "s"),
            ("", ""),
        ] {
            assert_eq!(endpoint.begins_key(text), held.len(), "{text}");
        }
    }

    #[tokio::test]
    async fn who_cannot_be_reached_is_not_named() {
        // Nobody listens on the port of `tcpmux`.
        let endpoint = Completions::new("http://127.0.0.1:1/v1", None).unwrap();
        let failure = endpoint.attempt("{}".to_owned(), 60_000.0, &|_| {}).await.unwrap_err();
        let text = failure.to_string();
        assert!(matches!(failure, Failure::Unreachable(_)), "{text}");
        assert!(!text.contains("127.0.0.1") && !text.contains("/v1"), "{text}");
    }
}
