//! The methods of the client's requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use futures_util::future::poll_fn;
use sandglass_core::protocol::Stream;
use sandglass_core::session::{Series, ToResult};
use sandglass_host::sandbox::{Captured, ExecuteOptions, Execution, OnDisplay, OnOutput};
use sandglass_host::{Value, sanitize_html};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value as Json, json};

use crate::blobs::Named;
use crate::client::Client;
use crate::connection::{Home, lock};
use crate::messages::{
    AddContext, AllCells, AllPersisted, BudgetCounts, CaptureState, CapturedState, Configure, Converse, Counts,
    Created, DeletePersisted, Displayed, Empty, Execute, Executed, Files, FinalAnswer, Fork, Forked, GetVariable,
    Hello, Hint, Id, Initialize, Last, ListFiles, ListPersisted, OfCell, OfCellFile, OfFile, OfSandbox, OpenState,
    OpenedState, Output, RanCell, Replay, Replayed, RestoreState, Resume, RpcError, RunCell, SeriesName, SetVariable,
    StateOf, Valued, Variable, Variables, Welcome, WireValue, WriteFile, Written,
};
use crate::options::Options;
use crate::sandbox::{Caller, ClientSandbox, Executing, Turn, name_of};

/// The description of all methods, for programs.
pub const OPENRPC: &str = include_str!("../openrpc.json");

/// Bytes that wait for the client. Above this number printed text is left out.
const MOST_OUTPUT_BYTES: usize = 8 << 20;

/// The parts of a connection that its requests share.
pub(crate) struct Context {
    pub(crate) client: Arc<Client>,
    pub(crate) home: Arc<dyn Home>,
    pub(crate) sandboxes: Mutex<HashMap<String, Arc<ClientSandbox>>>,
    pub(crate) welcome: Welcome,
}

/// The result of a request, as JSON.
type Answer = Result<Box<RawValue>, RpcError>;

macro_rules! methods {
    ($($name:literal $handler:ident $params:ty => $result:ty;)*) => {
        impl Context {
            /// Answers a request.
            pub(crate) async fn answer(
                self: Arc<Self>,
                id: Id,
                method: String,
                params: Option<Box<RawValue>>,
                mut blobs: Named,
            ) -> Answer {
                match method.as_str() {
                    "rpc.discover" => Ok(RawValue::from_string(OPENRPC.to_owned()).unwrap_or_default()),
                    $($name => {
                        let params: $params = read(params.as_deref())?;
                        let result: $result = self.$handler(&id, params, &mut blobs).await?;
                        written(&result)
                    })*
                    _ => Err(RpcError::MethodNotFound(method)),
                }
            }
        }

        #[cfg(test)]
        pub(crate) fn schemas(generator: &mut schemars::SchemaGenerator) -> Vec<(&'static str, schemars::Schema, schemars::Schema)> {
            vec![$(($name, generator.subschema_for::<$params>(), generator.subschema_for::<$result>())),*]
        }
    };
}

methods! {
    "hello" hello Hello => Welcome;
    "create" create Map<String, Json> => Created;
    "start" start OfSandbox => Empty;
    "initialize" initialize Initialize => Empty;
    "addContext" add_context AddContext => crate::messages::Named;
    "execute" execute Execute => Executed;
    "pending" pending OfSandbox => Valued;
    "resume" resume Resume => Executed;
    "discard" discard OfSandbox => Empty;
    "last" last OfSandbox => Last;
    "replay" replay Replay => Replayed;
    "listPersisted" list_persisted ListPersisted => AllPersisted;
    "deletePersisted" delete_persisted DeletePersisted => Empty;
    "hint" hint Hint => Empty;
    "written" take_written Written => Empty;
    "converse" converse Converse => Empty;
    "getVariable" get_variable GetVariable => Variable;
    "setVariable" set_variable SetVariable => Empty;
    "listVariables" list_variables OfSandbox => Variables;
    "readFile" read_file OfFile => Valued;
    "writeFile" write_file WriteFile => Empty;
    "listFiles" list_files ListFiles => Files;
    "removeFile" remove_file OfFile => Empty;
    "configure" configure Configure => Empty;
    "captureState" capture_state CaptureState => CapturedState;
    "openState" open_state OpenState => OpenedState;
    "fork" fork Fork => Forked;
    "checkpoint" checkpoint OfSandbox => StateOf;
    "undo" undo OfSandbox => StateOf;
    "restore" restore RestoreState => StateOf;
    "stats" stats OfSandbox => Counts;
    "interrupt" interrupt OfSandbox => Empty;
    "destroy" destroy OfSandbox => Empty;
    "notebook.run" run_cell RunCell => RanCell;
    "notebook.cells" list_cells OfSandbox => AllCells;
    "notebook.file" cell_file OfCellFile => Valued;
    "notebook.delete" delete_cell OfCell => Empty;
    "notebook.clear" clear_cells OfSandbox => Empty;
}

fn written(result: &impl Serialize) -> Answer {
    to_raw_value(result).map_err(|error| RpcError::internal(format!("the result could not be written: {error}")))
}

#[expect(clippy::unused_async, reason = "all handlers are called alike")]
impl Context {
    pub(crate) fn sandbox(&self, id: &str) -> Result<Arc<ClientSandbox>, RpcError> {
        let sandboxes = lock(&self.sandboxes);
        let sandbox = sandboxes.get(id).cloned();
        sandbox.ok_or_else(|| RpcError::NoSandbox(id.chars().take(100).collect()))
    }

    /// The sandbox, when it is the turn of this request's command.
    pub(crate) async fn turn(&self, id: &str) -> Result<(Arc<ClientSandbox>, Turn), RpcError> {
        let turn = self.sandbox(id)?.turn().await;
        Ok((self.sandbox(id)?, turn)) // a notebook may have another sandbox now
    }

    /// The sandbox, when it is the turn of this request's command, which is submitted at once.
    pub(crate) async fn in_turn(&self, id: &str) -> Result<Arc<ClientSandbox>, RpcError> {
        Ok(self.turn(id).await?.0)
    }

    async fn hello(&self, _: &Id, _: Hello, _: &mut Named) -> Result<Welcome, RpcError> {
        Ok(self.welcome.clone())
    }

    async fn create(&self, _: &Id, fields: Map<String, Json>, blobs: &mut Named) -> Result<Created, RpcError> {
        let mut options = Options::read(fields, self.home.bounds())?;
        let context = options.context.take();
        let context: Option<WireValue> = context.map(|context| to_raw_value(&context).unwrap_or_default());
        let context = context.map(|context| blobs.value("context", &context)).transpose()?;
        let caller = Caller::new(Arc::clone(&self.client));
        let functions = caller.functions_of(&options)?;
        let made = self.home.make(options.clone(), Box::new(functions)).await?;
        let sandbox = Arc::new(ClientSandbox::new(made, caller, options));
        // If the request is cancelled before the end, the sandbox is dropped, because nobody knows its id.
        if let Some(context) = context {
            sandbox.own().await?.initialize(context).await?;
        }
        Ok(self.add(sandbox))
    }

    /// Adds a sandbox, which the client knows from now on.
    pub(crate) fn add(&self, sandbox: Arc<ClientSandbox>) -> Created {
        sandbox.caller().known();
        let capabilities = sandbox.capabilities();
        let created = Created {
            sandbox: sandbox.id().to_owned(),
            backend: capabilities.backend.to_string(),
            capabilities: json!(capabilities),
        };
        lock(&self.sandboxes).insert(created.sandbox.clone(), sandbox);
        created
    }

    async fn start(&self, _: &Id, of: OfSandbox, _: &mut Named) -> Result<Empty, RpcError> {
        self.in_turn(&of.sandbox).await?.own().await?.start().await?;
        Ok(Empty {})
    }

    async fn initialize(&self, _: &Id, params: Initialize, blobs: &mut Named) -> Result<Empty, RpcError> {
        let sandbox = self.in_turn(&params.sandbox).await?;
        let context = blobs.value("context", &params.context)?;
        sandbox.own().await?.initialize(context).await?;
        Ok(Empty {})
    }

    async fn add_context(
        &self,
        _: &Id,
        params: AddContext,
        blobs: &mut Named,
    ) -> Result<crate::messages::Named, RpcError> {
        let sandbox = self.in_turn(&params.sandbox).await?;
        let value = blobs.value("value", &params.value)?;
        let series = match params.series {
            SeriesName::Context => Series::Context,
            SeriesName::History => Series::History,
        };
        let name = sandbox.own().await?.add_context(series, value).await?;
        Ok(crate::messages::Named { name })
    }

    async fn execute(&self, id: &Id, params: Execute, _: &mut Named) -> Result<Executed, RpcError> {
        let budget = params.budget()?;
        let Execute {
            sandbox,
            code,
            timeout,
            stream,
            ..
        } = params;
        let executing = self.sandbox(&sandbox)?.executing(id);
        let (sandbox, turn) = self.turn(&sandbox).await?;
        let options = self.execute_options(id, &sandbox, &executing, stream);
        let options = ExecuteOptions {
            timeout_ms: timeout,
            budget,
            ..options
        };
        sandbox.keeper().room().await?;
        let execution = begun(sandbox.keeper().execute(code, options), turn).await?;
        drop(executing);
        Ok(self.executed(&sandbox, execution))
    }

    /// The options of an execution for this request. With `stream`, its output is told as it comes.
    pub(crate) fn execute_options(
        &self,
        id: &Id,
        sandbox: &ClientSandbox,
        executing: &Executing,
        stream: bool,
    ) -> ExecuteOptions {
        let watch = stream.then(|| Watching {
            client: Arc::clone(&self.client),
            sandbox: sandbox.id().to_owned(),
            request: id.clone(),
            clean_html: sandbox.clean_html,
            skipped: Mutex::default(),
        });
        let (on_output, on_display) = Watching::callbacks(watch);
        ExecuteOptions {
            on_output,
            on_display,
            request: name_of(id),
            cancel: Some(executing.cancel.clone()),
            ..ExecuteOptions::default()
        }
    }

    /// The result of an execution, for the client.
    pub(crate) fn executed(&self, sandbox: &ClientSandbox, mut execution: Execution) -> Executed {
        if sandbox.clean_html {
            let html = execution.run.displays.iter_mut();
            for display in html.filter(|display| is_html(&display.mime)) {
                display.data = sanitize_html(&display.data);
            }
        }
        Executed {
            final_answer: execution.final_answer.map(|last| FinalAnswer {
                value: self.client.put(last.value),
            }),
            value: execution.value.map(|value| self.client.put(value)),
            unkept: execution.unkept,
            run: execution.run,
        }
    }

    async fn hint(&self, _: &Id, params: Hint, _: &mut Named) -> Result<Empty, RpcError> {
        let sandbox = self.sandbox(&params.sandbox)?;
        let _admitted = sandbox.keeper().admit(None)?; // none runs ahead either where no more may run
        if let Some(sandbox) = sandbox.current() {
            sandbox.hint(params.codes);
        }
        Ok(Empty {})
    }

    async fn take_written(&self, _: &Id, params: Written, _: &mut Named) -> Result<Empty, RpcError> {
        let sandbox = self.sandbox(&params.sandbox)?;
        let _admitted = sandbox.keeper().admit(params.timeout)?;
        let complete = sandglass_core::predictions::Lines::default()
            .complete(&params.code)
            .to_owned();
        // The beginning of a line predicts nothing yet.
        if (params.code.is_empty() || !complete.is_empty())
            && let Some(sandbox) = sandbox.current()
        {
            sandbox.written(&complete, params.timeout);
        }
        Ok(Empty {})
    }

    async fn converse(&self, _: &Id, params: Converse, _: &mut Named) -> Result<Empty, RpcError> {
        if let Some(sandbox) = self.sandbox(&params.sandbox)?.current() {
            sandbox.update_conversation(params.text);
        }
        Ok(Empty {})
    }

    async fn get_variable(&self, _: &Id, params: GetVariable, _: &mut Named) -> Result<Variable, RpcError> {
        let value = self
            .in_turn(&params.sandbox)
            .await?
            .own()
            .await?
            .get_variable(params.name)
            .await?;
        Ok(Variable {
            found: value.is_some(),
            value: value.map(|value| self.client.put(value)),
        })
    }

    async fn set_variable(&self, _: &Id, params: SetVariable, blobs: &mut Named) -> Result<Empty, RpcError> {
        let sandbox = self.in_turn(&params.sandbox).await?;
        let value = blobs.value("value", &params.value)?;
        sandbox.own().await?.set_variable(params.name, value).await?;
        Ok(Empty {})
    }

    async fn list_variables(&self, _: &Id, of: OfSandbox, _: &mut Named) -> Result<Variables, RpcError> {
        let variables = self.in_turn(&of.sandbox).await?.own().await?.list_variables().await?;
        Ok(Variables { variables })
    }

    async fn read_file(&self, _: &Id, params: OfFile, _: &mut Named) -> Result<Valued, RpcError> {
        let bytes = self
            .in_turn(&params.sandbox)
            .await?
            .own()
            .await?
            .read_file(params.path)
            .await?;
        Ok(Valued {
            value: self.client.put(Value::Bytes(bytes)),
        })
    }

    async fn write_file(&self, _: &Id, params: WriteFile, blobs: &mut Named) -> Result<Empty, RpcError> {
        let (sandbox, turn) = self.turn(&params.sandbox).await?;
        let bytes = match blobs.value("value", &params.value)? {
            Value::Bytes(bytes) => bytes,
            Value::Str(text) => text.into_bytes(),
            _ => return Err(RpcError::InvalidParams("value: must be bytes or a str".to_owned())),
        };
        sandbox.keeper().room_for(bytes.len()).await?;
        let writes = async {
            let written = sandbox.own().await?.write_file(params.path, bytes).await;
            written.map_err(RpcError::from)
        };
        begun(writes, turn).await?;
        Ok(Empty {})
    }

    async fn list_files(&self, _: &Id, params: ListFiles, _: &mut Named) -> Result<Files, RpcError> {
        let files = self
            .in_turn(&params.sandbox)
            .await?
            .own()
            .await?
            .list_files(params.path)
            .await?;
        Ok(Files { files })
    }

    async fn remove_file(&self, _: &Id, params: OfFile, _: &mut Named) -> Result<Empty, RpcError> {
        self.in_turn(&params.sandbox)
            .await?
            .own()
            .await?
            .remove_file(params.path)
            .await?;
        Ok(Empty {})
    }

    async fn configure(&self, _: &Id, params: Configure, _: &mut Named) -> Result<Empty, RpcError> {
        let sandbox = self.in_turn(&params.sandbox).await?;
        let Configure {
            host_functions,
            output_fields,
            ..
        } = params;
        if sandbox.kept().is_ok() {
            let problem =
                "configure: a sandbox with \"persist\" has the functions and fields of create; nothing was done";
            return Err(RpcError::InvalidParams(problem.to_owned()));
        }
        let functions = host_functions.as_deref();
        let functions = functions.map(|names| sandbox.caller().functions(names)).transpose()?;
        sandbox.own().await?.configure(functions, output_fields.clone()).await?;
        sandbox.configured(host_functions, output_fields);
        Ok(Empty {})
    }

    async fn capture_state(&self, _: &Id, params: CaptureState, _: &mut Named) -> Result<CapturedState, RpcError> {
        let sandbox = self.in_turn(&params.sandbox).await?;
        let _admitted = sandbox.keeper().admit(None)?; // pickling runs the user's code
        let most_bytes = self.home.bounds().max_state_bytes;
        let Captured { state, lost } = match params.portable {
            true => sandbox.own().await?.capture_portable_state(most_bytes).await?,
            false => sandbox.own().await?.capture_state(most_bytes).await?,
        };
        Ok(CapturedState {
            value: self.client.put(Value::Bytes(state)),
            lost,
        })
    }

    async fn open_state(&self, _: &Id, params: OpenState, blobs: &mut Named) -> Result<OpenedState, RpcError> {
        let sandbox = self.in_turn(&params.sandbox).await?;
        let Value::Bytes(state) = blobs.value("value", &params.value)? else {
            return Err(RpcError::InvalidParams("value: must be bytes".to_owned()));
        };
        let _admitted = sandbox.keeper().admit(None)?;
        let most_bytes = self.home.bounds().max_state_bytes;
        let lost = sandbox.own().await?.open_state(state, most_bytes).await?;
        Ok(OpenedState { lost })
    }

    async fn checkpoint(&self, _: &Id, of: OfSandbox, _: &mut Named) -> Result<StateOf, RpcError> {
        let execution = self.in_turn(&of.sandbox).await?.own().await?.checkpoint().await?;
        Ok(StateOf { execution })
    }

    async fn undo(&self, _: &Id, of: OfSandbox, _: &mut Named) -> Result<StateOf, RpcError> {
        let execution = self.in_turn(&of.sandbox).await?.own().await?.undo().await?;
        Ok(StateOf { execution })
    }

    async fn restore(&self, _: &Id, params: RestoreState, _: &mut Named) -> Result<StateOf, RpcError> {
        let sandbox = self.in_turn(&params.sandbox).await?;
        let execution = sandbox.own().await?.restore(params.execution).await?;
        Ok(StateOf { execution })
    }

    async fn stats(&self, _: &Id, of: OfSandbox, _: &mut Named) -> Result<Counts, RpcError> {
        let sandbox = self.sandbox(&of.sandbox)?;
        let sandbox = match sandbox.current() {
            Some(sandbox) => sandbox,
            None => sandbox.own().await?,
        };
        Ok(Counts {
            stats: sandbox.stats().await?,
            budget: BudgetCounts {
                left: sandbox.budget_left(),
                spent: sandbox.spent(),
            },
        })
    }

    async fn interrupt(&self, _: &Id, of: OfSandbox, _: &mut Named) -> Result<Empty, RpcError> {
        self.sandbox(&of.sandbox)?.interrupt();
        Ok(Empty {})
    }

    async fn destroy(&self, _: &Id, of: OfSandbox, _: &mut Named) -> Result<Empty, RpcError> {
        let sandbox = self.sandbox(&of.sandbox)?;
        lock(&self.sandboxes).remove(&of.sandbox);
        sandbox.keeper().destroy().await;
        Ok(Empty {})
    }
}

/// Awaits a command, which its first poll submits. Then it is the turn of the next one.
pub(crate) async fn begun<T>(command: impl Future<Output = T>, turn: Turn) -> T {
    let mut command = std::pin::pin!(command);
    let first = poll_fn(|context| Poll::Ready(command.as_mut().poll(context))).await;
    drop(turn);
    match first {
        Poll::Ready(done) => done,
        Poll::Pending => command.await,
    }
}

pub(crate) fn is_html(mime: &str) -> bool {
    mime.split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .eq_ignore_ascii_case("text/html")
}

/// Tells the client what an execution prints and shows.
struct Watching {
    client: Arc<Client>,
    sandbox: String,
    request: Id,
    clean_html: bool,
    /// Characters of stdout and stderr that were left out since the last notification.
    skipped: Mutex<[usize; 2]>,
}

impl Watching {
    fn callbacks(watching: Option<Self>) -> (Option<OnOutput>, Option<OnDisplay>) {
        let Some(watching) = watching.map(Arc::new) else {
            return (None, None);
        };
        let shows = Arc::clone(&watching);
        (
            Some(Arc::new(move |stream, text| watching.output(stream, text))),
            Some(Arc::new(move |display, to_result| shows.display(display, to_result))),
        )
    }

    fn is_full(&self, more: usize) -> bool {
        self.client.outbox.bytes().saturating_add(more) > MOST_OUTPUT_BYTES
    }

    fn output(&self, stream: Stream, text: &str) {
        let (stream, index) = match stream {
            Stream::Stdout => ("stdout", 0),
            Stream::Stderr => ("stderr", 1),
            _ => return,
        };
        let mut skipped = lock(&self.skipped);
        let [stdout, stderr] = &mut *skipped;
        let skipped = if index == 0 { stdout } else { stderr };
        if self.is_full(text.len()) {
            *skipped += text.chars().count();
            return;
        }
        let params = Output {
            sandbox: &self.sandbox,
            request: &self.request,
            stream,
            text,
            skipped: Some(std::mem::take(skipped)).filter(|skipped| *skipped > 0),
        };
        self.client.notify("output", params);
    }

    fn display(&self, display: &sandglass_core::execution::Display, to_result: ToResult) {
        if self.is_full(display.data.len()) {
            return; // the result holds all displays
        }
        let clean = (self.clean_html && is_html(&display.mime)).then(|| sanitize_html(&display.data));
        let params = Displayed {
            sandbox: &self.sandbox,
            request: &self.request,
            mime: &display.mime,
            data: clean.as_deref().unwrap_or(&display.data),
            to_result: match to_result {
                ToResult::Before => "before",
                ToResult::Same => "same",
                ToResult::After => "after",
            },
        };
        self.client.notify("display", params);
    }
}

/// Reads the parameters of a method.
pub(crate) fn read<P: DeserializeOwned>(params: Option<&RawValue>) -> Result<P, RpcError> {
    let text = params.map_or("{}", RawValue::get);
    serde_json::from_str(text).map_err(|error| RpcError::InvalidParams(format!("params: {error}")))
}
