//! One execution, shown as the outputs of a notebook's cell.
//!
//! Decisions: `docs/internals/jupyter.md`.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jupyter_protocol::JupyterMessage;
use sandglass_core::Error;
use sandglass_core::display::{Kind, kind};
use sandglass_core::execution::Display;
use sandglass_core::session::ToResult;
use serde_json::{Map, Value, json};

use super::wire::Publisher;
use sandglass_host::html;
use sandglass_host::sandbox::traceback_with_error;
use sandglass_host::sandbox::{ExecuteOptions, Execution, Sandbox};
use sandglass_host::{Outcome, StateStatus, Stream};

/// Most variables that a message names.
const MOST_NAMES: usize = 50;
/// Most messages that wait for the next cell with visible outputs.
const MOST_NOTES: usize = 50;

/// The cell of a notebook, which receives the outputs of one execution.
pub(super) struct Cell {
    pub iopub: Publisher,
    pub request: Arc<JupyterMessage>,
    /// The execution number that notebooks show.
    pub count: u32,
    /// True when the front end asked for no outputs.
    pub silent: bool,
    /// True when rich outputs go to the notebook unchanged.
    pub trusted: bool,
}

/// The end of a cell.
#[derive(Default)]
pub(super) struct Ended {
    pub failure: Option<Failure>,
    pub result: Option<String>,
    /// Notes to show beside the outputs.
    pub notes: Vec<String>,
}

/// An error in the form that notebooks show.
pub(super) struct Failure {
    name: String,
    value: String,
    traceback: Vec<String>,
}

impl Failure {
    /// An error of the sandbox itself.
    pub(super) fn of_sandbox(error: &str) -> Self {
        Self {
            name: "SandboxError".to_owned(),
            value: error.to_owned(),
            traceback: vec![format!("SandboxError: {error}")],
        }
    }

    /// An error in the request. The cell has no outputs.
    pub(super) fn of_request(why: &str) -> Self {
        Self {
            name: "ValueError".to_owned(),
            value: format!("the request cannot be read: {why}"),
            traceback: Vec::new(),
        }
    }

    fn of(run: &Execution) -> Option<Self> {
        let error = run.error.as_deref()?;
        let name = run.error_type.as_deref().unwrap_or("Error");
        let value = error.strip_prefix(name).unwrap_or(error);
        let traceback = traceback_with_error(run.traceback.as_deref().unwrap_or_default(), error);
        Some(Self {
            name: name.to_owned(),
            value: value.trim_start_matches(':').trim_start().to_owned(),
            traceback: traceback.lines().map(str::to_owned).collect(),
        })
    }

    pub(super) fn content(&self) -> Map<String, Value> {
        let content = [
            ("ename", json!(self.name)),
            ("evalue", json!(self.value)),
            ("traceback", json!(self.traceback)),
        ];
        content
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }
}

impl Cell {
    /// Runs code and shows all its outputs. A failure of the sandbox ends the cell as an error.
    pub(super) async fn run(&self, sandbox: &Sandbox, code: &str) -> Ended {
        // Rich outputs that belong to the result wait until the end, and are shown with the result's text.
        let late = Arc::new(Mutex::new(Vec::new()));
        let mut options = ExecuteOptions::default();
        if !self.silent {
            let (iopub, request) = (self.iopub.clone(), Arc::clone(&self.request));
            options.on_output = Some(Arc::new(move |stream, text| {
                stream_output(&iopub, stream, text, &request)
            }));
            let (iopub, request, late) = (self.iopub.clone(), Arc::clone(&self.request), Arc::clone(&late));
            let trusted = self.trusted;
            options.on_display = Some(Arc::new(move |display, to_result| {
                if to_result == ToResult::Before {
                    show(&iopub, bundle(display, trusted), &request);
                } else {
                    let mut late = late.lock().unwrap_or_else(PoisonError::into_inner);
                    late.push((display.clone(), to_result));
                }
            }));
        }
        let run = sandbox.execute_with(code, options).await;
        let late = std::mem::take(&mut *late.lock().unwrap_or_else(PoisonError::into_inner));
        let ended = match &run {
            Ok(run) => {
                self.show_end(run, late);
                Ended {
                    failure: Failure::of(run).filter(|_| run.outcome != Outcome::Ok),
                    result: run.result.clone(),
                    notes: notes(run),
                }
            }
            Err(error) => Ended {
                failure: Some(Failure::of_sandbox(&told(error))),
                ..Ended::default()
            },
        };
        self.show_failure(&ended);
        ended
    }

    /// Shows the error that ended the cell.
    pub(super) fn show_failure(&self, ended: &Ended) {
        if let Some(failure) = ended.failure.as_ref().filter(|_| !self.silent) {
            self.iopub.send("error", failure.content().into(), &self.request);
        }
    }

    fn show_end(&self, run: &Execution, late: Vec<(Display, ToResult)>) {
        if self.silent {
            return;
        }
        let mut result = Map::new();
        let mut figures = Vec::new();
        for (display, to_result) in late {
            if to_result == ToResult::Same && run.result.is_some() {
                result.extend(bundle(&display, self.trusted));
            } else {
                figures.push(bundle(&display, self.trusted));
            }
        }
        if let Some(text) = &run.result {
            result.insert("text/plain".to_owned(), json!(text));
            let content = json!({ "execution_count": self.count, "data": result, "metadata": {} });
            self.iopub.send("execute_result", content, &self.request);
        }
        for data in figures {
            show(&self.iopub, data, &self.request);
        }
        if let Some(last) = &run.final_answer {
            show(
                &self.iopub,
                Map::from_iter([("text/plain".to_owned(), json!(last.value.to_text()))]),
                &self.request,
            );
        }
    }

    /// Shows the notes. In a silent cell they wait for the next cell.
    pub(super) fn tell(&self, notes: &mut Vec<String>) {
        if self.silent {
            // Notes beyond this number would tell nothing new.
            notes.truncate(MOST_NOTES);
            return;
        }
        for note in notes.drain(..) {
            stream_output(
                &self.iopub,
                Stream::Stderr,
                &format!("sandglass: {note}\n"),
                &self.request,
            );
        }
    }
}

/// The value of a user expression, which the front end asked for with a cell, and notes to show beside it.
pub(super) async fn evaluate(sandbox: &Sandbox, expression: &str) -> (Value, Vec<String>) {
    let run = sandbox.execute(expression).await;
    let notes = run.as_ref().map(notes).unwrap_or_default();
    let failure = match &run {
        Ok(run) => Failure::of(run),
        Err(error) => Some(Failure::of_sandbox(&told(error))),
    };
    if let Some(failure) = failure {
        let mut content = failure.content();
        content.insert("status".to_owned(), json!("error"));
        return (content.into(), notes);
    }
    let text = run.ok().and_then(|run| run.run.result);
    let content =
        json!({ "status": "ok", "data": { "text/plain": text.as_deref().unwrap_or("None") }, "metadata": {} });
    (content, notes)
}

fn told(error: &Error) -> String {
    error.to_string()
}

fn stream_output(iopub: &Publisher, stream: Stream, text: &str, request: &JupyterMessage) {
    let name = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
        Stream::Result | Stream::Error | Stream::Traceback => return,
    };
    iopub.send("stream", json!({ "name": name, "text": text }), request);
}

fn show(iopub: &Publisher, data: Map<String, Value>, request: &JupyterMessage) {
    iopub.send(
        "display_data",
        json!({ "data": data, "metadata": {}, "transient": {} }),
        request,
    );
}

/// A rich output in Jupyter's form: JSON as JSON, everything else as text.
///
/// Notebooks trust the outputs of a cell that they have just run. They show them in their own page, which can open terminals.
/// So an untrusted output is reduced to a form that can reach neither that page nor the network.
fn bundle(display: &Display, trusted: bool) -> Map<String, Value> {
    let Display { mime, data } = display;
    let is_json = mime == "application/json" || mime.ends_with("+json");
    let (mime, data) = match mime.as_str() {
        "application/json" => (mime.as_str(), json_or_text(data)),
        _ if trusted && is_json => (mime.as_str(), json_or_text(data)),
        _ if trusted || kind(mime) == Some(Kind::Binary) => (mime.as_str(), json!(data)),
        "text/html" => ("text/html", json!(framed(data))),
        // As an image, SVG runs no scripts and loads nothing.
        "image/svg+xml" => {
            let data = BASE64_STANDARD.encode(data);
            (
                "text/html",
                json!(format!("<img src=\"data:image/svg+xml;base64,{data}\">")),
            )
        }
        // Markdown and LaTeX can contain HTML and links.
        _ if mime.starts_with("text/") => ("text/plain", json!(data)),
        _ => (
            "text/plain",
            json!(format!("[{mime}, which is shown by a kernel with --trust-output only]")),
        ),
    };
    Map::from_iter([(mime.to_owned(), data)])
}

fn json_or_text(data: &str) -> Value {
    serde_json::from_str(data).unwrap_or_else(|_| json!(data))
}

/// HTML in a page of its own, without an origin and without scripts. A script could leak data by navigating the frame. A link
/// could leak data too, and some links connect without a click, so links are removed.
fn framed(html: &str) -> String {
    let policy = html::policy();
    let html = html::sanitize_html(html);
    let page = format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">{html}");
    let page = page.replace('&', "&amp;").replace('"', "&quot;");
    // Without scripts the page's height is unknown. Such HTML is written for a white background.
    format!(
        "<iframe sandbox=\"\" style=\"width:100%;height:20em;border:0;background:#fff;resize:vertical\" srcdoc=\"{page}\"></iframe>"
    )
}

/// Notes on the variables' fate and on omitted output, which the cell's other outputs do not show.
fn notes(run: &Execution) -> Vec<String> {
    let mut notes = Vec::new();
    let lost = run.state.lost.as_deref().unwrap_or_default();
    let mut names = String::new();
    for (index, variable) in lost.iter().take(MOST_NAMES).enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        // Writing to a String does not fail.
        let _ = write!(names, "{comma}{}", variable.name);
        // Mostly all variables have the same reason.
        if lost.get(index + 1).is_none_or(|next| next.reason != variable.reason) {
            let _ = write!(names, " ({})", variable.reason);
        }
    }
    if lost.len() > MOST_NAMES {
        let _ = write!(names, " and {} more", lost.len() - MOST_NAMES);
    }
    let named = if lost.is_empty() {
        String::new()
    } else {
        format!(": {names}")
    };
    match (run.state.status, run.state.restored_to) {
        (StateStatus::Kept, _) if lost.is_empty() => {}
        (StateStatus::Kept, _) => notes.push(format!("variables that could not be kept{named}")),
        (StateStatus::Restored, Some(id)) if id > 0 => {
            notes.push(format!(
                "the state is as after execution {id}; gone are the variables{named}"
            ));
        }
        (StateStatus::Restored, _) => {
            notes.push(format!(
                "the state is as before the first execution; gone are the variables{named}"
            ));
        }
        (StateStatus::Lost, _) => notes.push(format!(
            "the state is lost: a new Python has begun, and cells that defined something have to run again{named}"
        )),
    }
    let left_out = run.truncated.displays;
    if left_out > 0 {
        notes.push(format!(
            "{left_out} rich outputs were too many or too large, and left out"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mime: &str, data: &str, trusted: bool) -> Value {
        let display = Display {
            mime: mime.to_owned(),
            data: data.to_owned(),
        };
        bundle(&display, trusted).into()
    }

    #[test]
    fn what_is_trusted_comes_as_it_is() {
        let chart = "application/vnd.vegalite.v5+json";
        assert_eq!(of(chart, r#"{"a": 1}"#, true), json!({ chart: { "a": 1 } }));
        assert_eq!(of("application/json", "{", true), json!({ "application/json": "{" }));
        for mime in ["text/html", "text/markdown", "image/svg+xml", "image/png"] {
            assert_eq!(of(mime, "[1]", true), json!({ mime: "[1]" }));
        }
    }

    #[test]
    fn what_is_not_trusted_reaches_no_page() {
        let html = r#"<script>alert("&quot;")</script>"><img src=x onerror=alert(1)>"#;
        let shown = of("text/html", html, false);
        let frame = shown["text/html"].as_str().unwrap();
        assert!(frame.starts_with("<iframe sandbox=\"\" "), "{frame}");
        let (_, page) = frame.split_once(" srcdoc=\"").unwrap();
        let (page, rest) = page.split_once('"').unwrap();
        // The whole document is in the attribute.
        assert_eq!(rest, "></iframe>");
        let page = page.replace("&quot;", "\"").replace("&amp;", "&");
        assert!(page.starts_with("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';"));
        assert!(page.ends_with("data:\">\"&gt;<img>"), "{page}");

        let svg = "<svg onload=\"alert(1)\"/>";
        assert_eq!(
            of("image/svg+xml", svg, false),
            json!({ "text/html": "<img src=\"data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+\">" })
        );
        for mime in ["text/markdown", "text/latex", "text/vnd.mermaid", "text/plain"] {
            assert_eq!(of(mime, svg, false), json!({ "text/plain": svg }));
        }
        for mime in ["image/png", "image/jpeg", "application/pdf"] {
            assert_eq!(of(mime, "AAAA", false), json!({ mime: "AAAA" }));
        }
        assert_eq!(of("application/json", "[1]", false), json!({ "application/json": [1] }));
        let chart = of(
            "application/vnd.vegalite.v5+json",
            r#"{"data": {"url": "https://x"}}"#,
            false,
        );
        assert_eq!(chart.as_object().unwrap().keys().collect::<Vec<_>>(), ["text/plain"]);
        assert!(chart["text/plain"].as_str().unwrap().contains("--trust-output"));
    }
}
