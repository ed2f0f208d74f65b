//! The wire on standard input and output: headers and a body, as in the Language Server Protocol.

use std::future::ready;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream, stream};
use sandglass_core::{Error, Limits};
use sandglass_host::Settings;
use sandglass_host::args::GuestArgs;
use sandglass_host::kept::{self, Kept, KeptFacts, KeptPlace, Replay, ReplayOptions, ResumeOptions};
use sandglass_host::notebook::Notebook;
use sandglass_host::sandbox::{ExecuteOptions, Execution, Sandbox, SandboxBuilder};
use sandglass_host::workspace::Workspace;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::connection::{Connection, Held, Home, Inner, Keeper, Made, Message, Outbox};
use crate::messages::{MAX_JSON_BYTES, MAX_PIECE_BYTES, RpcError};
use crate::notebook::Cells;
use crate::options::{Bounds, Local, Options};

/// The most bytes of a header line.
const MAX_LINE_BYTES: u64 = 1_000;
/// The most header lines of a message.
const MAX_LINES: usize = 16;
/// The most bytes of blobs that nothing has named.
const MAX_BLOB_BYTES: usize = 4 << 30;
/// The most bytes of the variables in a state.
const MAX_STATE_BYTES: u64 = 1 << 30;
/// The time for the last answers to leave after the end of the input.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// The media type of a binary message.
const BINARY: &str = "application/octet-stream";

/// A reason for which a frame cannot be read. The connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream failed, or ended in the middle of a message.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The headers are not as they must be.
    #[error("the headers of a message are malformed: {0}")]
    Malformed(String),
}

/// Reads the next message. `None` at the end of the stream.
///
/// # Errors
/// A [`FrameError`].
pub async fn read_message(reader: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<Message>, FrameError> {
    let malformed = |problem: &str| FrameError::Malformed(problem.to_owned());
    let (mut length, mut is_binary) = (None, false);
    for count in 0.. {
        let mut line = Vec::new();
        let read = (&mut *reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await?;
        match line.strip_suffix(b"\n") {
            None if read == 0 && count == 0 => return Ok(None),
            None if read == 0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            None => return Err(malformed("a line is too long, or the last line has no end")),
            Some(_) if count >= MAX_LINES => return Err(malformed("there are too many")),
            Some(text) => {
                let text = text.strip_suffix(b"\r").unwrap_or(text);
                if text.is_empty() {
                    break;
                }
                let text = str::from_utf8(text).map_err(|_| malformed("a line is not UTF-8"))?;
                let (name, value) = text.split_once(':').ok_or_else(|| malformed("a line has no colon"))?;
                if name.eq_ignore_ascii_case("content-length") {
                    length = value.trim().parse::<usize>().ok();
                } else if name.eq_ignore_ascii_case("content-type") {
                    is_binary = value.trim() == BINARY;
                }
            }
        }
    }
    let length = length.ok_or_else(|| malformed("Content-Length is missing, or not a number"))?;
    let most = if is_binary { MAX_PIECE_BYTES + 5 } else { MAX_JSON_BYTES };
    if length > most {
        let problem = format!("Content-Length is {length}, more than {most}; send large values as blobs");
        return Err(FrameError::Malformed(problem));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await?;
    let body = Bytes::from(body);
    Ok(Some(if is_binary {
        Message::Binary(body)
    } else {
        Message::Json(body)
    }))
}

/// The frame of a message: its headers.
pub fn headers(message: &Message) -> String {
    match message {
        Message::Json(body) => format!("Content-Length: {}\r\n\r\n", body.len()),
        Message::Binary(body) => format!("Content-Length: {}\r\nContent-Type: {BINARY}\r\n\r\n", body.len()),
    }
}

fn messages(reader: impl AsyncBufRead + Unpin) -> impl Stream<Item = Result<Message, FrameError>> {
    stream::unfold(Some(reader), async |reader| {
        let mut reader = reader?;
        match read_message(&mut reader).await {
            Ok(Some(message)) => Some((Ok(message), Some(reader))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    })
}

async fn write_all(outbox: Arc<Outbox>, mut writer: impl AsyncWrite + Unpin) -> io::Result<()> {
    loop {
        for message in outbox.next().await {
            let (Message::Json(body) | Message::Binary(body)) = &message;
            let mut frame = headers(&message).into_bytes();
            frame.extend_from_slice(body);
            writer.write_all(&frame).await?;
            writer.flush().await?;
            outbox.sent(&message);
        }
    }
}

/// Serves a client on standard input and output. Returns when the input ends, and all sandboxes are gone.
///
/// # Errors
/// The client broke the wire.
pub async fn serve(args: &GuestArgs, settings: Settings) -> Result<(), String> {
    let connection = Connection::new(Arc::new(OwnProcess::new(args, settings)));
    let (outbox, broken) = (connection.outbox(), connection.broken());
    let rest = Arc::clone(&outbox);
    let writing = tokio::spawn(async move {
        let _ = match tokio::net::unix::pipe::Sender::from_owned_fd(own(io::stdout())?) {
            Ok(pipe) => write_all(outbox, pipe).await,
            Err(_) => write_all(outbox, tokio::io::stdout()).await,
        };
        broken.cancel(); // the client has gone
        io::Result::Ok(())
    });
    let input = own(io::stdin()).and_then(tokio::net::unix::pipe::Receiver::from_owned_fd);
    let served = match input {
        Ok(pipe) => {
            connection
                .serve(messages(BufReader::with_capacity(1 << 16, pipe)))
                .await
        }
        Err(_) => connection.serve(messages(BufReader::new(tokio::io::stdin()))).await,
    };
    // The last answers leave, if the client still reads.
    let _ = timeout(LAST_ANSWERS, rest.drained()).await;
    writing.abort();
    served
}

/// A descriptor of its own for a standard stream. Tokio waits for pipes without a thread.
fn own(stream: impl std::os::fd::AsFd) -> io::Result<std::os::fd::OwnedFd> {
    stream.as_fd().try_clone_to_owned()
}

/// The home of sandboxes in this program, for one client that is its user.
struct OwnProcess {
    bounds: Bounds,
    settings: Settings,
    last: AtomicU64,
}

impl OwnProcess {
    fn new(args: &GuestArgs, settings: Settings) -> Self {
        let bounds = Bounds {
            backend: args.backend,
            allow_subprocess: false,
            max_timeout_ms: f64::INFINITY,
            boot_timeout_ms: Limits::default().boot_timeout_ms,
            max_memory_bytes: f64::INFINITY,
            resources: settings.resources,
            max_blob_bytes: MAX_BLOB_BYTES,
            max_approval: None,
            max_state_bytes: MAX_STATE_BYTES,
            is_local: true,
        };
        Self {
            bounds,
            settings,
            last: AtomicU64::new(0),
        }
    }

    /// The id of the next sandbox.
    fn id(&self) -> String {
        (self.last.fetch_add(1, Ordering::Relaxed) + 1).to_string()
    }
}

impl Home for OwnProcess {
    fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    fn hold(&self, _: usize) -> Result<Held, RpcError> {
        Ok(Box::new(())) // the client is this program's user
    }

    fn make(
        &self,
        options: Options,
        client: Box<dyn FnOnce(SandboxBuilder) -> SandboxBuilder + Send>,
    ) -> BoxFuture<'_, Result<Made, RpcError>> {
        async move {
            let Local {
                python,
                image,
                runtime,
                workspace,
                notebook,
            } = options.local;
            let settings = self.settings.clone();
            let workspace = workspace.or(settings.workspace);
            let claimed = match notebook {
                true => Some(claim(workspace.clone()).await?),
                false => None,
            };
            let settings = Settings {
                python: python.or(settings.python),
                image: image.or(settings.image),
                runtime: runtime.or(settings.runtime),
                workspace,
                resources: options.resources,
                ahead: options.ahead,
                checkpoints: options.checkpoints,
                ..settings
            };
            let builder = Sandbox::builder()
                .backend(options.backend)
                .settings(settings)
                .limits(options.limits)
                .profile(options.profile)
                .output_fields(options.output_fields)
                .budget(options.budget)
                .predictions(options.predictions)
                .without_context();
            let builder = client(builder);
            if let Some(folder) = options.persist {
                let place = spawn_blocking(move || KeptPlace::in_folder(folder)).await;
                let place = place.map_err(|error| RpcError::internal(error.to_string()))??;
                let kept = Inner::Kept(Kept::open(builder, place).await?);
                return Ok(Made {
                    id: self.id(),
                    keeper: Box::new(Own(kept.clone())),
                    sandbox: kept,
                    cells: None,
                });
            }
            let (sandbox, cells) = match claimed {
                Some(workspace) => {
                    let mut notebook = Notebook::new(workspace, builder)?;
                    (notebook.sandbox().await?, Some(Cells::new(notebook, keep)))
                }
                None => (builder.build().await?, None),
            };
            Ok(Made {
                id: self.id(),
                keeper: keep(sandbox.clone()),
                sandbox: sandbox.into(),
                cells,
            })
        }
        .boxed()
    }

    fn list_persisted(&self, folder: Option<String>) -> BoxFuture<'_, Result<Vec<KeptFacts>, RpcError>> {
        async move {
            let problem = "folder: has to be given here; it is the folder whose folders have kept sandboxes";
            let folder = folder.ok_or_else(|| RpcError::InvalidParams(problem.to_owned()))?;
            let listed = spawn_blocking(move || kept::in_folders(folder)).await;
            Ok(listed.map_err(|error| RpcError::internal(error.to_string()))??)
        }
        .boxed()
    }

    fn delete_persisted(&self, _: String) -> BoxFuture<'_, Result<(), RpcError>> {
        let problem = "deletePersisted: here a folder has the kept sandbox, so delete the folder; nothing was done";
        ready(Err(RpcError::InvalidParams(problem.to_owned()))).boxed()
    }
}

/// Claims the folder of a notebook.
async fn claim(folder: Option<PathBuf>) -> Result<Workspace, RpcError> {
    let folder = folder.ok_or_else(|| {
        let problem = "needs \"workspace\", the folder for the files of its cells";
        Error::invalid("notebook", problem)
    })?;
    let claimed = spawn_blocking(move || Workspace::open(&folder)).await;
    let claimed = claimed.map_err(|error| Error::File(error.to_string()))?;
    claimed.map_err(|error| RpcError::Refused {
        code: error.code().to_owned(),
        message: format!("workspace: {error}"),
    })
}

fn keep(sandbox: Sandbox) -> Box<dyn Keeper> {
    Box::new(Own(sandbox.into()))
}

/// The keeper of a sandbox of this program.
struct Own(Inner);

impl Keeper for Own {
    fn room(&self) -> BoxFuture<'_, Result<(), RpcError>> {
        async { Ok(()) }.boxed()
    }

    fn execute(&self, code: String, options: ExecuteOptions) -> BoxFuture<'_, Result<Execution, RpcError>> {
        async move {
            Ok(match &self.0 {
                Inner::Sandbox(sandbox) => sandbox.execute_with(code, options).await?,
                Inner::Kept(kept) => kept.execute_with(code, options).await?,
            })
        }
        .boxed()
    }

    fn resume(&self, options: ResumeOptions) -> BoxFuture<'_, Result<Execution, RpcError>> {
        async move { Ok(self.0.kept()?.resume(options).await?) }.boxed()
    }

    fn replay(&self, execution: u32, options: ReplayOptions) -> BoxFuture<'_, Result<Replay, RpcError>> {
        async move { Ok(self.0.kept()?.replay(execution, options).await?) }.boxed()
    }

    fn admit(&self, timeout_ms: Option<f64>) -> Result<Held, RpcError> {
        if let Some(ms) = timeout_ms {
            Limits::default().set("timeout", ms)?;
        }
        Ok(Box::new(()))
    }

    fn room_for(&self, _: usize) -> BoxFuture<'_, Result<(), RpcError>> {
        async { Ok(()) }.boxed()
    }

    fn destroy(&self) -> BoxFuture<'_, ()> {
        match &self.0 {
            Inner::Sandbox(sandbox) => sandbox.destroy().boxed(),
            Inner::Kept(kept) => kept.destroy().boxed(),
        }
    }
}
