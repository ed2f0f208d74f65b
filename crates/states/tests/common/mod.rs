//! Stores of all kinds, for tests of what they have in common.

pub mod nats;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use nats::Nats;
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use object_store::memory::InMemory;
use object_store::path::Path;
use sandglass_states::{MemoryStore, NatsStore, ObjectStorage, Store};

/// The kinds of stores that several servers may use.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Memory of ours.
    Memory,
    /// The memory that the library for object storage has for tests.
    LibrarysMemory,
    /// A service that speaks S3 over HTTP.
    S3,
    /// A server of NATS.
    Nats,
}

pub const KINDS: [Kind; 4] = [Kind::Memory, Kind::LibrarysMemory, Kind::S3, Kind::Nats];

impl Kind {
    /// A new store.
    pub fn store(self) -> Arc<dyn Store> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("prefix/{number}");
        let storage: Arc<dyn ObjectStore> = match self {
            Self::Memory => return Arc::new(MemoryStore::default()),
            Self::LibrarysMemory => Arc::new(InMemory::new()),
            Self::S3 => s3(),
            Self::Nats => {
                static NATS: OnceLock<Nats> = OnceLock::new();
                let server = NATS.get_or_init(|| Nats::start(0, &[]));
                return Arc::new(NatsStore::open(&format!("{}/test-{number}", server.url), None, 1).unwrap());
            }
        };
        Arc::new(ObjectStorage::of(storage, Path::from(prefix)).unwrap())
    }
}

/// The bucket of the service, which runs until the tests end.
fn s3() -> Arc<dyn ObjectStore> {
    // The service ends with its standard input, which closes when this process ends.
    static SERVICE: OnceLock<(Child, Arc<dyn ObjectStore>)> = OnceLock::new();
    let start = || {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let started = Command::new(format!("{root}/.setup/s3/bin/python"))
            .arg(format!("{root}/tests/s3/server.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null()) // it logs each request
            .spawn();
        let mut service = started.expect("scripts/setup installs the service");
        let mut address = String::new();
        let mut told = BufReader::new(service.stdout.take().unwrap());
        told.read_line(&mut address).unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = AmazonS3Builder::new()
            .with_endpoint(address.trim())
            .with_allow_http(true)
            .with_bucket_name("states")
            .with_region("us-east-1")
            .with_access_key_id("a-test")
            .with_secret_access_key("a-secret-of-tests");
        (service, Arc::new(builder.build().unwrap()) as Arc<dyn ObjectStore>)
    };
    Arc::clone(&SERVICE.get_or_init(start).1)
}
