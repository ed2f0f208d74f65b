//! TCP connections. Their number is bounded, and deadlines hold for request heads, silence, and responses that the client does
//! not take.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, Request};
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::metrics::{Gauge, Up};
use super::quotas::Held;
use super::write_timeout::WriteTimeout;

/// Marks a request that another server of the cluster has forwarded. Clients can make the mark up, and it gives no right to anything.
pub(super) const FORWARDED: HeaderName = HeaderName::from_static("sandglass-forwarded");
/// The largest head of a request, in bytes.
const MOST_HEAD_BYTES: usize = 64 << 10;
/// Most headers of a request.
const MOST_HEADERS: usize = 64;
/// The pause after `accept` failed, for example because no file descriptors are left.
const AFTER_FAILURE: Duration = Duration::from_millis(100);
/// The time for the first request of a connection that was made just before the end, and for the next one of a connection that another
/// server of the cluster keeps.
const FIRST_REQUEST: Duration = Duration::from_millis(500);
/// The interval at which the system probes a silent client.
const ASKING: Duration = Duration::from_secs(15);

/// The deadlines of connections.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// The time for a head, and for silence between requests.
    pub head: Duration,
    /// The time for which a client may take nothing of a response.
    pub write: Duration,
}

/// The permit of a connection, one of a fixed number. A WebSocket keeps the permit after the HTTP upgrade.
#[derive(Debug)]
pub struct ConnectionPermit {
    /// The client's address.
    pub peer: SocketAddr,
    _permit: OwnedSemaphorePermit,
    _open: Up,
}

/// Connections without a running request, the longest idle first. When there are no permits left, the first gives way to a new
/// connection. So a client with many silent connections keeps nobody out.
#[derive(Debug, Default)]
struct Idle {
    /// The idle connections by a growing number, and the next number.
    connections: Mutex<(u64, BTreeMap<u64, Arc<Notify>>)>,
    one_more: Notify,
}

impl Idle {
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Arc<Notify>>)> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the longest idle connection to give way, or else the next one that becomes idle. Then waits forever.
    async fn make_room(&self) -> Infallible {
        loop {
            let one_more = self.one_more.notified();
            let oldest = self.lock().1.pop_first();
            if let Some((_, give_way)) = oldest {
                give_way.notify_one();
                return pending().await;
            }
            one_more.await;
        }
    }
}

/// The activity of one connection, which may be among the [`Idle`].
#[derive(Debug)]
struct Activity {
    idle: Arc<Idle>,
    give_way: Arc<Notify>,
    /// The connection's number among the idle ones, while it is idle.
    number: Mutex<Option<u64>>,
    /// True until the first request, and from the first one on that another server has forwarded.
    is_awaited: AtomicBool,
    /// Told by each request.
    begun: Notify,
}

impl Activity {
    fn new(idle: &Arc<Idle>) -> Arc<Self> {
        let activity = Self {
            idle: Arc::clone(idle),
            give_way: Arc::default(),
            number: Mutex::new(None),
            is_awaited: AtomicBool::new(true),
            begun: Notify::new(),
        };
        activity.rest();
        Arc::new(activity)
    }

    fn rest(&self) {
        let mut idle = self.idle.lock();
        idle.0 += 1;
        let number = idle.0;
        idle.1.insert(number, Arc::clone(&self.give_way));
        *self.number.lock().unwrap_or_else(PoisonError::into_inner) = Some(number);
        drop(idle);
        self.idle.one_more.notify_waiters();
    }

    fn stop_resting(&self) {
        let mut idle = self.idle.lock();
        if let Some(number) = self.number.lock().unwrap_or_else(PoisonError::into_inner).take() {
            idle.1.remove(&number);
        }
    }

    /// Notes that a request began. The request ends when the returned guard is dropped.
    fn request(self: &Arc<Self>, is_forwarded: bool) -> Busy {
        self.stop_resting();
        self.is_awaited.store(is_forwarded, Ordering::Release);
        self.begun.notify_waiters();
        Busy(Arc::clone(self))
    }

    /// Waits for a request that may be on its way already, when the server ends.
    async fn last_request(&self) {
        let begun = self.begun.notified();
        let rests = self.number.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if rests && self.is_awaited.load(Ordering::Acquire) {
            let _ = tokio::time::timeout(FIRST_REQUEST, begun).await;
        }
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.stop_resting();
    }
}

/// A request of a connection, until its response was sent.
#[derive(Debug)]
struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.rest();
    }
}

/// Serves connections until `ending` is cancelled. Open connections then end after their current request. Returns the open
/// connections.
pub async fn accept(
    listener: TcpListener,
    router: Router,
    most: u32,
    deadlines: Deadlines,
    open: Gauge,
    ending: CancellationToken,
) -> JoinSet<()> {
    let permits = Arc::new(Semaphore::new(most as usize));
    let idle = Arc::<Idle>::default();
    let mut connections = JoinSet::new();
    let serve = |stream, peer, permit| {
        let connection = Arc::new(ConnectionPermit {
            peer,
            _permit: permit,
            _open: open.up(),
        });
        let activity = Activity::new(&idle);
        serve(stream, connection, activity, router.clone(), deadlines, ending.clone())
    };
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = async {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(AFTER_FAILURE).await;
                    return None;
                }
            };
            let permit = match Arc::clone(&permits).try_acquire_owned() {
                Ok(permit) => permit,
                Err(_) => tokio::select! {
                    permit = Arc::clone(&permits).acquire_owned() => permit.ok()?,
                    never = idle.make_room() => match never {},
                },
            };
            Some((stream, peer, permit))
        };
        tokio::select! {
            biased;
            () = ending.cancelled() => break,
            accepted = accepted => if let Some((stream, peer, permit)) = accepted {
                connections.spawn(serve(stream, peer, permit));
            },
        }
    }
    // Connections that the system has taken are answered as well. Without this, their clients could not tell what was done.
    while let Some(Ok((stream, peer))) = listener.accept().now_or_never()
        && let Ok(permit) = Arc::clone(&permits).try_acquire_owned()
    {
        connections.spawn(serve(stream, peer, permit));
    }
    connections
}

async fn serve(
    stream: TcpStream,
    connection: Arc<ConnectionPermit>,
    activity: Arc<Activity>,
    router: Router,
    deadlines: Deadlines,
    ending: CancellationToken,
) {
    prepare(&stream, deadlines.write);
    let peer = connection.peer;
    let (give_way, own) = (Arc::clone(&activity.give_way), Arc::clone(&activity));
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let busy = activity.request(request.headers().contains_key(FORWARDED));
        request.extensions_mut().insert(Arc::clone(&connection));
        let answer = router.clone().oneshot(request.map(Body::new));
        async move {
            let mut answer = answer.await.map_err(|never: Infallible| never)?;
            let held = answer.extensions_mut().remove::<Arc<Held>>();
            // The request ends when its response was sent completely.
            Ok::<_, Infallible>(answer.map(|body| {
                body.map_frame(move |frame| {
                    let _until_then = (&busy, &held);
                    frame
                })
            }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(deadlines.head)
        .max_buf_size(MOST_HEAD_BYTES)
        .max_headers(MOST_HEADERS)
        .serve_connection(TokioIo::new(WriteTimeout::new(stream, deadlines.write)), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = give_way.notified() => {
            tracing::debug!(%peer, "a connection without a request gives way to another one");
            return;
        }
        () = ending.cancelled() => {
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = own.last_request() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

/// Sets options of a connection. A failure is ignored, because the server works without them.
fn prepare(stream: &TcpStream, write_timeout: Duration) {
    // Small responses are sent at once.
    let _ = stream.set_nodelay(true);
    // The system must probe a client whose machine is gone, because the server sends nothing while code runs.
    let milliseconds = u32::try_from(write_timeout.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, ASKING))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, ASKING))
        .and_then(|()| sockopt::set_tcp_user_timeout(stream, milliseconds));
}
