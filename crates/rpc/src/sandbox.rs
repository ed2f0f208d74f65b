//! A connection's sandbox, and the functions of the client that Python calls.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};

use sandglass_core::budget::Usage;
use sandglass_host::sandbox::{Answer, HostCall, HostFunctions, Query, SandboxBuilder};
use sandglass_host::{Sandbox, Value};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::connection::{Client, Keeper, Made, lock};
use crate::messages::{Answered, BLOB_BYTES, Call, CodeLine, Id, LlmQuery, Returned, RlmQuery, UsageOfCall};
use crate::options::Options;

/// The client's side of a sandbox: what its host functions need.
pub(crate) struct Caller {
    client: Arc<Client>,
    /// The sandbox's id, once it is made. No code runs before.
    id: OnceLock<String>,
    /// The executions that run or wait, in order.
    executing: Mutex<VecDeque<(Id, CancellationToken)>>,
}

/// A sandbox of a connection.
pub(crate) struct ClientSandbox {
    pub(crate) sandbox: Sandbox,
    /// True if the HTML of rich outputs is cleaned.
    pub(crate) clean_html: bool,
    configured: Mutex<Configured>,
    caller: Arc<Caller>,
    keeper: Box<dyn Keeper>,
}

/// The settings that `configure` changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Configured {
    pub(crate) host_functions: Vec<String>,
    pub(crate) output_fields: Vec<String>,
}

/// An execution's place among those of its sandbox. Dropping it ends the place.
pub(crate) struct Place {
    caller: Arc<Caller>,
    id: Id,
    /// Cancelled when the client takes back an execution that has not begun.
    pub(crate) taken_back: CancellationToken,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.caller.executing).retain(|(id, _)| *id != self.id);
    }
}

impl Caller {
    pub(crate) fn new(client: Arc<Client>) -> Arc<Self> {
        Arc::new(Self {
            client,
            id: OnceLock::new(),
            executing: Mutex::default(),
        })
    }

    /// Adds the client's functions to a sandbox.
    pub(crate) fn functions_of(
        self: &Arc<Self>,
        options: &Options,
    ) -> impl FnOnce(SandboxBuilder) -> SandboxBuilder + use<> {
        let functions = self.functions(&options.host_functions);
        let (caller, llm, rlm) = (Arc::clone(self), options.on_llm_query, options.on_rlm_query);
        let max_result_bytes = options.max_result_bytes;
        move |mut builder| {
            builder = builder.host_functions(functions).values(max_result_bytes);
            if llm {
                let caller = Arc::clone(&caller);
                builder = builder.on_llm_query(move |query| Arc::clone(&caller).llm_query(query));
            }
            if rlm {
                builder = builder.on_rlm_query(move |query| Arc::clone(&caller).rlm_query(query));
            }
            builder
        }
    }

    /// Host functions of these names, which the client answers.
    pub(crate) fn functions(self: &Arc<Self>, names: &[String]) -> HostFunctions {
        names.iter().fold(HostFunctions::default(), |functions, name| {
            let caller = Arc::clone(self);
            functions.with(name, move |call| Arc::clone(&caller).call(call))
        })
    }

    fn id(&self) -> &str {
        self.id.get().map_or("", String::as_str)
    }

    /// The execution that runs.
    fn request(&self) -> Option<Id> {
        lock(&self.executing).front().map(|(id, _)| id.clone())
    }

    async fn call(self: Arc<Self>, call: HostCall) -> Result<Value, String> {
        let HostCall {
            name,
            args,
            kwargs,
            line,
            ..
        } = call;
        let args: Vec<_> = args.iter().map(Value::to_json).collect();
        let kwargs: serde_json::Map<_, _> = kwargs
            .iter()
            .map(|(name, value)| (name.clone(), value.to_json()))
            .collect();
        let (args, kwargs) = (json!(args), json!(kwargs));
        let (args_text, kwargs_text) = (args.to_string(), kwargs.to_string());
        let is_large = args_text.len() + kwargs_text.len() > BLOB_BYTES;
        let small = |text: String| {
            serde_json::value::RawValue::from_string(text)
                .ok()
                .filter(|_| !is_large)
        };
        let params = Call {
            sandbox: self.id(),
            request: self.request(),
            name: &name,
            args: small(args_text),
            kwargs: small(kwargs_text),
            arguments: is_large.then(|| self.client.put_json(&json!({ "args": args, "kwargs": kwargs }))),
            line: line.map(|line| CodeLine {
                execution: line.execution,
                number: line.number,
            }),
        };
        let Returned { value, usage: _ } = self.client.ask("call", params).await?;
        let what = format!("the result of {name}");
        let value = value.map(|value| self.client.value(&what, &value)).transpose();
        Ok(value.map_err(|error| error.to_string())?.unwrap_or_default())
    }

    async fn llm_query(self: Arc<Self>, query: Query) -> Result<Answer, String> {
        let params = LlmQuery {
            sandbox: self.id(),
            request: self.request(),
            prompt: self.client.put(Value::Str(query.prompt)),
            model: query.model,
        };
        let answered = self.client.ask("llmQuery", params).await?;
        self.answer("llm_query", answered)
    }

    async fn rlm_query(self: Arc<Self>, query: Query) -> Result<Answer, String> {
        let params = RlmQuery {
            sandbox: self.id(),
            request: self.request(),
            task: self.client.put(Value::Str(query.prompt)),
            context: self.client.put(query.context),
            model: query.model,
        };
        let answered = self.client.ask("rlmQuery", params).await?;
        self.answer("rlm_query", answered)
    }

    fn answer(&self, name: &str, answered: Answered) -> Result<Answer, String> {
        let Answered { text, usage } = answered;
        let text = self.client.value(&format!("the answer of {name}"), &text);
        let Value::Str(text) = text.map_err(|error| error.to_string())? else {
            return Err(format!("the answer of {name} is not a str"));
        };
        let usage = usage.map_or_else(Usage::default, UsageOfCall::into);
        Ok(Answer { text, usage })
    }
}

impl ClientSandbox {
    pub(crate) fn new(made: Made, caller: Arc<Caller>, configured: Configured, clean_html: bool) -> Self {
        let Made { id, sandbox, keeper } = made;
        let _ = caller.id.set(id);
        Self {
            sandbox,
            clean_html,
            configured: Mutex::new(configured),
            caller,
            keeper,
        }
    }

    pub(crate) fn id(&self) -> &str {
        self.caller.id()
    }

    pub(crate) fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// The settings with these changes. A missing part stays as it is.
    pub(crate) fn configured(
        &self,
        host_functions: Option<Vec<String>>,
        output_fields: Option<Vec<String>>,
    ) -> Configured {
        let before = lock(&self.configured).clone();
        Configured {
            host_functions: host_functions.unwrap_or(before.host_functions),
            output_fields: output_fields.unwrap_or(before.output_fields),
        }
    }

    /// Notes that the sandbox has these settings.
    pub(crate) fn keep(&self, configured: Configured) {
        *lock(&self.configured) = configured;
    }

    /// Takes the next place among the executions.
    pub(crate) fn place(&self, id: Id) -> Place {
        let taken_back = CancellationToken::new();
        lock(&self.caller.executing).push_back((id.clone(), taken_back.clone()));
        Place {
            caller: Arc::clone(&self.caller),
            id,
            taken_back,
        }
    }

    /// Interrupts the execution of this request, or takes it back if it has not begun. Returns false if there is none.
    pub(crate) fn cancel(&self, id: &Id) -> bool {
        let executing = lock(&self.caller.executing);
        let Some(at) = executing.iter().position(|(waiting, _)| waiting == id) else {
            return false;
        };
        match executing.get(at) {
            Some((_, taken_back)) if at > 0 => taken_back.cancel(),
            _ => self.sandbox.interrupt(),
        }
        true
    }

    pub(crate) fn keeper(&self) -> &dyn Keeper {
        &*self.keeper
    }
}

/// A sandbox that a request uses.
pub(crate) struct Used {
    sandbox: Arc<ClientSandbox>,
    _guard: Box<dyn Send>,
}

impl Used {
    pub(crate) fn new(sandbox: Arc<ClientSandbox>) -> Self {
        let _guard = sandbox.keeper.enter();
        Self { sandbox, _guard }
    }
}

impl Deref for Used {
    type Target = ClientSandbox;

    fn deref(&self) -> &ClientSandbox {
        &self.sandbox
    }
}
