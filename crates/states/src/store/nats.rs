//! A store in key-value buckets of NATS JetStream, on one server of NATS or on a cluster.
//!
//! There are two buckets, so that leases and refs never wait behind large objects. A name is a key. The version of its bytes is the number
//! of its message, so the servers of NATS compare versions.
//!
//! Decisions: `docs/internals/server.md`.

mod address;
mod bucket;
mod problem;

use std::fmt;
use std::fs;
use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

use async_nats::jetstream::context::ContextBuilder;
use async_nats::{ConnectError, ConnectErrorKind, ConnectOptions};
use bytes::Bytes;
use futures_util::{StreamExt, stream};

use super::remote::Requests;
use super::{Listed, Listener, Store, Version};
use crate::error::StateError;
use crate::names::{Name, Place};
use address::Address;
use bucket::{Bucket, Found, MESSAGE_BYTES};
use problem::{Problem, Until};

/// The time for a connection, and for an answer.
const CONNECT_TIME: Duration = Duration::from_secs(5);
const ANSWER_TIME: Duration = Duration::from_secs(4);
/// The time in which one function tries again, and the same for a listing. A cluster elects a leader within it.
const WHOLE_TIME: Duration = Duration::from_secs(15);
const LISTING_TIME: Duration = Duration::from_secs(60);
/// The time for all requests of one function, the last attempt included.
const MORE_TIME: Duration = Duration::from_secs(60);
/// The first pause between two attempts to connect again, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const CONNECT_PAUSE: Duration = Duration::from_secs(2);
/// Names that are read at once.
const AT_ONCE: usize = 16;
/// The bytes that a message takes beside its value.
const ENVELOPE_BYTES: usize = 16 << 10;

/// A store in NATS JetStream. Several servers may use it.
pub struct NatsStore {
    requests: Requests,
    /// The time in which one function tries again.
    whole_time: Duration,
    /// Leases, refs and other small names.
    names: Bucket,
    objects: Bucket,
}

impl fmt::Debug for NatsStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("NatsStore") // the connection knows secrets
    }
}

impl NatsStore {
    /// Opens the store at `nats://HOST[:PORT][,nats://HOST2…][/BUCKET]`. The buckets are `BUCKET` and `BUCKET-objects`; missing ones are
    /// made. Each message is on at least `replicas` servers of NATS. `credentials` is a file that `nsc` makes, with a JWT and a seed.
    ///
    /// # Errors
    /// [`StateError::Key`] when the URL is malformed; [`StateError::Io`].
    pub fn open(url: &str, credentials: Option<&Path>, replicas: usize) -> Result<Self, StateError> {
        Self::open_within(WHOLE_TIME, url, credentials, replicas)
    }

    /// As [`NatsStore::open`]. Each function tries again for so long, in place of 15 seconds.
    ///
    /// # Errors
    /// As there.
    pub fn open_within(
        whole_time: Duration,
        url: &str,
        credentials: Option<&Path>,
        replicas: usize,
    ) -> Result<Self, StateError> {
        let address = Address::parse(url)?;
        let credentials = credentials.map(|path| {
            let shown = path.display();
            fs::read_to_string(path)
                .map_err(|error| StateError::io(format!("the credentials of NATS in {shown} cannot be read"), error))
        });
        let credentials = credentials.transpose()?;
        // Another part of the program may have chosen already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let requests = Requests::start("nats")?;
        let shown = address.shown();
        let what = format!("NATS at {shown} cannot be used");
        let opened = requests.wait(
            whole_time + MORE_TIME,
            connect(whole_time, address, credentials, replicas),
        );
        let [names, objects] = ended(&what, opened)?;
        Ok(Self {
            requests,
            whole_time,
            names,
            objects,
        })
    }

    /// Returns true if all servers of such a URL are on this machine. It asks none of them.
    ///
    /// # Errors
    /// [`StateError::Key`] when the URL is malformed.
    pub fn is_local(url: &str) -> Result<bool, StateError> {
        Ok(Address::parse(url)?.is_local())
    }

    fn bucket(&self, name: &Name) -> &Bucket {
        match name {
            Name::Object(..) => &self.objects,
            _ => &self.names,
        }
    }

    /// Runs requests on the bucket of a name, which they get with the name's key.
    fn run<T: Send + 'static, F>(
        &self,
        name: &Name,
        what: &str,
        requests: impl FnOnce(Bucket, String, Until) -> F,
    ) -> Result<T, StateError>
    where
        F: Future<Output = Result<T, Problem>> + Send + 'static,
    {
        let requests = requests(self.bucket(name).clone(), key(name), Until::after(self.whole_time));
        ended(
            &format!("{name} cannot be {what}"),
            self.requests.wait(self.whole_time + MORE_TIME, requests),
        )
    }
}

async fn connect(
    whole_time: Duration,
    address: Address,
    credentials: Option<String>,
    replicas: usize,
) -> Result<[Bucket; 2], Problem> {
    let pause = |attempt| {
        let attempt = u32::try_from(attempt).unwrap_or(u32::MAX);
        CONNECT_PAUSE.min(FIRST_PAUSE.saturating_mul(attempt))
    };
    let mut options = ConnectOptions::new()
        .name("sandglass")
        .connection_timeout(CONNECT_TIME)
        .reconnect_delay_callback(pause);
    if let Some(text) = credentials {
        let malformed = |_| Problem::lasting("the file of credentials has no JWT and seed");
        options = options.credentials(&text).map_err(malformed)?;
    }
    if let Some((user, password)) = address.login {
        options = options.user_and_password(user, password);
    }
    let until = Until::after(whole_time);
    let mut waits = until;
    let client = loop {
        match options.clone().connect(&address.servers).await {
            Ok(client) => break client,
            // NATS may start at this moment as well.
            Err(error) => waits.wait(refused(&error)).await?,
        }
    };
    let least = MESSAGE_BYTES + ENVELOPE_BYTES;
    if client.max_payload() < least {
        return Err(Problem::lasting(format!(
            "its max_payload is {} bytes, and {least} are needed; the default is 1 MiB",
            client.max_payload()
        )));
    }
    let context = ContextBuilder::new()
        .timeout(ANSWER_TIME)
        .ack_timeout(ANSWER_TIME)
        .build(client);
    let names = Bucket::open(&context, &address.bucket, replicas, until).await?;
    let objects = Bucket::open(&context, &format!("{}-objects", address.bucket), replicas, until).await?;
    Ok([names, objects])
}

/// The problem of an attempt to connect.
fn refused(error: &ConnectError) -> Problem {
    match error.kind() {
        ConnectErrorKind::Io | ConnectErrorKind::TimedOut | ConnectErrorKind::Dns => Problem::passing(error),
        _ => Problem::lasting(error),
    }
}

/// The outcome of requests.
fn ended<T>(what: &str, outcome: Option<Result<T, Problem>>) -> Result<T, StateError> {
    match outcome {
        Some(Ok(value)) => Ok(value),
        Some(Err(problem)) => Err(StateError::io(what, io::Error::other(problem.why))),
        None => Err(StateError::io(
            what,
            io::Error::new(io::ErrorKind::TimedOut, "NATS did not answer in time"),
        )),
    }
}

/// The key of a name. Its pieces are tokens of a subject, so that a place is a filter.
fn key(name: &Name) -> String {
    name.to_string().replace('/', ".")
}

/// The name that servers tell under a subject; `None` if it is none.
fn name_of_told(subject: &str) -> Option<Name> {
    let mut pieces = subject.rsplit('.');
    let (server, place) = (pieces.next()?, pieces.next()?);
    (place == "loads").then(|| server.parse().ok().map(Name::Load))?
}

fn bytes_of(name: &Name, found: Found) -> Result<Option<(Vec<u8>, Version)>, StateError> {
    match found {
        Found::Missing => Ok(None),
        Found::TooLarge => Err(StateError::Damaged(format!("{name} is too large"))),
        Found::Incomplete => Err(StateError::Damaged(format!("{name} is cut off"))),
        Found::Bytes(bytes, sequence) => Ok(Some((bytes, Version(sequence.to_string())))),
    }
}

impl Store for NatsStore {
    fn read_version(&self, name: &Name, most: u64) -> Result<Option<(Vec<u8>, Version)>, StateError> {
        let found = self.run(name, "read", |bucket, key, until| async move {
            bucket.read(&key, most, until).await
        })?;
        bytes_of(name, found)
    }

    fn swap(&self, name: &Name, bytes: &[u8], seen: Option<&Version>) -> Result<Option<Version>, StateError> {
        let seen = match seen.map(|seen| seen.0.parse()) {
            None => 0,
            Some(Ok(sequence)) => sequence,
            Some(Err(_)) => return Ok(None), // no version of this store
        };
        let bytes = Bytes::copy_from_slice(bytes);
        let swapped = self.run(name, "written", |bucket, key, until| async move {
            bucket.swap(&key, bytes, seen, until).await
        })?;
        Ok(swapped.map(|sequence| Version(sequence.to_string())))
    }

    fn read_all(&self, names: &[Name], most: u64) -> Vec<Result<Option<Vec<u8>>, StateError>> {
        let until = Until::after(self.whole_time);
        let all: Vec<_> = names
            .iter()
            .map(|name| (self.bucket(name).clone(), key(name)))
            .collect();
        let read = self.requests.wait(self.whole_time + MORE_TIME, async move {
            let read = stream::iter(all).map(|(bucket, key)| async move { bucket.read(&key, most, until).await });
            read.buffered(AT_ONCE).collect::<Vec<_>>().await
        });
        let read = read.map_or_else(
            || names.iter().map(|_| None).collect::<Vec<_>>(),
            |read| read.into_iter().map(Some).collect(),
        );
        let read = names.iter().zip(read).map(|(name, read)| {
            let found = ended(&format!("{name} cannot be read"), read)?;
            Ok(bytes_of(name, found)?.map(|(bytes, _)| bytes))
        });
        read.collect()
    }

    fn write(&self, name: &Name, bytes: &[u8]) -> Result<(), StateError> {
        let bytes = Bytes::copy_from_slice(bytes);
        self.run(name, "written", |bucket, key, until| async move {
            bucket.write(&key, bytes, until).await
        })
    }

    fn touch(&self, name: &Name, bytes: &[u8]) -> Result<bool, StateError> {
        let bytes = Bytes::copy_from_slice(bytes);
        self.run(name, "touched", |bucket, key, until| async move {
            bucket.touch(&key, bytes, until).await
        })
    }

    fn remove(&self, name: &Name) -> Result<(), StateError> {
        self.run(name, "removed", |bucket, key, until| async move {
            bucket.remove(&key, until).await
        })
    }

    fn tell(&self, name: &Name, bytes: &[u8]) -> Result<bool, StateError> {
        let bytes = Bytes::copy_from_slice(bytes);
        self.run(name, "told", |bucket, key, until| async move {
            bucket.tell(&key, bytes, until).await
        })?;
        Ok(true)
    }

    fn listen(&self, mut heard: Listener) {
        let bucket = self.names.clone();
        self.requests.begin(async move {
            loop {
                let Ok(mut told) = bucket.listen().await else {
                    tokio::time::sleep(CONNECT_PAUSE).await;
                    continue;
                };
                // The client subscribes again after a lost connection by itself.
                while let Some(message) = told.next().await {
                    let name = name_of_told(message.subject.as_str());
                    if !heard(name, &message.payload) {
                        return;
                    }
                }
                tokio::time::sleep(CONNECT_PAUSE).await;
            }
        });
    }

    fn list(&self, place: Place) -> Result<Vec<Listed>, StateError> {
        let bucket = match place {
            Place::Objects(_) => &self.objects,
            _ => &self.names,
        };
        let (bucket, below) = (bucket.clone(), place.to_string().replace('/', "."));
        let until = Until::after(LISTING_TIME);
        let listed = self.requests.wait(
            LISTING_TIME + MORE_TIME,
            async move { bucket.list(&below, until).await },
        );
        let listed = ended(&format!("{place} cannot be listed"), listed)?;
        let name = |(key, age): (String, Duration)| {
            let name = place.name(&key.replace('.', "/"))?;
            Some(Listed { name, age })
        };
        Ok(listed.into_iter().filter_map(name).collect())
    }
}
