//! Standard input and output: one client, which started this program.

use std::io::{self, Read};
use std::sync::Arc;

use axum::body::Bytes;
use rmcp::ServiceExt;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::sync::mpsc;
use tokio_util::io::StreamReader;

use crate::http::MAX_MESSAGE_BYTES;
use crate::server::Server;
use crate::session::{Session, Shared};

/// Bytes of one read.
const PIECE: usize = 64 << 10;
/// Pieces that wait for their use.
const WAITING: usize = 4;

/// Serves the client until it closes standard input, or `ended` is ready.
///
/// # Errors
/// The client does not begin as the protocol says.
pub async fn serve(shared: Arc<Shared>, ended: impl Future<Output = ()>) -> Result<(), String> {
    let server = Server::new(Session::new(shared, None));
    let input = StreamReader::new(tokio_stream(input()));
    let transport = AsyncRwTransport::new_server(input, tokio::io::stdout()).with_max_line_length(MAX_MESSAGE_BYTES);
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
fn input() -> mpsc::Receiver<io::Result<Bytes>> {
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

fn tokio_stream<T>(mut receiver: mpsc::Receiver<T>) -> impl futures_util::Stream<Item = T> + Unpin {
    futures_util::stream::poll_fn(move |context| receiver.poll_recv(context))
}
