//! Standard input and output: one client, which started this program.

use std::io::{self, Read};
use std::sync::Arc;

use axum::body::Bytes;
use rmcp::ServiceExt;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_util::io::StreamReader;

use crate::http::MAX_MESSAGE_BYTES;
use crate::server::Server;
use crate::session::{Home, Own, Session, Shared};

/// Bytes of one read.
const PIECE: usize = 64 << 10;
/// Pieces that wait for their use.
const WAITING: usize = 4;

/// Serves the client of standard input and output until it leaves, or `ended` is ready.
///
/// # Errors
/// The client does not begin as the protocol says.
pub async fn serve(shared: Arc<Shared>, own: Own, ended: impl Future<Output = ()>) -> Result<(), String> {
    let mut pieces = pieces();
    let input = futures_util::stream::poll_fn(move |context| pieces.poll_recv(context));
    serve_streams(shared, own, StreamReader::new(input), tokio::io::stdout(), ended).await
}

/// Serves the client at the other end of two streams, with a message per line.
///
/// # Errors
/// As [`serve`].
pub async fn serve_streams(
    shared: Arc<Shared>,
    own: Own,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    ended: impl Future<Output = ()>,
) -> Result<(), String> {
    let server = Server::new(Session::new(shared, Home::Own(own)));
    let transport = AsyncRwTransport::new_server(input, output).with_max_line_length(MAX_MESSAGE_BYTES);
    let serving = async {
        let running = server.serve(transport).await.map_err(|error| error.to_string())?;
        running.waiting().await.map_err(|error| error.to_string())
    };
    tokio::select! {
        served = serving => served.map(drop),
        () = ended => Ok(()),
    }
}

/// The pieces of standard input. A thread reads them, because a read of the runtime's own would keep the program from ending.
fn pieces() -> mpsc::Receiver<io::Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(WAITING);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut piece = vec![0; PIECE];
        loop {
            let read = match stdin.read(&mut piece) {
                Ok(0) => return,
                Ok(count) => Ok(Bytes::copy_from_slice(&piece[..count])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let is_over = read.is_err();
            if sender.blocking_send(read).is_err() || is_over {
                return;
            }
        }
    });
    receiver
}
