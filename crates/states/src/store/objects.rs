//! A store in object storage: S3, or a service that speaks its protocol and heeds the conditions of a `PUT`.
//!
//! Decisions: `docs/internals/server.md`.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, RetryConfig, UpdateVersion,
};

use super::remote::{FarClock, Requests, age};
use super::{Listed, Store, Version};
use crate::error::StateError;
use crate::names::{Name, Place};
use crate::seal::MOST_SEALED;

/// The time for one request, for its repetitions, and for all that one function does.
const REQUEST_TIME: &str = "15s";
const CONNECT_TIME: &str = "5s";
const RETRY_TIME: Duration = Duration::from_secs(15);
const RETRIES: usize = 3;
const WHOLE_TIME: Duration = Duration::from_secs(45);
/// The time for a listing, which has many requests.
const LISTING_TIME: Duration = Duration::from_secs(300);
/// The most characters of a reason in an error.
const MOST_REASON: usize = 200;

/// A store in object storage. Several servers may use it.
pub struct ObjectStorage {
    storage: Arc<dyn ObjectStore>,
    prefix: Path,
    requests: Requests,
    clock: FarClock,
}

impl fmt::Debug for ObjectStorage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ObjectStorage({})", self.prefix) // settings of the storage may be secrets
    }
}

impl ObjectStorage {
    /// Opens the store at `s3://BUCKET/PREFIX`, with settings of the usual variables of the environment, such as `AWS_ACCESS_KEY_ID`,
    /// `AWS_REGION` and `AWS_ENDPOINT_URL`.
    ///
    /// # Errors
    /// [`StateError::Key`] when the URL or a setting is malformed; [`StateError::Io`].
    pub fn open(url: &str) -> Result<Self, StateError> {
        let malformed = || StateError::Key("the URL of states must be s3://BUCKET/PREFIX".to_owned());
        let rest = url.strip_prefix("s3://").ok_or_else(malformed)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty()
            || !rest
                .chars()
                .all(|char| char.is_ascii_alphanumeric() || "-._/".contains(char))
        {
            return Err(malformed());
        }
        let prefix = Path::parse(prefix).map_err(|_| malformed())?;
        let builder = AmazonS3Builder::from_env();
        let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
        if endpoint.is_some_and(|endpoint| endpoint.contains('@')) {
            let problem = "AWS_ENDPOINT_URL must not have a user name or password";
            return Err(StateError::Key(problem.to_owned()));
        }
        // Without this, the client panics. Another part of the program may have chosen already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let setting = |name: &str| {
            name.parse()
                .map_err(|error| refused("the storage cannot be set up", &error))
        };
        let storage = builder
            .with_bucket_name(bucket)
            .with_disable_bulk_delete(true) // one object at a time, which every service can
            .with_config(setting("timeout")?, REQUEST_TIME)
            .with_config(setting("connect_timeout")?, CONNECT_TIME)
            .with_retry(RetryConfig {
                max_retries: RETRIES,
                retry_timeout: RETRY_TIME,
                ..RetryConfig::default()
            })
            .build()
            .map_err(|error| refused("the storage cannot be set up", &error))?;
        Self::of(Arc::new(storage), prefix)
    }

    /// A store in a storage, below a prefix.
    ///
    /// # Errors
    /// [`StateError::Io`] when no thread can be started.
    pub fn of(storage: Arc<dyn ObjectStore>, prefix: Path) -> Result<Self, StateError> {
        Ok(Self {
            storage,
            prefix,
            requests: Requests::start("object-storage")?,
            clock: FarClock::default(),
        })
    }

    fn path(&self, text: &str) -> Path {
        text.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// Runs requests to their end, or for so long.
    fn wait<T: Send + 'static>(
        &self,
        most: Duration,
        requests: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let outcome = self.requests.wait(most, requests);
        outcome.unwrap_or_else(|| Err(other("the storage took too long")))
    }

    fn get(&self, name: &Name, most: u64) -> impl Future<Output = Result<Got, Error>> + Send + 'static + use<> {
        let (storage, path) = (Arc::clone(&self.storage), self.path(&name.to_string()));
        async move {
            let got = match storage.get_opts(&path, GetOptions::default()).await {
                Err(Error::NotFound { .. }) => return Ok(Got::Missing),
                got => got?,
            };
            let e_tag = got.meta.e_tag.clone();
            let mut bytes = Vec::with_capacity(usize::try_from(got.meta.size.min(most)).unwrap_or_default());
            let mut stream = got.into_stream();
            while let Some(part) = stream.try_next().await? {
                if bytes.len() as u64 + part.len() as u64 > most {
                    return Ok(Got::TooLarge);
                }
                bytes.extend_from_slice(&part);
            }
            Ok(Got::Bytes(bytes, e_tag))
        }
    }

    fn put(&self, name: &Name, bytes: &[u8], mode: PutMode) -> Result<Option<String>, Error> {
        let (storage, path) = (Arc::clone(&self.storage), self.path(&name.to_string()));
        let bytes = Bytes::copy_from_slice(bytes);
        let put = self.wait(WHOLE_TIME, async move {
            storage.put_opts(&path, bytes.into(), PutOptions::from(mode)).await
        });
        put.map(|put| put.e_tag)
    }

    fn head(&self, name: &Name) -> Result<Option<ObjectMeta>, Error> {
        let (storage, path) = (Arc::clone(&self.storage), self.path(&name.to_string()));
        match self.wait(WHOLE_TIME, async move { storage.head(&path).await }) {
            Err(Error::NotFound { .. }) => Ok(None),
            head => head.map(Some),
        }
    }

    /// The time of the storage now, in milliseconds since 1970. Its clock may differ from the one here.
    fn now_ms(&self) -> Result<i64, Error> {
        let here = Instant::now();
        self.put(&Name::Clock, b"now", PutMode::Overwrite)?;
        let head = self.head(&Name::Clock)?.ok_or_else(|| other("the clock is gone"))?;
        let now = head.last_modified.timestamp_millis();
        self.clock.note(now, here);
        Ok(now)
    }
}

/// Bytes with their ETag.
type Tagged = (Vec<u8>, Option<String>);

/// The bytes under a name.
enum Got {
    Missing,
    TooLarge,
    Bytes(Vec<u8>, Option<String>),
}

impl Got {
    fn bytes(self, name: &Name) -> Result<Option<Tagged>, StateError> {
        match self {
            Self::Missing => Ok(None),
            Self::TooLarge => Err(StateError::Damaged(format!("{name} is too large"))),
            Self::Bytes(bytes, e_tag) => Ok(Some((bytes, e_tag))),
        }
    }
}

impl Store for ObjectStorage {
    fn read_version(&self, name: &Name, most: u64) -> Result<Option<(Vec<u8>, Version)>, StateError> {
        let got = self.wait(WHOLE_TIME, self.get(name, most));
        let got = got.map_err(|error| refused(&format!("{name} cannot be read"), &error))?;
        let version = |e_tag: Option<String>| e_tag.map(Version).ok_or_else(|| no_version(name));
        let found = got.bytes(name)?;
        found.map(|(bytes, e_tag)| Ok((bytes, version(e_tag)?))).transpose()
    }

    fn swap(&self, name: &Name, bytes: &[u8], seen: Option<&Version>) -> Result<Option<Version>, StateError> {
        let mode = seen.map_or(PutMode::Create, |seen| {
            PutMode::Update(UpdateVersion {
                e_tag: Some(seen.0.clone()),
                version: None,
            })
        });
        let error = match self.put(name, bytes, mode) {
            Ok(e_tag) => return e_tag.map(|e_tag| Some(Version(e_tag))).ok_or_else(|| no_version(name)),
            Err(error) => error,
        };
        // The answer to an earlier attempt may have been lost. These bytes were never there before.
        match self.read_version(name, MOST_SEALED) {
            Ok(Some((there, version))) if there == bytes => return Ok(Some(version)),
            _ => {}
        }
        match error {
            Error::AlreadyExists { .. } | Error::Precondition { .. } => Ok(None),
            error => Err(refused(&format!("{name} cannot be written"), &error)),
        }
    }

    fn read_all(&self, names: &[Name], most: u64) -> Vec<Result<Option<Vec<u8>>, StateError>> {
        let all: Vec<_> = names.iter().map(|name| self.get(name, most)).collect();
        let got = self.wait(WHOLE_TIME, async move { Ok(join_all(all).await) });
        let fail = |name: &Name, error: &Error| Err(refused(&format!("{name} cannot be read"), error));
        match got {
            Err(error) => names.iter().map(|name| fail(name, &error)).collect(),
            Ok(got) => names
                .iter()
                .zip(got)
                .map(|(name, got)| match got {
                    Ok(got) => Ok(got.bytes(name)?.map(|(bytes, _)| bytes)),
                    Err(error) => fail(name, &error),
                })
                .collect(),
        }
    }

    fn write(&self, name: &Name, bytes: &[u8]) -> Result<(), StateError> {
        let put = self.put(name, bytes, PutMode::Overwrite);
        put.map(drop)
            .map_err(|error| refused(&format!("{name} cannot be written"), &error))
    }

    fn touch(&self, name: &Name, bytes: &[u8]) -> Result<bool, StateError> {
        let head = self.head(name);
        let head = head.map_err(|error| refused(&format!("{name} cannot be read"), &error))?;
        let Some(head) = head else { return Ok(false) };
        if !self.clock.is_young(head.last_modified.timestamp_millis()) {
            self.write(name, bytes)?;
        }
        Ok(true)
    }

    fn remove(&self, name: &Name) -> Result<(), StateError> {
        let (storage, path) = (Arc::clone(&self.storage), self.path(&name.to_string()));
        match self.wait(WHOLE_TIME, async move { storage.delete(&path).await }) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(refused(&format!("{name} cannot be removed"), &error)),
        }
    }

    fn list(&self, place: Place) -> Result<Vec<Listed>, StateError> {
        let fail = |error: Error| refused(&format!("{place} cannot be listed"), &error);
        let now = self.now_ms().map_err(fail)?;
        let (storage, path) = (Arc::clone(&self.storage), self.path(&place.to_string()));
        let below = path.clone();
        let listed = self.wait(LISTING_TIME, async move {
            storage.list(Some(&below)).try_collect::<Vec<_>>().await
        });
        let name = |listed: ObjectMeta| {
            let rest: Vec<_> = listed.location.prefix_match(&path)?.collect();
            let rest: Vec<_> = rest.iter().map(AsRef::<str>::as_ref).collect();
            let name = place.name(&rest.join("/"))?;
            let age = age(now, listed.last_modified.timestamp_millis());
            Some(Listed { name, age })
        };
        Ok(listed.map_err(fail)?.into_iter().filter_map(name).collect())
    }
}

fn other(problem: &'static str) -> Error {
    Error::Generic {
        store: "",
        source: problem.into(),
    }
}

fn no_version(name: &Name) -> StateError {
    StateError::Key(format!(
        "the object storage tells no ETag of {name}, so states cannot be kept apart there"
    ))
}

/// The error for a refusal of the storage. Its answers have parts of requests, so only the code is told.
fn refused(what: &str, error: &Error) -> StateError {
    let text = error.to_string();
    let code = text
        .split_once("<Code>")
        .and_then(|(_, rest)| Some(rest.split_once("</Code>")?.0))
        .filter(|code| code.chars().all(|char| char.is_ascii_alphanumeric()));
    let reason = match (error, code) {
        (_, Some(code)) => format!("the storage answered {code}"),
        (Error::PermissionDenied { .. } | Error::Unauthenticated { .. }, None) => {
            "the storage refused the credentials".to_owned()
        }
        (Error::Generic { source, .. }, None) => {
            let text = source.to_string();
            let first = text.split(['<', '\n']).next().unwrap_or_default();
            first.trim().chars().take(MOST_REASON).collect()
        }
        (_, None) => "the storage refused it".to_owned(),
    };
    StateError::io(what, io::Error::other(reason))
}
