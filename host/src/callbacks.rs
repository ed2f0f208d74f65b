//! Callbacks of a sandbox: the functions that Python calls, and the receivers of output.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use sandglass_core::budget::{Budget, Usage};
use sandglass_core::execution::Display;
use sandglass_core::protocol::Stream;
use sandglass_core::session::ToResult;
use sandglass_core::value::{ill_formed, lone_surrogate};

use crate::value::Value;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

/// Receives printed text.
pub type OnOutput = Arc<dyn Fn(Stream, &str) + Send + Sync>;
/// Receives rich outputs, each with its relation to the last expression's value.
pub type OnDisplay = Arc<dyn Fn(&Display, ToResult) + Send + Sync>;

/// A call of a host function.
#[derive(Debug, Clone)]
pub struct HostCall {
    /// The function's name.
    pub name: String,
    /// The call's positional arguments.
    pub args: Vec<Value>,
    /// The call's keyword arguments, in order.
    pub kwargs: Vec<(String, Value)>,
    /// The place in Python's code that made the call. Its numbers are the guest's word. `None` for queries.
    pub line: Option<Line>,
    /// The name of the execution that its caller gave in [`ExecuteOptions`](crate::sandbox::ExecuteOptions).
    pub request: Option<String>,
    /// The execution's budget. A recursive run gets a child of it.
    pub budget: Budget,
    /// The call's name, if its execution is [recorded](crate::kept). A call that is made again after the end of a process has the same
    /// name, so a function can look whether it has run already.
    pub id: Option<String>,
    /// The way to say that the call waits for a person's approval.
    pub approval: Approval,
    /// The fate of a call that was begun before its code was asked for. `None` for all other calls.
    pub(crate) claim: Option<Claim>,
}

/// The fate of a call that was begun before its code was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Claim(pub(crate) watch::Receiver<bool>);

impl Claim {
    /// Waits until it is known whether the code that came made the call.
    pub(crate) async fn is_used(&mut self) -> bool {
        self.0.wait_for(|claimed| *claimed).await.is_ok()
    }
}

/// Tells a sandbox that a call waits for a person's approval.
#[derive(Clone)]
pub struct Approval(pub(crate) Arc<dyn Fn(bool) + Send + Sync>);

impl Approval {
    /// Begins to wait. `hostCallTimeout` rests until the returned guard is dropped, and begins anew then.
    pub fn wait(&self) -> AwaitsApproval {
        (self.0)(true);
        AwaitsApproval(self.clone())
    }
}

impl fmt::Debug for Approval {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Approval")
    }
}

/// A call that waits for approval, until this is dropped.
#[derive(Debug)]
#[must_use = "`hostCallTimeout` goes on when this is dropped"]
pub struct AwaitsApproval(Approval);

impl Drop for AwaitsApproval {
    fn drop(&mut self) {
        (self.0.0)(false);
    }
}

impl HostCall {
    /// The text of an argument.
    ///
    /// # Errors
    /// What Python is told when there is none.
    pub fn text(&self, at: usize) -> Result<&str, String> {
        let what = || format!("argument {} of {}", at + 1, self.name);
        match self.args.get(at) {
            Some(Value::Str(text)) => Ok(text),
            Some(Value::IllFormedStr(utf16)) => Err(ill_formed(&what(), lone_surrogate(utf16).unwrap_or_default())),
            _ => Err(format!("{} must be a str", what())),
        }
    }

    /// Takes the text of an argument, which may be long. Fails like [`HostCall::text`].
    fn take_text(&mut self, at: usize) -> Result<String, String> {
        match self.args.get_mut(at) {
            Some(Value::Str(text)) => Ok(std::mem::take(text)),
            _ => self.text(at).map(str::to_owned),
        }
    }
}

/// A line of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The number of the execution that brought the code.
    pub execution: u32,
    /// The line's number, from 1.
    pub number: u32,
    /// The beginning of the line, from the code that the host sent. `None` if the running code has no such line, as in a function that
    /// an earlier execution defined.
    pub text: Option<String>,
}

/// The positional and keyword arguments of a call, and the numbers of its execution and line.
type Arguments = (Vec<Value>, Vec<(String, Value)>, Option<(u32, u32)>);

/// Takes a call's arguments apart. The error is what Python is told of a malformed call.
pub(crate) fn arguments(value: Option<Value>) -> Result<Arguments, String> {
    let parts = match value {
        Some(Value::List(args)) => return Ok((args, Vec::new(), None)), // of a query
        Some(Value::Tuple(parts)) => parts,
        only => return Ok((only.into_iter().collect(), Vec::new(), None)),
    };
    let malformed = || "the call is malformed".to_owned();
    let [args, kwargs, execution, number] = <[Value; 4]>::try_from(parts).map_err(|_| malformed())?;
    let Value::List(args) = args else {
        return Err(malformed());
    };
    let kwargs = match kwargs {
        Value::None => Vec::new(),
        Value::Dict(entries) => {
            let named = entries.into_iter().map(|(name, value)| match name {
                Value::Str(name) => Ok((name, value)),
                _ => Err(malformed()),
            });
            named.collect::<Result<_, _>>()?
        }
        _ => return Err(malformed()),
    };
    let number_of = |value: &Value| match value {
        Value::Int(number) => u32::try_from(*number).ok().filter(|number| *number > 0),
        _ => None,
    };
    Ok((args, kwargs, number_of(&execution).zip(number_of(&number))))
}

/// A question of `llm_query` or `rlm_query`.
#[derive(Debug, Clone)]
pub struct Query {
    /// The prompt, or the task.
    pub prompt: String,
    /// The context for the recursive run of `rlm_query`; `None` in `llm_query`.
    pub context: Value,
    /// The model that Python named.
    pub model: Option<String>,
    /// The name of the execution that its caller gave in [`ExecuteOptions`](crate::sandbox::ExecuteOptions).
    pub request: Option<String>,
    /// The execution's budget. A recursive run gets a child of it.
    pub budget: Budget,
    /// The fate of a query that was begun before its code was asked for.
    pub(crate) claim: Option<Claim>,
}

/// A model's answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// The text for Python.
    pub text: String,
    /// The usage of the model, for the budget. The call itself is already counted.
    pub usage: Usage,
}

impl From<String> for Answer {
    fn from(text: String) -> Self {
        Self {
            text,
            usage: Usage::default(),
        }
    }
}

impl From<&str> for Answer {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// The value of a host function, and its use of the budget.
pub(crate) type Returned = Result<(Value, Option<Usage>), String>;

/// A host function.
pub(crate) type HostFunction = Arc<dyn Fn(HostCall) -> BoxFuture<'static, Returned> + Send + Sync>;

/// All of a sandbox, by name.
pub(crate) type Functions = HashMap<String, HostFunction>;

/// Host functions by name, for [`Sandbox::configure`](crate::Sandbox::configure). A function that needs a person's approval asks for it by
/// itself, before it acts: see [`HostCall::approval`]. Python's clock stands meanwhile.
#[derive(Clone, Default)]
pub struct HostFunctions(pub(crate) Functions);

impl HostFunctions {
    /// Adds a host function, which Python calls by `name`.
    #[must_use]
    pub fn with<F, R>(mut self, name: impl Into<String>, function: F) -> Self
    where
        F: Fn(HostCall) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Value, String>> + Send + 'static,
    {
        self.0.insert(name.into(), own(function));
        self
    }

    /// Adds a host function that also tells its use of models, for the budget.
    #[must_use]
    pub fn with_usage<F, R>(mut self, name: impl Into<String>, function: F) -> Self
    where
        F: Fn(HostCall) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(Value, Usage), String>> + Send + 'static,
    {
        let function = move |call| {
            let result = function(call);
            Box::pin(async move {
                let (value, usage) = result.await?;
                Ok((value, (usage != Usage::default()).then_some(usage)))
            }) as BoxFuture<'static, Returned>
        };
        self.0.insert(name.into(), Arc::new(function));
        self
    }
}

impl fmt::Debug for HostFunctions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

/// A function of the user's own.
pub(crate) fn own<F, R>(function: F) -> HostFunction
where
    F: Fn(HostCall) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Value, String>> + Send + 'static,
{
    Arc::new(move |call| {
        let result = function(call);
        Box::pin(async move { Ok((result.await?, None)) })
    })
}

/// A host function that asks a model: `llm_query(prompt, model)`, or with `recursive` `rlm_query(task, context, model)`.
pub(crate) fn query<F, R, A>(recursive: bool, function: F) -> HostFunction
where
    F: Fn(Query) -> R + Send + Sync + 'static,
    R: Future<Output = Result<A, String>> + Send + 'static,
    A: Into<Answer>,
{
    Arc::new(move |mut call| {
        let query = call.take_text(0).map(|prompt| Query {
            prompt,
            model: call.take_text(if recursive { 2 } else { 1 }).ok(),
            request: call.request.take(),
            context: call.args.into_iter().nth(1).filter(|_| recursive).unwrap_or_default(),
            budget: call.budget,
            claim: call.claim,
        });
        let answer = query.map(&function);
        Box::pin(async move {
            let Answer { text, usage } = answer?.await?.into();
            let used = usage != Usage::default();
            Ok((Value::Str(text), used.then_some(usage)))
        })
    })
}
