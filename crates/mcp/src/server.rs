//! The tools and resources that clients see.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::tool::schema_for_output;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{
    CallToolResult, ContentBlock, Implementation, InitializeRequestParams, InitializeResult, JsonObject,
    ListResourceTemplatesResult, ListResourcesResult, PaginatedRequestParams, ProtocolVersion,
    ReadResourceRequestParams, ReadResourceResponse, Resource, ResourceUpdatedNotificationParam, ServerCapabilities,
    ServerConfig, SubscribeRequestParams, UnsubscribeRequestParams,
};
use rmcp::service::{Peer, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler, tool, tool_handler, tool_router};
use sandglass_host::args::told;
use sandglass_host::{Execution, Outcome, Value};
use sandglass_rlm::middle_cut;

use crate::arguments::{
    Code, Found, Got, Load, Loaded, Match, Name, Nothing, Part, Question, Read, Search, Variable, Variables, WriteFile,
    Written,
};
use crate::ask::{self, Answered, Asked};
use crate::execute::execute;
use crate::report::{self, Report};
use crate::resources;
use crate::roots::roots;
use crate::session::{MAX_FILE_BYTES, Session};

/// The variable for the data that a client hands over.
const CONTEXT: &str = "context";
/// The longest timeout of a call, in seconds.
const MAX_TIMEOUT_SECONDS: f64 = 3_600.0;
/// Characters of a loaded text that the result shows.
const PEEK_CHARS: usize = 500;
/// The most characters of a part that `read_context` returns.
const MAX_PART: u32 = 20_000;
/// The most matches that `search_context` returns.
const MAX_MATCHES: u32 = 100;
/// The most characters on each side of a match.
const MAX_WINDOW: u32 = 2_000;
/// The most characters of all matches together, about.
const MAX_FOUND_CHARS: usize = 100_000;
/// The most variables in a list.
const MAX_VARIABLES: usize = 500;

/// The text that clients show to their models.
const INSTRUCTIONS: &str = "\
Runs Python in an isolated sandbox without network. Variables, imports and files stay between calls of this session. \
Use it to compute, and to work with data that is too large to read: load_context puts a file or text into the variable \
`context`, and search_context, read_context and execute_python look at parts of it. Print little: long output is cut. \
If the tool `ask` is there, it answers a question about all of `context` by itself, however large it is. \
Files that Python writes to its working folder are resources (workspace:///NAME).";

/// The handler of one client's session.
pub struct Server {
    session: Session,
    tools: ToolRouter<Self>,
}

#[tool_router(router = all_tools)]
impl Server {
    /// The handler of a new session.
    pub fn new(session: Session) -> Self {
        let mut tools = Self::all_tools();
        if session.shared.controller.is_none() {
            tools.remove_route("ask");
        }
        for tool in tools.map.values_mut() {
            without_formats(&mut tool.attr.input_schema);
            tool.attr.output_schema.as_mut().map(without_formats);
        }
        Self { session, tools }
    }

    /// Runs Python and shows what it prints, the value of its last expression, and its figures. Variables, imports and files
    /// stay for later calls. Use it to compute, to test code, and to work through data that is too large to read, such as
    /// `context`. There is no network. `llm_query(prompt)` asks a model, and `llm_query_batched(prompts)` asks many at once,
    /// if one is configured or the client offers one. Long output is cut in the middle, so print what you need.
    #[tool(
        annotations(title = "Run Python", read_only_hint = false, destructive_hint = true, idempotent_hint = false, open_world_hint = false),
        output_schema = schema_for_output::<Report>()
    )]
    async fn execute_python(
        &self,
        Parameters(Code { code, timeout_seconds }): Parameters<Code>,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, String> {
        let timeout_ms = timeout_seconds.map(timeout).transpose()?;
        let run = execute(&self.session, code, timeout_ms, &context).await?;
        self.tell_changes(&run, &context.peer).await;
        Ok(report::execution(&run))
    }

    /// Puts a text or a file into a Python variable, `context` by default, so that it can be searched, read in parts and
    /// computed with, instead of being read as a whole. Use it for every input that is too long for a prompt: logs, books,
    /// tables, transcripts. A file's path is better than its text: the file does not pass through the conversation.
    #[tool(
        annotations(title = "Load data", read_only_hint = false, destructive_hint = true, idempotent_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<Loaded>()
    )]
    async fn load_context(
        &self,
        Parameters(load): Parameters<Load>,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, String> {
        let Load { text, path, variable } = load;
        let variable = variable_name(variable)?;
        if path.is_some() && self.session.is_on_server() {
            return Err("path: this server loads no files: pass the text; nothing was changed".to_owned());
        }
        let sandbox = self.session.sandbox().await?;
        let value = match (text, path) {
            (Some(text), None) => Value::Str(text),
            (None, Some(path)) => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a positive number of bytes"
                )]
                let most = sandbox.limits().max_value_bytes as u64;
                // Roots are the word of the client, which over HTTP may be anybody.
                let roots = if self.session.is_local() {
                    roots(&context).await
                } else {
                    Vec::new()
                };
                let shared = Arc::clone(&self.session.shared);
                let read = move || shared.folders.with(&roots).read(&path, most);
                let read = tokio::task::spawn_blocking(read).await;
                let bytes =
                    read.map_err(|error| format!("the file could not be read: {error}; nothing was changed"))??;
                match String::from_utf8(bytes) {
                    Ok(text) => Value::Str(text),
                    Err(error) => Value::Bytes(error.into_bytes()),
                }
            }
            _ => return Err("give either text or path; nothing was changed".to_owned()),
        };
        let (kind, length, begin) = match &value {
            Value::Str(text) => ("str", text.chars().count(), text.chars().take(PEEK_CHARS).collect()),
            Value::Bytes(bytes) => (
                "bytes",
                bytes.len(),
                bytes.escape_ascii().take(PEEK_CHARS).map(char::from).collect(),
            ),
            _ => ("str", 0, String::new()),
        };
        if variable == CONTEXT {
            sandbox.initialize(value).await.map_err(told)?;
        } else {
            sandbox.set_variable(&*variable, value).await.map_err(told)?;
        }
        let shown = format!("{variable} is a {kind} of length {length}. It begins:\n{begin}");
        let loaded = Loaded {
            variable,
            kind: kind.to_owned(),
            length,
            begin,
        };
        Ok(report::structured(vec![ContentBlock::text(shown)], &loaded))
    }

    /// Finds a regular expression in a loaded text and shows each match with the text around it. Use it to find the relevant
    /// places of `context` without reading all of it.
    #[tool(
        annotations(title = "Search the data", read_only_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<Found>()
    )]
    async fn search_context(
        &self,
        Parameters(search): Parameters<Search>,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, String> {
        let variable = variable_name(search.variable)?;
        let window = search.window.unwrap_or(200).min(MAX_WINDOW);
        let most = search.max_results.unwrap_or(20).clamp(1, MAX_MATCHES);
        let pattern = literal(&search.pattern);
        // Bounded in Python too, or else a few huge matches would be too large to come out.
        let code = format!(
            "FINAL([{{k: str(v)[:{MAX_FOUND_CHARS}] if k in ('match', 'context', 'index') else v for k, v in m.items()}} \
             for m in search_context({pattern}, {window}, {most}, \
             (lambda v: v.decode('utf-8', 'replace') if isinstance(v, (bytes, bytearray)) else v)({variable}))])"
        );
        let found = match self.evaluate(code, &context).await? {
            Ok(found) => found,
            Err(failed) => return Ok(failed),
        };
        let mut matches: Vec<Match> =
            serde_json::from_value(found).map_err(|error| format!("the search brought no matches: {error}"))?;
        // A pattern can match everything, and a key can be long.
        let most_chars = (MAX_FOUND_CHARS / matches.len().max(1)).max(MAX_WINDOW as usize);
        for found in &mut matches {
            for text in [&mut found.text, &mut found.context]
                .into_iter()
                .chain(&mut found.index)
            {
                *text = middle_cut(text, most_chars);
            }
        }
        let mut shown = format!("{} matches", matches.len());
        if matches.len() == most as usize {
            shown.push_str(", and perhaps more");
        }
        for found in &matches {
            let place = found
                .index
                .as_ref()
                .map(|index| format!("{index}, "))
                .unwrap_or_default();
            shown.push_str(&format!(
                "\n\n[{place}{}-{}]\n{}",
                found.start, found.end, found.context
            ));
        }
        let shown = vec![ContentBlock::text(report::cut(&shown))];
        Ok(report::structured(
            shown,
            &Found {
                count: matches.len(),
                matches,
            },
        ))
    }

    /// Reads a part of a loaded text, by position. Use it to read `context` piece by piece, or around a match of
    /// `search_context`: the next piece begins at `end` of this one.
    #[tool(
        annotations(title = "Read a part of the data", read_only_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<Part>()
    )]
    async fn read_context(
        &self,
        Parameters(read): Parameters<Read>,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, String> {
        let variable = variable_name(read.variable)?;
        let (start, length) = (read.start.unwrap_or(0), read.length.unwrap_or(5_000).min(MAX_PART));
        let code = format!(
            "FINAL((lambda t: (lambda a: {{'text': t[a:a + {length}], 'start': a, 'end': min(len(t), a + {length}), 'total': len(t)}})\
             (slice({start}, None).indices(len(t))[0]))((lambda v: v if isinstance(v, str) else v.decode('utf-8', 'replace') \
             if isinstance(v, (bytes, bytearray)) else repr(v))({variable})))"
        );
        let part = match self.evaluate(code, &context).await? {
            Ok(part) => part,
            Err(failed) => return Ok(failed),
        };
        let part: Part =
            serde_json::from_value(part).map_err(|error| format!("the variable could not be read: {error}"))?;
        let Part {
            text,
            start,
            end,
            total,
        } = &part;
        let shown = format!("[{variable}, characters {start} to {end} of {total}]\n{text}");
        Ok(report::structured(vec![ContentBlock::text(shown)], &part))
    }

    /// Answers a question about a variable, `context` by default, however large it is: a controller lets a model write Python
    /// that searches, splits and summarises the data, with calls of models on parts. Use it for a question that needs all of
    /// the data, or many steps. It may take minutes and costs the operator's tokens; the data and the variables stay.
    #[tool(
        annotations(title = "Ask about the data", read_only_hint = true, open_world_hint = true),
        output_schema = schema_for_output::<Answered>()
    )]
    async fn ask(
        &self,
        Parameters(asked): Parameters<Question>,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, String> {
        if asked.question.trim().is_empty() {
            return Err("question: must be a question or an instruction; nothing was done".to_owned());
        }
        let controller = self
            .session
            .shared
            .controller
            .as_ref()
            .ok_or("no model is configured (--model)")?;
        let asked = Asked {
            question: asked.question,
            variable: variable_name(asked.variable)?,
            schema: asked.schema.map(serde_json::Value::Object),
        };
        ask::ask(&self.session, controller, asked, &context).await
    }

    /// Lists the variables of the session, with types and lengths.
    #[tool(
        annotations(title = "List variables", read_only_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<Variables>()
    )]
    async fn list_variables(&self, Parameters(Nothing {}): Parameters<Nothing>) -> Result<CallToolResult, String> {
        let sandbox = self.session.sandbox().await?;
        let all = sandbox.list_variables().await.map_err(told)?;
        let more = all.len().saturating_sub(MAX_VARIABLES);
        let listed = all.into_iter().take(MAX_VARIABLES).map(|variable| Variable {
            name: variable.name,
            kind: variable.type_name,
            length: variable.length,
        });
        let variables: Vec<_> = listed.collect();
        let lines = variables.iter().map(|Variable { name, kind, length }| match length {
            Some(length) => format!("{name}: {kind}, length {length}"),
            None => format!("{name}: {kind}"),
        });
        let mut shown = lines.collect::<Vec<_>>().join("\n");
        if more > 0 {
            shown.push_str(&format!("\n({more} more)"));
        }
        if shown.is_empty() {
            "(no variables)".clone_into(&mut shown);
        }
        let shown = vec![ContentBlock::text(report::cut(&shown))];
        Ok(report::structured(shown, &Variables { variables, more }))
    }

    /// Gets the value of a variable: a str as it is, any other value as JSON. Long values are cut; use `read_context` for
    /// parts of them.
    #[tool(
        annotations(title = "Get a variable", read_only_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<Got>()
    )]
    async fn get_variable(&self, Parameters(Name { name }): Parameters<Name>) -> Result<CallToolResult, String> {
        let sandbox = self.session.sandbox().await?;
        let value = sandbox.get_variable(&*name).await.map_err(told)?;
        let value = value.ok_or_else(|| format!("there is no variable {name}"))?.to_text();
        let text = report::cut(&value);
        let shown = vec![ContentBlock::text(text.clone())];
        let complete = text == value;
        Ok(report::structured(shown, &Got { name, text, complete }))
    }

    /// Writes a file into Python's working folder, where code opens it by its path. Use it for small files; `load_context`
    /// is for large texts.
    #[tool(
        annotations(title = "Write a file", read_only_hint = false, destructive_hint = true, idempotent_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<Written>()
    )]
    async fn write_file(
        &self,
        Parameters(WriteFile { path, text, base64 }): Parameters<WriteFile>,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, String> {
        let bytes = match (text, base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(base64)) => {
                let decoded = BASE64.decode(base64);
                decoded.map_err(|error| format!("base64: {error}; nothing was written"))?
            }
            _ => return Err("give either text or base64; nothing was written".to_owned()),
        };
        let size = bytes.len();
        if size > MAX_FILE_BYTES as usize {
            return Err(format!(
                "the file has {size} bytes, at most {MAX_FILE_BYTES} are allowed; nothing was written"
            ));
        }
        self.session.write_file(&path, bytes).await?;
        let uri = resources::uri(path.trim_start_matches("./"));
        self.tell_update(&uri, &context.peer).await;
        // The file may be new.
        let _ = context.peer.notify_resource_list_changed().await;
        let written = Written { uri, bytes: size };
        let shown = ContentBlock::text(format!("{path} has {size} bytes"));
        let link = ContentBlock::resource_link(Resource::new(&*written.uri, path));
        Ok(report::structured(vec![shown, link], &written))
    }

    /// Ends the Python of this session and begins anew: variables, imports and `context` are gone. Use it when the state is
    /// in the way, or to free memory.
    #[tool(annotations(
        title = "Start anew",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn reset(&self, Parameters(Nothing {}): Parameters<Nothing>) -> String {
        self.session.reset().await;
        "Python was ended. The next call starts it anew.".to_owned()
    }
}

impl Server {
    /// The value that an expression declares by `FINAL`, or the result of the tool if the code failed.
    async fn evaluate(
        &self,
        code: String,
        context: &RequestContext<RoleServer>,
    ) -> Result<Result<serde_json::Value, CallToolResult>, String> {
        let run = execute(&self.session, code, None, context).await?;
        match (&run.final_answer, run.outcome) {
            (Some(last), Outcome::Ok) => Ok(Ok(last.value.clone().readable().to_json())),
            _ => {
                // The client wrote no code, so a traceback says nothing to it.
                let why = run.error.as_deref().unwrap_or("the code declared no value");
                Ok(Err(CallToolResult::error(vec![ContentBlock::text(report::cut(why))])))
            }
        }
    }

    /// Tells the client of files that code changed.
    async fn tell_changes(&self, run: &Execution, peer: &Peer<RoleServer>) {
        let (changed, came_or_went) = resources::changes(run);
        for uri in &changed {
            self.tell_update(uri, peer).await;
        }
        if came_or_went {
            let _ = peer.notify_resource_list_changed().await;
        }
    }

    async fn tell_update(&self, uri: &str, peer: &Peer<RoleServer>) {
        if self.session.is_subscribed(uri) {
            // A client that is gone needs to know nothing.
            let _ = peer
                .notify_resource_updated(ResourceUpdatedNotificationParam::new(uri))
                .await;
        }
    }
}

#[tool_handler(router = self.tools)]
impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_list_changed()
            .enable_resources_subscribe()
            .build();
        let own = Implementation::new("sandglass", env!("CARGO_PKG_VERSION")).with_title("Sandglass");
        ServerConfig::new(capabilities)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
            .with_server_info(own)
            .with_instructions(INSTRUCTIONS)
    }

    /// The versions with sessions, which sandboxes need. Clients of newer versions fall back: see `docs/internals/server.md`.
    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::known_up_to(&ProtocolVersion::LATEST_WITH_INITIALIZE))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        self.session.begin()?;
        context.peer.set_peer_info(request.clone());
        self.negotiate_initialize(&request)
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        resources::list(&self.session, request.and_then(|request| request.cursor)).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![resources::template()]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(&self.session, request.uri)
            .await
            .map(ReadResourceResponse::from)
    }

    async fn subscribe(&self, request: SubscribeRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        resources::path(&request.uri)?;
        self.session.subscribe(request.uri)
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.session.unsubscribe(&request.uri);
        Ok(())
    }
}

/// Removes the names of Rust's numbers from a schema. Clients warn of formats that they do not know, and models' vendors
/// refuse them.
fn without_formats(schema: &mut Arc<JsonObject>) {
    fn walk(schema: &mut serde_json::Value) {
        match schema {
            serde_json::Value::Object(fields) => {
                if fields.get("format").is_some_and(serde_json::Value::is_string) {
                    fields.remove("format");
                }
                fields.values_mut().for_each(walk);
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(walk),
            _ => {}
        }
    }
    Arc::make_mut(schema).values_mut().for_each(walk);
}

/// A timeout in milliseconds.
fn timeout(seconds: f64) -> Result<f64, String> {
    if (0.001..=MAX_TIMEOUT_SECONDS).contains(&seconds) {
        return Ok(seconds * 1_000.0);
    }
    Err(format!(
        "timeout_seconds: must be from 0.001 to {MAX_TIMEOUT_SECONDS}; nothing was run"
    ))
}

/// The name of a variable, `context` by default.
fn variable_name(name: Option<String>) -> Result<String, String> {
    let Some(name) = name else {
        return Ok(CONTEXT.to_owned());
    };
    let mut chars = name.chars();
    let begins = chars.next().is_some_and(|first| first.is_alphabetic() || first == '_');
    if begins && chars.all(|char| char.is_alphanumeric() || char == '_') {
        return Ok(name);
    }
    Err(format!(
        "variable: {name:?} is no name of a Python variable; nothing was done"
    ))
}

/// A text as a literal of Python. JSON's escapes are among Python's.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
