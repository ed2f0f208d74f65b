//! One bucket, and the requests for it.
//!
//! A key has one message. Bytes that are too long for a message begin there, and go on in *parts*: messages below the key, under a random
//! number of this write. The parts are written first. So a key names all of its parts, or keeps its earlier bytes.
//!
//! Decisions: `docs/internals/server.md`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Subscriber;
use async_nats::connection::State;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::{self, Config, DiscardPolicy, LastRawMessageErrorKind, Stream};
use async_nats::jetstream::{Context, ErrorCode};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream as streams};
use tokio::time::{sleep, timeout};

use super::problem::{Problem, Until};
use crate::store::remote::{FarClock, age};

/// The most bytes of one message. Servers take a MiB by default.
pub(super) const MESSAGE_BYTES: usize = 256 << 10;
/// The most parts of a value, which is more than the longest sealed text needs.
const MOST_PARTS: usize = 64;
/// Parts that are read or written at once.
const PARTS_AT_ONCE: usize = 4;
/// The header that tells of the parts: their number of the write, how many there are, and the bytes in all.
const PARTS: &str = "Sandglass-Parts";
/// The beginning of the last but one piece of a part's key. No id begins so.
const PART: char = 'p';
/// The age from which parts that no key names were left behind by a server that was killed, or by an earlier write.
const LEFT_BEHIND: Duration = Duration::from_secs(3600);
/// Repetitions of a read whose key was written meanwhile.
const READS: usize = 3;
/// The key whose message tells the time of the servers, and the place up to which a listing is complete.
const CLOCK: &str = "clock";
/// The most names in one answer of a listing, and the time for it.
const LISTED_AT_ONCE: usize = 1000;
const LISTED_WITHIN: Duration = Duration::from_secs(5);
/// The time without use after which the servers forget a listing.
const FORGET_LISTING: Duration = Duration::from_secs(30);
/// The pause before the search for a connection.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A key-value bucket: a stream of JetStream whose keys have one message each.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    context: Context,
    stream: Stream<()>,
    /// The beginning of the subjects of all keys.
    subjects: String,
    /// The beginning of the subjects of messages that nothing keeps.
    told: String,
    clock: Arc<FarClock>,
}

/// The bytes under a key.
pub(super) enum Found {
    Missing,
    /// There are more than may be read.
    TooLarge,
    /// Parts are missing.
    Incomplete,
    /// The bytes, and the number of their message.
    Bytes(Vec<u8>, u64),
}

/// The parts of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Parts {
    write: String,
    count: usize,
    bytes: u64,
}

impl Parts {
    /// The parts that a message names. `None` for a value of one message, or for a header that nobody here wrote.
    fn of(message: &StreamMessage) -> Option<Self> {
        let mut words = message.headers.get(PARTS)?.as_str().split(' ');
        let (write, count, bytes) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let is_ours = write.len() == 16 && write.bytes().all(|byte| byte.is_ascii_hexdigit()) && count <= MOST_PARTS;
        is_ours.then(|| Self {
            write: write.to_owned(),
            count,
            bytes,
        })
    }

    fn key(&self, key: &str, number: usize) -> String {
        format!("{key}.{PART}{}.{number}", self.write)
    }
}

/// The key whose part this is, and the number of its write.
fn as_part(key: &str) -> Option<(&str, &str)> {
    let (rest, _) = key.rsplit_once('.')?;
    let (key, write) = rest.rsplit_once('.')?;
    Some((key, write.strip_prefix(PART)?))
}

impl Bucket {
    /// Opens a bucket, which is made if it is missing. Each message is to be on so many servers. A bucket that has more keeps them.
    pub(super) async fn open(context: &Context, name: &str, replicas: usize, until: Until) -> Result<Self, Problem> {
        let mut until = until;
        while let Err(problem) = Self::make(context, name, replicas).await {
            until.wait(problem).await?;
        }
        let stream = context.get_stream_no_info(format!("KV_{name}")).await;
        Ok(Self {
            stream: stream.map_err(|error| Problem::lasting(&error))?,
            context: context.clone(),
            subjects: format!("$KV.{name}."),
            told: format!("sandglass.told.{name}."),
            clock: Arc::default(),
        })
    }

    async fn make(context: &Context, name: &str, replicas: usize) -> Result<(), Problem> {
        let found = match context.get_stream(format!("KV_{name}")).await {
            Ok(found) => found,
            Err(error) => {
                return match error.kind() {
                    GetStreamErrorKind::JetStream(answer) if answer.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                        Self::create(context, name, replicas).await
                    }
                    GetStreamErrorKind::JetStream(answer) => Err(Problem::answered(&answer)),
                    _ => Err(Problem::passing(&error)),
                };
            }
        };
        let mut config = found.cached_info().config.clone();
        let keeps_all = config.max_messages_per_subject == 1 && config.max_age.is_zero() && config.max_bytes <= 0;
        if !keeps_all || config.deny_purge || config.max_messages > 0 {
            return Err(Problem::lasting(format!(
                "the bucket {name} was made with a history, an age or a size, so it would lose states: give the name of another one"
            )));
        }
        if config.num_replicas < replicas {
            config.num_replicas = replicas;
            let updated = context.update_stream(config).await;
            updated.map_err(|error| created(&error))?;
        }
        Ok(())
    }

    async fn create(context: &Context, name: &str, replicas: usize) -> Result<(), Problem> {
        let config = Config {
            name: format!("KV_{name}"),
            description: Some("states of Sandglass".to_owned()),
            subjects: vec![format!("$KV.{name}.>")],
            max_messages_per_subject: 1,
            discard: DiscardPolicy::New,
            storage: stream::StorageType::File,
            num_replicas: replicas,
            // Only the leader has the newest bytes for sure.
            allow_direct: false,
            ..Config::default()
        };
        match context.create_stream(config).await {
            Ok(_) => Ok(()),
            Err(error) => match created(&error) {
                // Another server has made it just now.
                _ if context.get_stream(format!("KV_{name}")).await.is_ok() => Ok(()),
                problem => Err(problem),
            },
        }
    }

    fn subject(&self, key: &str) -> String {
        format!("{}{key}", self.subjects)
    }

    /// Waits for a connection. Without one, a request would be sent late, when nobody waits for it any more.
    async fn connected(&self, until: Until) -> Result<(), Problem> {
        let client = self.context.client();
        let found = timeout(until.left(), async {
            while client.connection_state() != State::Connected {
                sleep(LOOK_AGAIN).await;
            }
        });
        found
            .await
            .map_err(|_| Problem::passing("there is no connection to a server of NATS"))
    }

    /// The message of a key.
    async fn last(&self, key: &str, until: Until) -> Result<Option<StreamMessage>, Problem> {
        let (subject, mut until) = (self.subject(key), until);
        loop {
            self.connected(until).await?;
            let problem = match self.stream.get_last_raw_message_by_subject(&subject).await {
                Ok(message) => return Ok(Some(message)),
                Err(error) => match error.kind() {
                    LastRawMessageErrorKind::NoMessageFound => return Ok(None),
                    LastRawMessageErrorKind::JetStream(answer) => Problem::answered(&answer),
                    _ => Problem::of(&error),
                },
            };
            until.wait(problem).await?;
        }
    }

    /// The bytes of a key, at most `most`.
    pub(super) async fn read(&self, key: &str, most: u64, until: Until) -> Result<Found, Problem> {
        for _ in 0..READS {
            let Some(message) = self.last(key, until).await? else {
                return Ok(Found::Missing);
            };
            let Some(parts) = Parts::of(&message) else {
                return Ok(match message.payload.len() as u64 <= most {
                    true => Found::Bytes(message.payload.to_vec(), message.sequence),
                    false => Found::TooLarge,
                });
            };
            if parts.bytes > most {
                return Ok(Found::TooLarge);
            }
            let rest = streams::iter(0..parts.count).map(|number| {
                let key = parts.key(key, number);
                async move { self.last(&key, until).await }
            });
            let rest: Vec<_> = rest.buffered(PARTS_AT_ONCE).try_collect().await?;
            let rest: Option<Vec<_>> = rest.into_iter().collect();
            let Some(rest) = rest else { continue }; // removed or written meanwhile
            let mut bytes = message.payload.to_vec();
            rest.iter().for_each(|part| bytes.extend_from_slice(&part.payload));
            if bytes.len() as u64 == parts.bytes {
                return Ok(Found::Bytes(bytes, message.sequence));
            }
        }
        Ok(Found::Incomplete)
    }

    /// Sends a message once. Returns its number.
    async fn publish(&self, key: &str, message: PublishMessage, until: Until) -> Result<u64, Problem> {
        self.connected(until).await?;
        let sent = self.context.send_publish(self.subject(key), message).await;
        let sent = sent.map_err(|error| Problem::of(&error))?;
        let answered = sent.await.map_err(|error| Problem::of_publish(&error))?;
        Ok(answered.sequence)
    }

    /// Sends a message until it is there.
    async fn publish_at_last(&self, key: &str, message: PublishMessage, until: Until) -> Result<u64, Problem> {
        let mut until = until;
        loop {
            match self.publish(key, message.clone(), until).await {
                Ok(sequence) => return Ok(sequence),
                Err(problem) => until.wait(problem).await?,
            }
        }
    }

    /// Writes the parts of a value. Returns the message of its key.
    async fn begin(&self, key: &str, mut bytes: Bytes, until: Until) -> Result<PublishMessage, Problem> {
        let length = bytes.len();
        let first = bytes.split_to(length.min(MESSAGE_BYTES));
        let message = PublishMessage::build().payload(first);
        if bytes.is_empty() {
            return Ok(message);
        }
        let parts = Parts {
            write: random()?,
            count: bytes.len().div_ceil(MESSAGE_BYTES),
            bytes: length as u64,
        };
        if parts.count > MOST_PARTS {
            return Err(Problem::lasting("it is too large"));
        }
        let written = streams::iter(0..parts.count).map(|number| {
            let from = number * MESSAGE_BYTES;
            let part = bytes.slice(from..bytes.len().min(from + MESSAGE_BYTES));
            let key = parts.key(key, number);
            async move {
                let message = PublishMessage::build().payload(part);
                self.publish_at_last(&key, message, until).await
            }
        });
        written.buffered(PARTS_AT_ONCE).try_collect::<Vec<_>>().await?;
        let header = format!("{} {} {}", parts.write, parts.count, parts.bytes);
        Ok(message.header(PARTS, header.as_str()))
    }

    /// Puts bytes under a key.
    pub(super) async fn write(&self, key: &str, bytes: Bytes, until: Until) -> Result<(), Problem> {
        let message = self.begin(key, bytes, until).await?;
        self.publish_at_last(key, message, until).await.map(drop)
    }

    /// Puts bytes under a key whose message has this number; 0 if it has none. Returns the number of the new message; `None` if another
    /// message was there.
    pub(super) async fn swap(&self, key: &str, bytes: Bytes, seen: u64, until: Until) -> Result<Option<u64>, Problem> {
        let message = self.begin(key, bytes, until).await?;
        // The answer to an attempt may be lost. Then the servers know the message by its id, and give the same answer again.
        let message = message.message_id(random()?).expected_last_subject_sequence(seen);
        let mut until = until;
        loop {
            match self.publish(key, message.clone(), until).await {
                Ok(sequence) => return Ok(Some(sequence)),
                Err(problem) if problem.is_conflict => return Ok(None),
                Err(problem) => until.wait(problem).await?,
            }
        }
    }

    /// Sends a message that nothing keeps, to all that listen now.
    pub(super) async fn tell(&self, key: &str, bytes: Bytes, until: Until) -> Result<(), Problem> {
        self.connected(until).await?;
        let sent = self
            .context
            .client()
            .publish(format!("{}{key}", self.told), bytes)
            .await;
        sent.map_err(Problem::passing)
    }

    /// The messages of [`Bucket::tell`], from now on.
    pub(super) async fn listen(&self) -> Result<Subscriber, Problem> {
        let subscribed = self.context.client().subscribe(format!("{}>", self.told)).await;
        subscribed.map_err(Problem::passing)
    }

    /// Makes the bytes of a key young again. They are `bytes`. Returns false if there are none.
    pub(super) async fn touch(&self, key: &str, bytes: Bytes, until: Until) -> Result<bool, Problem> {
        let Some(message) = self.last(key, until).await? else {
            return Ok(false);
        };
        if !self.clock.is_young(ms(message.time.unix_timestamp_nanos())) {
            self.write(key, bytes, until).await?;
        }
        Ok(true)
    }

    /// Removes the messages of a key, and its parts. A request that is late removes nothing that was written since.
    pub(super) async fn remove(&self, key: &str, until: Until) -> Result<(), Problem> {
        let mut waits = until;
        let last = loop {
            self.connected(until).await?;
            match self.stream.get_info().await {
                Ok(info) => break info.state.last_sequence,
                Err(error) => waits.wait(Problem::of(&error)).await?,
            }
        };
        let subject = self.subject(key);
        self.purge(&subject, Some(last), until).await?;
        self.purge(&format!("{subject}.>"), Some(last), until).await
    }

    /// Removes the messages of some subjects, up to this number or all.
    async fn purge(&self, subjects: &str, last: Option<u64>, until: Until) -> Result<(), Problem> {
        let mut until = until;
        loop {
            self.connected(until).await?;
            let purge = self.stream.purge().filter(subjects);
            let purged_them = match last {
                Some(last) => purge.sequence(last.saturating_add(1)).await,
                None => purge.await,
            };
            match purged_them {
                Ok(_) => return Ok(()),
                Err(error) => until.wait(purged(&error)).await?,
            }
        }
    }

    /// The keys below `place` with their ages. Every key that was there before the call, and is not removed, is among them.
    pub(super) async fn list(&self, place: &str, until: Until) -> Result<Vec<(String, Duration)>, Problem> {
        let mut until = until;
        loop {
            match self.listed(place, until).await {
                Ok(listed) => return Ok(listed),
                Err(problem) => until.wait(problem).await?,
            }
        }
    }

    async fn listed(&self, place: &str, until: Until) -> Result<Vec<(String, Duration)>, Problem> {
        let (here, below) = (Instant::now(), format!("{}.", self.subject(place)));
        // A replica may be behind. It has all that was there before once it has this message.
        let clock = self.subject(CLOCK);
        let least = self
            .publish(CLOCK, PublishMessage::build().payload("now".into()), until)
            .await?;
        let config = pull::Config {
            filter_subjects: vec![format!("{below}>"), clock.clone()],
            ack_policy: AckPolicy::None,
            headers_only: true,
            inactive_threshold: FORGET_LISTING,
            memory_storage: true,
            num_replicas: 1,
            ..pull::Config::default()
        };
        let consumer = self.stream.create_consumer(config).await;
        let consumer = consumer.map_err(|error| Problem::of(&error))?;
        let mut found: HashMap<String, (i64, Option<String>)> = HashMap::new();
        let (mut now_ms, mut seen, mut received) = (0, 0, 0);
        loop {
            let batch = consumer.fetch().max_messages(LISTED_AT_ONCE).messages().await;
            let mut batch = batch.map_err(|error| Problem::passing(&error))?;
            let mut count = 0;
            loop {
                let next = timeout(LISTED_WITHIN, batch.next()).await;
                let Some(message) = next.map_err(|_| Problem::passing("the listing took too long"))? else {
                    break;
                };
                let message = message.map_err(Problem::passing)?;
                let info = message.info().map_err(Problem::passing)?;
                (count, received) = (count + 1, received + 1);
                if info.consumer_sequence != received {
                    return Err(Problem::passing("a part of the listing was lost"));
                }
                let published = ms(info.published.unix_timestamp_nanos());
                if message.subject.as_str() == clock {
                    (now_ms, seen) = (published, info.stream_sequence);
                } else if let Some(key) = message.subject.as_str().strip_prefix(&below) {
                    let headers = message.headers.as_ref();
                    let parts = headers.and_then(|headers| headers.get(PARTS));
                    let write = parts.and_then(|parts| parts.as_str().split(' ').next().map(str::to_owned));
                    found.insert(key.to_owned(), (published, write));
                }
            }
            match count {
                0 if seen >= least => break,
                0 => sleep(LOOK_AGAIN).await,
                _ => {}
            }
        }
        let _ = self.stream.delete_consumer(&consumer.cached_info().name).await;
        self.clock.note(now_ms, here);
        self.remove_left_behind(place, &found, now_ms, until).await;
        let keys = found.into_iter().filter(|(key, _)| as_part(key).is_none());
        Ok(keys.map(|(key, (written, _))| (key, age(now_ms, written))).collect())
    }

    /// Removes old parts that no key names. The next listing tries again what fails.
    async fn remove_left_behind(
        &self,
        place: &str,
        found: &HashMap<String, (i64, Option<String>)>,
        now_ms: i64,
        until: Until,
    ) {
        for (part, (written, _)) in found {
            let Some((key, write)) = as_part(part) else { continue };
            let named = found.get(key).and_then(|(_, named)| named.as_deref());
            if named != Some(write) && age(now_ms, *written) > LEFT_BEHIND {
                let subject = self.subject(&format!("{place}.{part}"));
                // No later message has this subject.
                let _ = self.purge(&subject, None, until).await;
            }
        }
    }
}

/// Sixteen random digits.
fn random() -> Result<String, Problem> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|_| Problem::lasting("the system gives no random numbers"))?;
    Ok(format!("{:016x}", u64::from_be_bytes(random)))
}

/// Milliseconds since 1970.
fn ms(nanoseconds: i128) -> i64 {
    i64::try_from(nanoseconds / 1_000_000).unwrap_or_default()
}

fn created(error: &async_nats::jetstream::context::CreateStreamError) -> Problem {
    use async_nats::jetstream::context::CreateStreamErrorKind as Kind;
    match error.kind() {
        Kind::JetStream(answer) => Problem::answered(&answer),
        Kind::JetStreamUnavailable => Problem::passing("this server has no JetStream: start it with --jetstream"),
        _ => Problem::passing(error),
    }
}

fn purged(error: &async_nats::jetstream::stream::PurgeError) -> Problem {
    use async_nats::jetstream::stream::PurgeErrorKind as Kind;
    match error.kind() {
        Kind::JetStream(answer) => Problem::answered(&answer),
        _ => Problem::passing(error),
    }
}
