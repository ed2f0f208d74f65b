//! A connection's sandbox, and the functions of the client that Python calls.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use sandglass_core::budget::Usage;
use sandglass_core::protocol::QUERIES;
use sandglass_host::kept::Kept;
use sandglass_host::sandbox::{Answer, Capabilities, HostCall, HostFunctions, Query, SandboxBuilder};
use sandglass_host::{Sandbox, Value};
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};
use tokio_util::sync::CancellationToken;

use crate::blobs::Named;
use crate::client::Client;
use crate::connection::{Inner, Keeper, Made, lock};
use crate::messages::{
    Answered, BLOB_BYTES, Call, CodeLine, Id, LlmQuery, Returned, RlmQuery, RpcError, Started, UsageOfCall,
};
use crate::notebook::Cells;
use crate::options::Options;

/// The most names of host functions that a sandbox has had.
const MAX_NAMES: usize = 10_000;

/// The client's side of a sandbox: what its host functions need.
pub(crate) struct Caller {
    client: Arc<Client>,
    /// The sandbox's id, once it is made. No code runs before.
    id: OnceLock<String>,
    /// True when the client is about to know the id.
    is_known: AtomicBool,
    names: Mutex<HashSet<String>>,
}

/// A sandbox of a connection.
pub(crate) struct ClientSandbox {
    inner: Inner,
    /// True if the HTML of rich outputs is cleaned.
    pub(crate) clean_html: bool,
    caller: Arc<Caller>,
    keeper: Box<dyn Keeper>,
    /// The cells, if it is a notebook.
    pub(crate) cells: Option<Arc<Cells>>,
    /// The options of copies: those of `create`, with the names of the last `configure`.
    options: Arc<Mutex<Options>>,
    executing: Arc<AllExecuting>,
    turns: Arc<tokio::sync::Mutex<()>>,
}

/// Cancels executions that run or wait, by the ids of their requests.
type AllExecuting = Mutex<HashMap<Id, CancellationToken>>;

/// The right to submit the next command to a sandbox. Commands of later requests wait for its end.
pub(crate) type Turn = tokio::sync::OwnedMutexGuard<()>;

/// An execution that can be cancelled until this is dropped.
pub(crate) struct Executing {
    all: Arc<AllExecuting>,
    id: Id,
    pub(crate) cancel: CancellationToken,
}

impl Drop for Executing {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.id);
    }
}

impl Caller {
    pub(crate) fn new(client: Arc<Client>) -> Arc<Self> {
        Arc::new(Self {
            client,
            id: OnceLock::new(),
            is_known: AtomicBool::new(false),
            names: Mutex::default(),
        })
    }

    /// Adds the client's functions to a sandbox.
    ///
    /// # Errors
    /// See [`Caller::functions`].
    pub(crate) fn functions_of(
        self: &Arc<Self>,
        options: &Options,
    ) -> Result<impl FnOnce(SandboxBuilder) -> SandboxBuilder + use<>, RpcError> {
        let functions = self.functions(&options.host_functions)?;
        let (caller, llm, rlm) = (Arc::clone(self), options.on_llm_query, options.on_rlm_query);
        let max_result_bytes = options.max_result_bytes;
        Ok(move |mut builder: SandboxBuilder| {
            let own = Arc::clone(&caller);
            builder = builder
                .host_functions(functions)
                .values(max_result_bytes)
                .on_start(move |capabilities| own.started(capabilities));
            if llm {
                let caller = Arc::clone(&caller);
                builder = builder.on_llm_query(move |query| Arc::clone(&caller).llm_query(query));
            }
            if rlm {
                builder = builder.on_rlm_query(move |query| Arc::clone(&caller).rlm_query(query));
            }
            builder
        })
    }

    /// Host functions of these names, which the client answers.
    ///
    /// # Errors
    /// A name has an answer of its own, or the sandbox has had too many.
    pub(crate) fn functions(self: &Arc<Self>, names: &[String]) -> Result<HostFunctions, RpcError> {
        if let Some(name) = names.iter().find(|name| QUERIES.contains(&name.as_str())) {
            let problem = format!("hostFunctions: {name} is answered with onLLMQuery or onRLMQuery");
            return Err(RpcError::InvalidParams(problem));
        }
        let mut all = lock(&self.names);
        all.extend(names.iter().cloned());
        if all.len() > MAX_NAMES {
            let problem = format!("the sandbox has had more than {MAX_NAMES} names of host functions");
            return Err(RpcError::TooMuch(problem));
        }
        Ok(names.iter().fold(HostFunctions::default(), |functions, name| {
            let caller = Arc::clone(self);
            functions.with_usage(name, move |call| Arc::clone(&caller).call(call))
        }))
    }

    /// Lets the client hear of each guest that starts from now on. The answer to `create` tells of an earlier one.
    pub(crate) fn known(&self) {
        self.is_known.store(true, Ordering::Release);
    }

    fn started(&self, capabilities: &Capabilities) {
        if let Some(id) = self.id.get()
            && self.is_known.load(Ordering::Acquire)
        {
            let params = Started {
                sandbox: id,
                capabilities: json!(capabilities),
            };
            self.client.notify("started", params);
        }
    }

    fn id(&self) -> &str {
        self.id.get().map_or("", String::as_str)
    }

    async fn call(self: Arc<Self>, call: HostCall) -> Result<(Value, Usage), String> {
        let HostCall {
            name,
            args,
            kwargs,
            line,
            request,
            approval,
            id,
            ..
        } = call;
        self.client.outbox.room().await;
        let mut question = self.client.question();
        let (args, kwargs) = texts_of(&args, &kwargs);
        let is_large = args.len() + kwargs.len() > BLOB_BYTES;
        let arguments = is_large.then(|| {
            let both = format!("{{\"args\":{args},\"kwargs\":{kwargs}}}");
            question.put_json(both)
        });
        let small = |text: String| RawValue::from_string(text).ok().filter(|_| !is_large);
        let params = Call {
            sandbox: self.id(),
            request: id_of(request),
            name: &name,
            id,
            args: small(args),
            kwargs: small(kwargs),
            arguments,
            line: line.map(|line| CodeLine {
                execution: line.execution,
                number: line.number,
                text: line.text,
            }),
        };
        let (Returned { value, usage }, mut blobs) = question.ask("call", params, Some(approval)).await?;
        let what = format!("the result of {name}");
        let value = value.map(|value| blobs.value(&what, &value)).transpose();
        let value = value.map_err(|error| error.to_string())?.unwrap_or_default();
        Ok((value, usage.map_or_else(Usage::default, UsageOfCall::into)))
    }

    async fn llm_query(self: Arc<Self>, query: Query) -> Result<Answer, String> {
        self.client.outbox.room().await;
        let mut question = self.client.question();
        let params = LlmQuery {
            sandbox: self.id(),
            request: id_of(query.request),
            prompt: question.put(Value::Str(query.prompt)),
            model: query.model,
        };
        let answered = question.ask("llmQuery", params, None).await?;
        answer("llm_query", answered)
    }

    async fn rlm_query(self: Arc<Self>, query: Query) -> Result<Answer, String> {
        self.client.outbox.room().await;
        let mut question = self.client.question();
        let params = RlmQuery {
            sandbox: self.id(),
            request: id_of(query.request),
            task: question.put(Value::Str(query.prompt)),
            context: question.put(query.context),
            model: query.model,
        };
        let answered = question.ask("rlmQuery", params, None).await?;
        answer("rlm_query", answered)
    }
}

/// The JSON of positional and keyword arguments.
fn texts_of(args: &[Value], kwargs: &[(String, Value)]) -> (String, String) {
    let args: Vec<_> = args.iter().map(Value::to_json).collect();
    let kwargs = kwargs.iter().map(|(name, value)| (name.clone(), value.to_json()));
    let kwargs: serde_json::Map<_, _> = kwargs.collect();
    (Json::from(args).to_string(), Json::from(kwargs).to_string())
}

/// The id of a request, as an execution carries it.
pub(crate) fn name_of(id: &Id) -> Option<String> {
    serde_json::to_string(id).ok()
}

fn id_of(name: Option<String>) -> Option<Id> {
    name.and_then(|name| serde_json::from_str(&name).ok())
}

fn answer(name: &str, (answered, mut blobs): (Answered, Named)) -> Result<Answer, String> {
    let Answered { text, usage } = answered;
    let text = blobs.value(&format!("the answer of {name}"), &text);
    let Value::Str(text) = text.map_err(|error| error.to_string())? else {
        return Err(format!("the answer of {name} is not a str"));
    };
    let usage = usage.map_or_else(Usage::default, UsageOfCall::into);
    Ok(Answer { text, usage })
}

impl ClientSandbox {
    pub(crate) fn new(made: Made, caller: Arc<Caller>, options: Options) -> Self {
        let Made {
            id,
            sandbox,
            keeper,
            cells,
        } = made;
        let _ = caller.id.set(id);
        Self {
            inner: sandbox,
            clean_html: options.clean_html,
            caller,
            keeper,
            cells: cells.map(Arc::new),
            options: Arc::new(Mutex::new(options)),
            executing: Arc::default(),
            turns: Arc::default(),
        }
    }

    /// The notebook's new sandbox in place of this one, with the same id.
    pub(crate) fn renewed(&self, sandbox: Sandbox, keeper: Box<dyn Keeper>) -> Self {
        Self {
            inner: sandbox.into(),
            clean_html: self.clean_html,
            caller: Arc::clone(&self.caller),
            keeper,
            cells: self.cells.clone(),
            options: Arc::clone(&self.options),
            executing: Arc::clone(&self.executing),
            turns: Arc::clone(&self.turns),
        }
    }

    /// Waits until the commands of earlier requests are submitted. Most are submitted at once, and this does not wait.
    pub(crate) async fn turn(&self) -> Turn {
        match Arc::clone(&self.turns).try_lock_owned() {
            Ok(turn) => turn,
            Err(_) => Arc::clone(&self.turns).lock_owned().await,
        }
    }

    pub(crate) fn id(&self) -> &str {
        self.caller.id()
    }

    /// The sandbox itself.
    ///
    /// # Errors
    /// An execution is pending, or the state cannot be had.
    pub(crate) async fn own(&self) -> Result<Sandbox, RpcError> {
        match &self.inner {
            Inner::Sandbox(sandbox) => Ok(sandbox.clone()),
            Inner::Kept(kept) => Ok(kept.sandbox().await?),
        }
    }

    /// The sandbox as it is now, for what waits for nothing. `None` while only a store has the state.
    pub(crate) fn current(&self) -> Option<Sandbox> {
        match &self.inner {
            Inner::Sandbox(sandbox) => Some(sandbox.clone()),
            Inner::Kept(kept) => kept.current(),
        }
    }

    /// Interrupts its code.
    pub(crate) fn interrupt(&self) {
        match &self.inner {
            Inner::Sandbox(sandbox) => sandbox.interrupt(),
            Inner::Kept(kept) => kept.interrupt(),
        }
    }

    /// The sandbox whose executions outlive this program, if it is such a one.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn kept(&self) -> Result<&Arc<Kept>, RpcError> {
        self.inner.kept()
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        match &self.inner {
            Inner::Sandbox(sandbox) => sandbox.capabilities(),
            Inner::Kept(kept) => kept.capabilities().clone(),
        }
    }

    /// The options of a copy, which is not kept.
    pub(crate) fn options(&self) -> Options {
        let mut options = lock(&self.options).clone();
        options.persist = None;
        options
    }

    /// Notes the names that the sandbox was configured with.
    pub(crate) fn configured(&self, functions: Option<Vec<String>>, fields: Option<Vec<String>>) {
        let mut options = lock(&self.options);
        if let Some(functions) = functions {
            options.host_functions = functions;
        }
        if let Some(fields) = fields {
            options.output_fields = fields;
        }
    }

    pub(crate) fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    pub(crate) fn keeper(&self) -> &dyn Keeper {
        &*self.keeper
    }

    /// Notes an execution, so that it can be cancelled.
    pub(crate) fn executing(&self, id: &Id) -> Executing {
        let cancel = CancellationToken::new();
        lock(&self.executing).insert(id.clone(), cancel.clone());
        Executing {
            all: Arc::clone(&self.executing),
            id: id.clone(),
            cancel,
        }
    }

    /// Cancels the execution of this request. Returns false if there is none.
    pub(crate) fn cancel(&self, id: &Id) -> bool {
        let cancel = lock(&self.executing).get(id).cloned();
        cancel.inspect(CancellationToken::cancel).is_some()
    }
}
