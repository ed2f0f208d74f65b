//! TCP connections: bounded in number, each with deadlines for its heads, its silence and what it does not take.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
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

/// Bytes of a request's head.
const MOST_HEAD_BYTES: usize = 64 << 10;
/// Headers of a request.
const MOST_HEADERS: usize = 64;
/// The pause after `accept` failed, for example because no file descriptors are left.
const AFTER_FAILURE: Duration = Duration::from_millis(100);
/// The interval at which the system asks whether a silent client is still there.
const ASKING: Duration = Duration::from_secs(15);

/// The times that connections are held to.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// For a head, and for silence between requests.
    pub head: Duration,
    /// For a peer that takes nothing.
    pub write: Duration,
}

/// The permit of a connection, one of those that there may be. A WebSocket keeps it when HTTP is done.
#[derive(Debug)]
pub struct ConnectionPermit {
    /// The address of the other end.
    pub peer: SocketAddr,
    _permit: OwnedSemaphorePermit,
    _open: Up,
}

/// The connections without a request under way, the one that has been so for longest first. When there is no place left for another
/// connection, that one gives way: who opens many and sends little keeps nobody out.
#[derive(Debug, Default)]
struct Idle {
    /// By a number that grows.
    connections: Mutex<(u64, BTreeMap<u64, Arc<Notify>>)>,
    one_more: Notify,
}

impl Idle {
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Arc<Notify>>)> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the one that has been idle for longest to give way; when there is none, the next one that is. Then it never ends.
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

/// One connection, as far as it is [`Idle`].
#[derive(Debug)]
struct Activity {
    idle: Arc<Idle>,
    give_way: Arc<Notify>,
    /// Its number among the idle ones, while it is one.
    number: Mutex<Option<u64>>,
}

impl Activity {
    fn new(idle: &Arc<Idle>) -> Arc<Self> {
        let activity = Self {
            idle: Arc::clone(idle),
            give_way: Arc::default(),
            number: Mutex::new(None),
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

    /// A request has begun; it ends when what is returned is dropped.
    fn request(self: &Arc<Self>) -> Busy {
        self.stop_resting();
        Busy(Arc::clone(self))
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.stop_resting();
    }
}

/// A request of a connection, until its answer was sent.
#[derive(Debug)]
struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.rest();
    }
}

/// Serves connections until `ending` says so; then those that are open end after the request that they are at. The set is of those.
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
            () = ending.cancelled() => return connections,
            accepted = accepted => if let Some((stream, peer, permit)) = accepted {
                let connection = Arc::new(ConnectionPermit { peer, _permit: permit, _open: open.up() });
                let activity = Activity::new(&idle);
                connections.spawn(serve(stream, connection, activity, router.clone(), deadlines, ending.clone()));
            },
        }
    }
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
    let give_way = Arc::clone(&activity.give_way);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let busy = activity.request();
        request.extensions_mut().insert(Arc::clone(&connection));
        let answer = router.clone().oneshot(request.map(Body::new));
        async move {
            let mut answer = answer.await.map_err(|never: Infallible| never)?;
            let held = answer.extensions_mut().remove::<Arc<Held>>();
            // The request is over when its answer was sent to the end.
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
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

/// Sets options of a connection; those that cannot be set are done without.
fn prepare(stream: &TcpStream, write_timeout: Duration) {
    // Small answers must not wait for more to come.
    let _ = stream.set_nodelay(true);
    // A client whose machine is gone says nothing, and while code runs it is sent nothing: the system has to ask.
    let milliseconds = u32::try_from(write_timeout.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, ASKING))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, ASKING))
        .and_then(|()| sockopt::set_tcp_user_timeout(stream, milliseconds));
}
