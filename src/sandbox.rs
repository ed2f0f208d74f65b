//! The public API: what `createSandbox` returns.

use std::rc::Rc;

use js_sys::{Array, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise};

use super::arguments::{entries, source, text, whole_number};
use super::budget::{JsBudget, shown};
use super::current::Current;
use super::driver::Driver;
use super::feedback::FeedbackOptions;
use super::glue::{Glue, get, object, thrown};
use super::options::{Options, Watch};
use super::outbox::JsBody;
use super::packages;
use super::persist::HistoryValue;
use super::pieces::Pieces;
use super::source::Source;
use sandglass_core::error::Error;
use sandglass_core::session::{Command, Execute, Input, Series, StateCommand, Target, VariableCommand, Wanted};
use sandglass_rlm::parse::code_so_far;

/// The most messages at the end of a conversation whose words count.
const MOST_MESSAGES: usize = 4;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** The options of `createSandbox`. An unknown or ill-typed option rejects with code `invalid_option`. */
export interface SandboxOptions {
  /** Milliseconds of guest time per execution: time in which Python runs and does not wait for the host. Default 30 000. */
  timeout?: number;
  /** Milliseconds per execution in all, host calls included. Default: no limit. */
  wallTimeout?: number;
  /** Milliseconds per host call. Default 600 000. */
  hostCallTimeout?: number;
  /** Milliseconds between an interrupt and the end of a guest that does not stop. Default 1 000. */
  gracePeriod?: number;
  /** Milliseconds that a guest may take to start. Default 120 000. */
  bootTimeout?: number;
  /** Characters (code points) that are kept of stdout, and of stderr. Default 50 000. */
  maxOutputLength?: number;
  /** Host calls per execution. Default 10 000. */
  maxHostCalls?: number;
  /** Host calls that may run at the same time. Default 32. */
  maxConcurrentHostCalls?: number;
  /** Characters of source per execution. Default 1 000 000. */
  maxCodeLength?: number;
  /** Bytes that one value may have when it crosses between JavaScript and Python. Default 512 MiB. */
  maxValueSize?: number;
  /** Bytes of memory for Python. Beyond this, Python raises MemoryError. Python itself takes 31 MB. Default 2 GiB. */
  memoryLimit?: number;
  /** Bytes of all files in the sandbox together. Beyond this, writing is an `OSError` in Python. Default 256 MiB. */
  maxFileBytes?: number;
  /**
   * The share of the sandbox's time, from 0 to 1, that may be spent on code that ran ahead and was then not asked for. A minute is added
   * to the sandbox's time, so that a new sandbox may run code ahead. Beyond the share, only code that is being written runs ahead.
   * Default 0.05.
   */
  maxAheadShare?: number;
  /**
   * The most shadows, from 1 to 8: guests that run code ahead, or have run it and wait. Each code of a `hint` has one. There are fewer
   * where memory is short. Default 2.
   */
  maxShadows?: number;
  /**
   * `"auto"` (default) saves the state while nothing runs, so that the state survives the loss of a guest. With a `backend` in bubblewrap or a
   * plain process: the number of states that are kept, from 1 to 16. Default there: none.
   */
  checkpoints?: "auto" | "off" | number;
  /**
   * `"auto"`: the sandbox guesses code, and runs it ahead when no code is hinted at or being written. It guesses by the variables and their
   * columns, by the code before, and by the conversation (`updateConversation`). It guesses less where guesses have not been worth their
   * time. See `predictions()`. Default `"off"`.
   */
  predictions?: "auto" | "off";
  /**
   * The name of a session. If the browser has kept it, the sandbox goes on from its newest checkpoint, exactly, and `context` need not be
   * given again. From then on, the browser keeps the sandbox's state whenever it is saved. One sandbox at a time has a session; another one
   * rejects with `persist_in_use`.
   */
  persist?: string | PersistOptions;
  /** Spares: guests that are kept ready to take over. The sandboxes of a page share them. Default 1. */
  spares?: number;
  /** Answers `llm_query(prompt, model)`: a function, or an endpoint. `id`: as that of a `HostCall`. */
  onLLMQuery?:
    | RlmEndpoint
    | ((prompt: string, info: { model?: string; signal: AbortSignal; id?: string }) => string | Answer | Promise<string | Answer>);
  /**
   * Answers `rlm_query(task, context)`. `budget` is for the child's sandbox: a part of this sandbox's budget, one level deeper. In the
   * profiles `rlm` and `rlm-legacy`, Python calls `rlm_query(prompt, model)`: the child gets the prompt only, and `context` is null.
   */
  onRLMQuery?: (
    task: string,
    context: unknown,
    info: { model?: string; signal: AbortSignal; budget: Budget; id?: string },
  ) => string | Answer | Promise<string | Answer>;
  /**
   * The budget for models, of all executions of this sandbox together: limits, or the budget of another sandbox, to share it. A call beyond
   * it raises LimitError in Python. When its time is over, the execution ends with outcome `limit`.
   */
  budget?: BudgetLimits | Budget;
  /** Host functions: functions that Python calls by name. An object has a function and its settings. */
  hostFunctions?: Record<string, ((...args: any[]) => unknown) | HostFunction>;
  /**
   * Decides about a call of a host function with `approve: true`, before the function runs. Several calls may wait at once. Only
   * `wallTimeout` and the time of a `budget` go on meanwhile.
   */
  onApprove?: (call: HostCall) => Approval | Promise<Approval>;
  /**
   * The project whose prompts and controllers Python suits, in names, signatures and the look of failures. `"default"`; `"rlm"`
   * (alexzhang13/rlm from 0.1.2 on), `"rlm-legacy"` (up to 0.1.1a, and rlm-minimal), `"rlm-core"` (DwayneWilkes/rlm), `"dspy"` (its `RLM`
   * module).
   */
  profile?: Profile;
  /** The names of the values that `SUBMIT` takes, by position or by name. Default: `SUBMIT` takes any. */
  outputFields?: string[];
  /**
   * In browsers: `"frame"` (default), an opaque origin without network; or `"worker"`, a plain worker, for where there is no DOM. On Node,
   * Deno and Bun: `"process"` (default), a process that can reach nothing of the machine; or `"none"`, a process with all rights of yours.
   */
  isolation?: "frame" | "worker" | "process" | "none";
  /**
   * A `sandglass-host` server that runs Python instead of the page: in bubblewrap, in Docker or as a plain process, see
   * `capabilities.isolation`. Functions, budgets and time limits stay in the page. Packages are those of the server's Python. `checkpoint`,
   * `undo` and `restore` need `checkpoints: n`, and `fork` copies by value. See `moveTo`.
   */
  backend?: Backend;
  /** The address of the package's `dist/`. Default: beside the package's entry. */
  assetsUrl?: string;
  /** Hears what Python prints, as it comes. */
  onStdout?: (text: string) => void;
  /** Hears what Python writes to `sys.stderr`, as it comes. */
  onStderr?: (text: string) => void;
  /** Hears rich outputs, as they come. Their content comes from the guest: do not trust it. */
  onDisplay?: (display: Display) => void;
  /** Hears the progress of work that takes time. */
  onProgress?: (progress: Progress) => void;
}

/** A server's address. */
export interface Backend {
  /** The `http` or `https` address that `sandglass-host serve` prints. */
  url: string | URL;
  /** A key of the server, if it has any. Whoever can use the page can read the key, so give each user a key of their own. */
  apiKey?: string;
}

/**
 * The progress of a boot, of a package's file, or of host calls that Python made at once, such as a batch. `backend`: a server is asked for
 * a guest. `cold`: the memory that guests start from has to be made anew; the reason says why. `kept`: the browser has kept the state after
 * this execution (`persist`). `unkept`: it could not, and the reason says why; what was kept before is still there.
 */
export type Progress =
  | { stage: "assets" | "backend" | "python" | "ready" }
  | { stage: "cold"; reason: string }
  | { stage: "kept"; execution: number }
  | { stage: "unkept"; execution: number; reason: string }
  | PackageProgress
  | { stage: "calls"; name: string; done: number; failed: number; total: number };

/** The options of one `execute`. */
export interface ExecuteOptions {
  /** Milliseconds of guest time, instead of the sandbox's `timeout`. */
  timeout?: number;
  /** The part of the sandbox's budget that this execution may spend. */
  budget?: BudgetLimits;
  /** Interrupts the execution, or keeps it from starting. */
  signal?: AbortSignal;
  /** Hears what this execution prints, as it comes. */
  onStdout?: (text: string) => void;
  /** Hears what this execution writes to `sys.stderr`, as it comes. */
  onStderr?: (text: string) => void;
  /** Hears what this execution shows, as it comes. */
  onDisplay?: (display: Display) => void;
}

/** The options of `feedback`. */
export interface FeedbackOptions {
  /** The profile that the text follows. Default: the sandbox's `profile`. */
  format?: Profile | "rlm-minimal";
  /** The number of the code block, from 1, when the reply has several. */
  block?: number;
  /**
   * The variables to list, where the format lists any: names, or the result of `listVariables`. Of the latter, the text lists those that
   * the project would.
   */
  variables?: (string | Variable)[];
  /** The number of the next turn, from 1, and the most turns. The format `rlm` adds them at the end; the others do not. */
  turn?: number;
  turns?: number;
  /** Characters of the execution that are shown. Default 20 000; `dspy` 10 000, `rlm-minimal` 100 000. */
  maxLength?: number;
}

export interface CodeExecution {
  /** The final answer, when the code declared one with `FINAL`, `FINAL_VAR`, `SUBMIT` or `answer`. */
  final?: { value: unknown };
}

/** A user's variable. */
export interface Variable {
  name: string;
  /** The name of its value's class. */
  type: string;
  /** `len()` of a built-in container or string; null for other values. */
  length: number | null;
}

/** A file or folder in the sandbox. */
export interface FileEntry {
  /** The path: relative to the working folder, or absolute in `/tmp`. */
  path: string;
  /** Bytes; 0 for a folder. */
  size: number;
  /** The time of the last write, in milliseconds since 1970. */
  modified: number;
  type: "file" | "directory";
}

export interface Sandbox {
  /**
   * Runs code that is still being written, such as a model's reply. All pieces together are one execution. It takes its place among other
   * calls when the last piece has come. Until then, the sandbox works ahead: it fetches imported packages as soon as their line is complete
   * (`autoImport`), starts a guest if there is none, and runs statements in a copy of the sandbox. Nobody sees the effects of these
   * statements before the last piece, and they are dropped if the last piece makes them another program. `signal` also ends the wait for
   * pieces. Rejects with `source_failed` when the source of the pieces fails; then nothing was run.
   */
  executeStream(code: ReadableStream<string> | AsyncIterable<string>, options?: ExecuteOptions): Promise<CodeExecution>;
  /**
   * Fetches the packages that the code in the model's newest message imports. Call it also while the message is being written, whenever
   * there is more of it. With `predictions: "auto"`, the sandbox also guesses code by the words of the newest messages. A string is a
   * message of the model.
   */
  updateConversation(messages: Message[] | string): Promise<void>;
  /** Reads a file. Rejects with code `file_not_found` when it does not exist. */
  readFile(path: string): Promise<Uint8Array>;
  /** Reads a file of UTF-8 text. */
  readFile(path: string, options: { encoding: "utf-8" }): Promise<string>;
}

/** The facts and abilities of a sandbox. */
export interface Capabilities {
  /** `bubblewrap` and `deno` confine guests of Node, Deno and Bun, where `none` means no isolation. */
  isolation: "frame" | "worker" | "bubblewrap" | "deno" | "none" | "docker" | "subprocess" | "jupyter";
  /** The way Python waits for the host: `atomics`, `jspi` or `none`; `native` on a server. */
  bridge: string;
  /** True when running code can be interrupted and its state kept. */
  softInterrupt: boolean;
  /** The size of Python's memory at most, in bytes. */
  memoryLimit: number;
  python: string;
  pyodide: string | null;
}
"#;

#[wasm_bindgen]
extern "C" {
    /// TypeScript's `SandboxOptions | undefined`.
    #[wasm_bindgen(typescript_type = "SandboxOptions | undefined")]
    pub type SandboxOptionsValue;
    /// TypeScript's `Promise<void>`.
    #[wasm_bindgen(typescript_type = "Promise<void>")]
    pub type VoidPromise;
    /// TypeScript's `Stats`.
    #[wasm_bindgen(typescript_type = "Stats")]
    pub type StatsValue;
    /// TypeScript's `Prediction[]`.
    #[wasm_bindgen(typescript_type = "Prediction[]")]
    pub type PredictionsValue;
    /// TypeScript's `Promise<string>`.
    #[wasm_bindgen(typescript_type = "Promise<string>")]
    pub type TextPromise;
    /// TypeScript's `Promise<number>`.
    #[wasm_bindgen(typescript_type = "Promise<number>")]
    pub type NumberPromise;
    /// TypeScript's `Promise<Sandbox>`.
    #[wasm_bindgen(typescript_type = "Promise<Sandbox>")]
    pub type SandboxPromise;
    /// TypeScript's `Promise<unknown>`.
    #[wasm_bindgen(typescript_type = "Promise<unknown>")]
    pub type ValuePromise;
    /// TypeScript's `Promise<CodeExecution>`.
    #[wasm_bindgen(typescript_type = "Promise<CodeExecution>")]
    pub type ExecutionPromise;
    /// TypeScript's `Promise<Variable[]>`.
    #[wasm_bindgen(typescript_type = "Promise<Variable[]>")]
    pub type VariablesPromise;
    /// TypeScript's `Promise<FileEntry[]>`.
    #[wasm_bindgen(typescript_type = "Promise<FileEntry[]>")]
    pub type FilesPromise;
    /// TypeScript's `Promise<LoadedPackage[]>`.
    #[wasm_bindgen(typescript_type = "Promise<LoadedPackage[]>")]
    pub type PackagesPromise;
    /// TypeScript's `Capabilities`.
    #[wasm_bindgen(typescript_type = "Capabilities")]
    pub type CapabilitiesValue;
}

/// A Python interpreter with a context. It runs in a worker of its own, or on a server.
#[wasm_bindgen]
pub struct Sandbox {
    pub(super) current: Rc<Current>,
}

/// Starts a sandbox. Resolves when Python is ready.
#[wasm_bindgen(js_name = startSandbox)]
pub async fn start_sandbox(glue: Glue, options: SandboxOptionsValue) -> Result<Sandbox, JsValue> {
    console_error_panic_hook::set_once();
    let options = Options::parse(&options).map_err(|error| thrown(&glue, &error))?;
    let driver = Driver::open(glue, options).await?;
    let started = JsFuture::from(driver.submit(Command::Start));
    let wanted = driver.options().packages.wanted.clone();
    if !wanted.is_empty() {
        let load = Command::Load(Wanted::Requirements(wanted));
        let loaded = JsFuture::from(driver.submit(load));
        loaded.await.inspect_err(|_| driver.feed(Input::Destroy))?;
    }
    started.await.inspect_err(|_| driver.feed(Input::Destroy))?;
    if driver.keeper().is_some() {
        // Resolves when the guest has the state that was kept, or at least its packages.
        let wait = match driver.has_kept_state() {
            true => Command::State(StateCommand::Checkpoint),
            false => Command::Load(Wanted::Requirements(Vec::new())),
        };
        let restored = JsFuture::from(driver.submit(wait));
        restored.await.inspect_err(|_| driver.feed(Input::Destroy))?;
    }
    Ok(Sandbox::new(driver))
}

#[wasm_bindgen]
impl Sandbox {
    /// Assigns `context`, a value of any size, to the Python variable `context`, which survives every restart of the guest. Call it before
    /// the first `execute`, with `null` if there is no context.
    pub fn initialize(&self, context: &JsValue) -> VoidPromise {
        self.put(Target::Context, context)
    }

    /// Runs Python code. Calls run in their order. Rejects only when the sandbox itself cannot run code; an error in Python is in the
    /// result.
    pub fn execute(
        &self,
        #[wasm_bindgen(unchecked_param_type = "string")] code: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "ExecuteOptions")] options: &JsValue,
    ) -> ExecutionPromise {
        let promise = source(code).and_then(|code| {
            let mut execute = Execute::of(code);
            let watch = Watch::of_execute(&mut execute, options)?;
            let execute = Command::Execute(execute);
            Ok(self
                .current
                .call(|driver| Ok(driver.submit_for(execute, watch, Driver::present))))
        });
        self.promise(promise).unchecked_into()
    }

    /// Runs code that comes piece by piece.
    #[wasm_bindgen(js_name = executeStream, skip_typescript)]
    pub fn execute_stream(&self, code: &JsValue, options: &JsValue) -> Promise {
        let mut execute = Execute::default();
        let begun = Watch::of_execute(&mut execute, options).and_then(|watch| Ok((watch, Pieces::of(code)?)));
        let promise = begun.map(|(watch, pieces)| {
            self.current
                .call(|driver| driver.execute_written(execute, watch, pieces))
        });
        self.promise(promise)
    }

    /// Names code that will probably be run next. Of several codes, one will, and the likeliest comes first. The sandbox fetches the
    /// packages that the codes import (`autoImport`), and starts a guest if there is none. Resolves when nothing is left to prepare. When
    /// the sandbox is idle and its state is saved, each code runs ahead in a copy of the sandbox (`maxShadows`). The copy takes the
    /// sandbox's place when `execute` is called with exactly that code and nothing has changed since. Otherwise nobody sees its effects.
    /// The page's functions are not called before that. While code is being written (`executeStream`), only a hint that begins with that
    /// code counts: it is taken for all of the code, and runs to its end.
    pub fn hint(&self, #[wasm_bindgen(unchecked_param_type = "string | string[]")] code: &JsValue) -> VoidPromise {
        let codes = match code.dyn_ref::<Array>() {
            Some(codes) => codes.iter().map(|code| text("code", &code)).collect(),
            None => text("code", code).map(|code| vec![code]),
        };
        let promise = codes.map(|codes: Vec<String>| {
            self.current.call(|driver| match driver.is_destroyed() {
                true => Err(Error::Destroyed),
                false => Ok(driver.hint(codes, sandglass_core::predictions::Source::Explicit)),
            })
        });
        self.promise(promise).unchecked_into()
    }

    /// Prepares the code in the model's newest message, and guesses by the newest messages.
    #[wasm_bindgen(js_name = updateConversation, skip_typescript)]
    pub fn update_conversation(&self, messages: &JsValue) -> Promise {
        let promise = newest_messages(messages).map(|(reply, said)| {
            self.current.call(move |driver| {
                if driver.is_destroyed() {
                    return Err(Error::Destroyed);
                }
                let promise = driver.prepare(&code_so_far(&reply));
                driver.converse(&said);
                Ok(promise)
            })
        });
        self.promise(promise)
    }

    /// The guesses of the next code, the most worthwhile first. None without `predictions: "auto"`, and none while code runs. At most one
    /// of them runs ahead.
    pub fn predictions(&self) -> PredictionsValue {
        shown(&self.driver().predictions()).unchecked_into()
    }

    /// The counts of the sandbox's work so far.
    pub fn stats(&self) -> StatsValue {
        shown(&self.driver().stats()).unchecked_into()
    }

    /// The counts of code that ran ahead, by outcome, in Prometheus' text format.
    pub fn metrics(&self) -> String {
        self.driver().stats().metrics()
    }

    /// Reads a variable; `undefined` when it does not exist.
    #[wasm_bindgen(js_name = getVariable)]
    pub fn get_variable(&self, #[wasm_bindgen(unchecked_param_type = "string")] name: &JsValue) -> ValuePromise {
        let promise = text("name", name).map(|name| self.submit(Command::Variable(VariableCommand::Get(name))));
        self.promise(promise).unchecked_into()
    }

    /// The text that tells a model how an execution went, in the words of controllers of the sandbox's `profile`.
    pub fn feedback(
        &self,
        #[wasm_bindgen(unchecked_param_type = "CodeExecution")] execution: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "FeedbackOptions")] options: &JsValue,
    ) -> Result<String, JsValue> {
        FeedbackOptions::parse(options, self.driver().options().profile)
            .and_then(|options| options.tell(execution))
            .map_err(|error| thrown(self.driver().glue(), &error))
    }

    /// Assigns a variable.
    #[wasm_bindgen(js_name = setVariable)]
    pub fn set_variable(
        &self,
        #[wasm_bindgen(unchecked_param_type = "string")] name: &JsValue,
        value: &JsValue,
    ) -> VoidPromise {
        match text("name", name) {
            Ok(name) => self.put(Target::Variable(name), value).unchecked_into(),
            Err(error) => self.promise(Err(error)).unchecked_into(),
        }
    }

    /// Adds a value to a series of variables. Resolves to the name of the new variable: `context_1` and so on, where `context_0` is
    /// `context`. Other series are `"session_context"` (from `session_context_0`, all in the list `context_history`) and `"history"` (from
    /// `history_0`, all in the list `session_history`). Like `context`, they survive every restart of the guest.
    #[wasm_bindgen(js_name = addContext)]
    pub fn add_context(
        &self,
        context: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "{ series?: \"context\" | \"session_context\" | \"history\" }")]
        options: &JsValue,
    ) -> TextPromise {
        match series(options) {
            Ok(series) => self.put(Target::Next(series), context).unchecked_into(),
            Err(error) => self.promise(Err(error)).unchecked_into(),
        }
    }

    /// Lists the user's variables.
    #[wasm_bindgen(js_name = listVariables)]
    pub fn list_variables(&self) -> VariablesPromise {
        self.submit(Command::Variable(VariableCommand::List)).unchecked_into()
    }

    /// Loads packages, in this guest and in every later one of this sandbox. A requirement is `name`, `name>=2,<3`, `name[extra]`, `name @
    /// https://….whl`, or a wheel's address; `#sha256=…` may follow an address. The page fetches the packages and their requirements by the
    /// lock file. Resolves to the packages that were not loaded before. Rejects with `package_not_found`, `integrity` or `asset_failed`;
    /// then nothing was installed.
    #[wasm_bindgen(js_name = loadPackages)]
    pub fn load_packages(
        &self,
        #[wasm_bindgen(unchecked_param_type = "string[]")] requirements: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "LoadOptions")] options: &JsValue,
    ) -> PackagesPromise {
        let promise = packages::requirements("requirements", requirements).and_then(|wanted| {
            let watch = Watch::of_load(options)?;
            let load = Command::Load(Wanted::Requirements(wanted));
            Ok(self.current.call(|driver| {
                if driver.options().backend.is_some() {
                    let why =
                        "cannot be loaded with a backend: packages are those of the server's Python; nothing was installed";
                    return Err(Error::invalid("requirements", why));
                }
                Ok(driver.submit_for(load, watch, Driver::present))
            }))
        });
        self.promise(promise).unchecked_into()
    }

    /// Saves the state now; `checkpoints: "auto"` saves it when nothing runs. Resolves to the number of the execution that the state
    /// follows (0 before the first). With `persist`, the browser has kept it then. Rejects when the state cannot be saved.
    pub fn checkpoint(&self) -> NumberPromise {
        let saved = self.current.call(|driver| {
            let saved = driver.submit(Command::State(StateCommand::Checkpoint));
            let Some(keeper) = driver.keeper() else {
                return Ok(saved);
            };
            let driver = Rc::clone(driver);
            Ok(future_to_promise(async move {
                let execution = JsFuture::from(saved).await?;
                driver.keep_again();
                keeper.settled().await?;
                Ok(execution)
            }))
        });
        saved.unchecked_into()
    }

    /// The states to which `restore` can go back, the newest first. With `persist`, also those of earlier visits.
    pub fn history(&self) -> HistoryValue {
        self.driver().history()
    }

    /// Goes back to the newest checkpoint of an execution, or to the newest one of all. Variables, files and `context` are as they were
    /// then. Resolves to the number of that execution. Rejects with code `no_checkpoint`, and changes nothing, when there is none.
    /// Checkpoints are made when nothing runs, and by `checkpoint`.
    pub fn restore(
        &self,
        #[wasm_bindgen(unchecked_optional_param_type = "number")] execution: &JsValue,
    ) -> NumberPromise {
        let promise = count("execution", execution)
            .map(|execution| self.submit(Command::State(StateCommand::Restore(execution))));
        self.promise(promise).unchecked_into()
    }

    /// Undoes the last execution, also if nothing was saved before it: then the executions since the last checkpoint are repeated. If the
    /// state before it cannot be had, as after a state that takes long to save, rejects with code `no_checkpoint` and changes nothing.
    /// Resolves to the number of the execution whose state is current now.
    pub fn undo(&self) -> NumberPromise {
        self.submit(Command::State(StateCommand::Undo)).unchecked_into()
    }

    /// The execution that was under way when the last page of the kept session ended (`persist: { journal: true }`), and the calls that it
    /// waits for. Null if there is none. Until `resume` or `discard`, other calls reject with `execution_pending`.
    #[wasm_bindgen(unchecked_return_type = "Promise<PendingExecution | null>")]
    pub fn pending(&self) -> Promise {
        Promise::resolve(&self.driver().pending())
    }

    /// Goes on with the pending execution: its code runs again from the state before it, and gets the answers of the journal. Calls that have an
    /// answer are not made again. A call without one is made again, unless `answers` has it. Resolves to the execution. Rejects with
    /// `journal_differs` if the code goes another way than the journal says; then the execution is still pending.
    pub fn resume(
        &self,
        #[wasm_bindgen(unchecked_optional_param_type = "ResumeOptions")] options: &JsValue,
    ) -> ExecutionPromise {
        self.promise(self.driver().resume(options)).unchecked_into()
    }

    /// Gives the pending execution up. The state stays as it was before it.
    pub fn discard(&self) -> VoidPromise {
        self.driver().discard().unchecked_into()
    }

    /// Runs an ended execution again in a copy of the state before it, by its journal (`persist: { journal: true }`): no function is called, and
    /// the result is the same. With other `answers`, shows what would have come of them. The sandbox itself stays as it is.
    #[wasm_bindgen(unchecked_return_type = "Promise<Replay>")]
    pub fn replay(
        &self,
        #[wasm_bindgen(unchecked_param_type = "number")] execution: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "ReplayOptions")] options: &JsValue,
    ) -> Promise {
        let number = whole_number("execution", execution, "must be the number of an execution");
        self.promise(number.and_then(|number| self.driver().replay(number, options)))
    }

    /// Interrupts the running execution, if any. Its output and its assignments are kept if it stops within `gracePeriod`. Its `execute`
    /// resolves with outcome `interrupted`.
    pub fn interrupt(&self) {
        self.driver().feed(Input::Interrupt);
    }

    /// Ends the sandbox: its worker, its frame and all pending calls. Later calls reject.
    pub fn destroy(&self) -> VoidPromise {
        self.current.destroy();
        let Some(keeper) = self.driver().keeper() else {
            return Promise::resolve(&JsValue::UNDEFINED).unchecked_into();
        };
        let ended = async move {
            let _ = keeper.settled().await; // another sandbox can have the session from then on
            Ok(JsValue::UNDEFINED)
        };
        future_to_promise(ended).unchecked_into()
    }

    /// The sandbox's budget for models, with what was spent. A sandbox that is created with this budget shares it.
    #[wasm_bindgen(getter)]
    pub fn budget(&self) -> JsBudget {
        JsBudget::new(self.driver().budget())
    }

    /// The facts and abilities of the sandbox.
    #[wasm_bindgen(getter)]
    pub fn capabilities(&self) -> CapabilitiesValue {
        let info = self.driver().guest_info();
        let isolation = self.driver().isolation(); // known, because pages get a sandbox after its guest has started
        object(&[
            ("isolation", &isolation.map_or(JsValue::NULL, JsValue::from)),
            ("bridge", &info.bridge.into()),
            ("softInterrupt", &info.soft_interrupt.into()),
            ("memoryLimit", &self.driver().options().limits.max_memory_bytes.into()),
            ("python", &info.python.into()),
            ("pyodide", &info.pyodide.map_or(JsValue::NULL, JsValue::from)),
        ])
        .unchecked_into()
    }

    fn put(&self, target: Target, value: &JsValue) -> VoidPromise {
        let what = match &target {
            Target::Variable(name) => name.clone(),
            _ => "context".to_owned(),
        };
        let source = Source::of(value, &what, self.driver().options().limits.max_value_bytes);
        let promise = source.map(|source| match source {
            Source::Ready(value) => self.submit(Command::Variable(VariableCommand::Set(target, value))),
            Source::Later(value) => self
                .current
                .call(|driver| Ok(driver.submit_later(Command::Later(target), value))),
        });
        self.promise(promise).unchecked_into()
    }

    fn submit(&self, command: Command<JsBody>) -> Promise {
        self.current.call(|driver| Ok(driver.submit(command)))
    }

    pub(super) fn promise(&self, promise: Result<Promise, Error>) -> Promise {
        promise.unwrap_or_else(|error| Promise::reject(&thrown(self.driver().glue(), &error)))
    }
}

impl Sandbox {
    pub(super) fn new(driver: Rc<Driver>) -> Self {
        Self {
            current: Current::new(driver),
        }
    }

    pub(super) fn driver(&self) -> Rc<Driver> {
        self.current.driver()
    }
}

/// The text of the model's last message, and the text of the newest messages by anybody.
fn newest_messages(messages: &JsValue) -> Result<(String, String), Error> {
    if let Some(reply) = messages.as_string() {
        return Ok((reply.clone(), reply));
    }
    let wrong = || Error::invalid("messages", "must be an array of { role, content }, or a string");
    let messages: &Array = messages.dyn_ref().ok_or_else(wrong)?;
    let (mut reply, mut said) = (None, Vec::new());
    for index in (0..messages.length()).rev() {
        let message = messages.get(index);
        let (role, content) = (get(&message, "role").as_string(), get(&message, "content").as_string());
        match role.as_deref() {
            _ if reply.is_some() && said.len() >= MOST_MESSAGES => break,
            Some("assistant") if reply.is_none() => reply = Some(content.clone().ok_or_else(wrong)?),
            None if reply.is_none() => return Err(wrong()),
            _ => {}
        }
        let is_said = matches!(role.as_deref(), Some("user" | "assistant")) && said.len() < MOST_MESSAGES;
        said.extend(content.filter(|_| is_said));
    }
    said.reverse();
    Ok((reply.unwrap_or_default(), said.join("\n")))
}

/// Reads the options of `addContext`.
fn series(options: &JsValue) -> Result<Series, Error> {
    let mut series = Series::Context;
    for (name, value) in entries(options, "options")? {
        let known = [Series::Context, Series::SessionContext, Series::History];
        match name.as_str() {
            _ if value.is_undefined() => {}
            "series" => {
                let given = value.as_string().unwrap_or_default();
                series = known
                    .into_iter()
                    .find(|known| known.name() == given)
                    .ok_or_else(|| Error::invalid(name, "must be \"context\", \"session_context\" or \"history\""))?;
            }
            _ => return Err(Error::invalid(name, "there is no such option of addContext")),
        }
    }
    Ok(series)
}

/// Reads an optional count.
fn count(name: &str, value: &JsValue) -> Result<Option<u32>, Error> {
    if value.is_undefined() {
        return Ok(None);
    }
    whole_number(name, value, "must be the number of an execution").map(Some)
}
