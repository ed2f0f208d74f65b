#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | `settings` | the options of the command `mcp` |
//! | `server` | the tools and resources that clients see |
//! | `arguments` | the arguments and results of tools |
//! | `session` | a client's session, with its sandbox |
//! | `execute` | code under way: progress, cancellation, questions to the client's model |
//! | `ask` | the controller |
//! | `questions` | the way of `llm_query` from Python to a model |
//! | `roots` | the folders that the client offers |
//! | `sampling` | the client's model |
//! | `report` | results for models and for programs |
//! | `progress` | progress of a call |
//! | `resources` | files of the working folder |
//! | `folders` | the folders whose files clients may load |
//! | `http`, `stdio` | the transports |
//! | `on_server` | the protocol as a part of `serve` |

mod arguments;
mod ask;
mod execute;
mod folders;
mod http;
mod on_server;
mod progress;
mod questions;
mod report;
mod resources;
mod roots;
mod sampling;
mod server;
mod session;
mod settings;
mod stdio;

use std::time::Duration;

use sandglass_host::args::Secrets;
use sandglass_server::metrics::Gauge;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::signal::unix::{SignalKind, signal};

use http::Http;
pub use on_server::OnServer;
use session::Shared;
pub use settings::McpArgs;

/// The time for sandboxes to end. Docker's engine is slow.
const SANDBOXES_END: Duration = Duration::from_secs(10);

/// Runs the command `mcp` until the client leaves, or a signal ends it. Returns the exit status.
///
/// # Errors
/// The server could not start.
pub async fn mcp(args: McpArgs) -> Result<u8, String> {
    let watched = |kind| signal(kind).map_err(|error| format!("signals cannot be watched: {error}"));
    let (mut terminate, mut interrupt) = (watched(SignalKind::terminate())?, watched(SignalKind::interrupt())?);
    let ended = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let listen = args.listen;
    let (shared, own) = Shared::new(&args).await?;
    let live = shared.live.clone();
    let served = match listen {
        Some(listen) => {
            let secrets = Secrets::from_environment()?;
            let http = Http::bind(&args, (shared, own), listen, &secrets).await?;
            // Scripts read this line to learn the port.
            println!("listening on http://{}/mcp", http.address()?);
            http.run(ended).await;
            Ok(())
        }
        None => stdio::serve(shared, own, ended).await,
    };
    settle(&live).await;
    served.map(|()| 0)
}

/// Serves the client at the other end of two streams, with a message per line, until it leaves.
///
/// # Errors
/// The server could not start, or the client does not begin as the protocol says.
pub async fn serve(
    args: McpArgs,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) -> Result<(), String> {
    let (shared, own) = Shared::new(&args).await?;
    let live = shared.live.clone();
    let served = stdio::serve_streams(shared, own, input, output, std::future::pending()).await;
    settle(&live).await;
    served
}

/// Waits until nothing is left of the sandboxes.
async fn settle(live: &Gauge) {
    if tokio::time::timeout(SANDBOXES_END, live.none()).await.is_err() {
        tracing::warn!("sandboxes that were in use are not all gone yet");
    }
}
