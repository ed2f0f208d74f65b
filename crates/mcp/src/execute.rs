//! Runs code for a client: output as progress, questions to the client's model, and cancellation.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rmcp::RoleServer;
use rmcp::model::{PingRequest, ServerRequest};
use rmcp::service::{Peer, PeerRequestOptions, RequestContext};
use sandglass_host::{ExecuteOptions, Execution, Stream};

use crate::progress::Progress;
use crate::sampling::{sample, samples};
use crate::session::Session;

/// Runs code in the session's sandbox. A cancelled request interrupts its code, or has it not run; the variables stay.
///
/// # Errors
/// The sandbox cannot run code.
pub async fn execute(
    session: &Session,
    code: String,
    timeout_ms: Option<f64>,
    context: &RequestContext<RoleServer>,
) -> Result<Execution, String> {
    let _turn = session.turn.lock().await;
    if context.ct.is_cancelled() {
        return Err("the call was cancelled before its code ran; nothing was done".to_owned());
    }
    let started = tokio::select! {
        started = session.start() => started?,
        never = awake(session, &context.peer) => match never {},
    };
    let progress = Progress::of(context);
    let told = progress.clone();
    let controller = session.shared.controller.as_ref();
    let options = ExecuteOptions {
        timeout_ms,
        budget: controller.map(|controller| controller.budget).unwrap_or_default(),
        on_output: Some(Arc::new(move |stream, text| {
            if matches!(stream, Stream::Stdout | Stream::Stderr) {
                told.add(text);
            }
        })),
        cancel: Some(context.ct.clone()),
        ..ExecuteOptions::default()
    };
    // Questions are taken before the code runs: its first act may be one.
    let offers = context.client_capabilities().is_some_and(|client| samples(&client));
    let taking = offers.then(|| session.questions.take());
    let answering = async {
        if let Some((mut questions, _taking)) = taking {
            let mut asked = FuturesUnordered::new();
            loop {
                tokio::select! {
                    Some(question) = questions.recv() => asked.push(sample(&context.peer, question)),
                    Some(()) = asked.next() => {}
                    else => break,
                }
            }
        }
        std::future::pending::<Infallible>().await
    };
    let running = started.execute(code, options);
    tokio::select! {
        run = running => run,
        never = answering => match never {},
        never = progress.send() => match never {},
        never = awake(session, &context.peer) => match never {},
    }
}

/// Keeps a session from looking unused while a call works, and never ends: see `docs/internals/server.md`.
pub async fn awake(session: &Session, peer: &Peer<RoleServer>) -> Infallible {
    let Some(idle) = session.shared.idle else {
        return std::future::pending().await;
    };
    let interval = (idle / 10).max(Duration::from_millis(1));
    loop {
        tokio::time::sleep(interval).await;
        // A message in either direction counts as use. A client that does not answer changes nothing.
        let ping = ServerRequest::PingRequest(PingRequest::default());
        let _ = peer
            .send_request_with_option(ping, PeerRequestOptions::no_options())
            .await;
    }
}
