//! Prints the events of a tree of runs: with colours for a terminal, as plain text otherwise.

use std::collections::HashMap;
use std::io::Write;

use sandglass_core::budget::Usage;
use sandglass_rlm::event::{RlmEvent, RlmEventKind, RunOutcome};
use sandglass_rlm::middle_cut;

/// Characters shown of a prompt, an answer or a line.
const MAX_LINE: usize = 200;
/// Lines shown of a cell.
const MAX_CODE_LINES: usize = 30;
/// Characters shown of one cell's output.
const MAX_OUTPUT: usize = 4_000;

const DIM: &str = "\u{1b}[2m";
const BOLD: &str = "\u{1b}[1m";
const RED: &str = "\u{1b}[31m";
const GREEN: &str = "\u{1b}[32m";
const CYAN: &str = "\u{1b}[36m";
const YELLOW: &str = "\u{1b}[33m";
const RESET: &str = "\u{1b}[0m";

/// Prints events.
pub(super) struct Show<W> {
    out: W,
    coloured: bool,
    /// The output of each run since its last cell began.
    printed: HashMap<String, Printed>,
    /// The spending of all runs, as far as events told it.
    spent: Usage,
    /// The run whose output ends without a newline.
    open: Option<String>,
}

#[derive(Default)]
struct Printed {
    chars: usize,
    cut: bool,
}

impl<W: Write> Show<W> {
    pub(super) fn new(out: W, coloured: bool) -> Self {
        Self {
            out,
            coloured,
            printed: HashMap::new(),
            spent: Usage::default(),
            open: None,
        }
    }

    /// The spending of all runs so far.
    fn in_all(&self) -> String {
        let Usage { calls, cost: spent, .. } = self.spent;
        let cost = if spent > 0.0 {
            format!(", cost {spent:.4}")
        } else {
            String::new()
        };
        format!("{calls} calls, {} tokens{cost}", self.spent.tokens())
    }

    /// Prints an event. Who cannot be printed to is not told: the run goes on.
    pub(super) fn event(&mut self, event: &RlmEvent) {
        let _ = self.print(event);
        let _ = self.out.flush();
    }

    fn print(&mut self, event: &RlmEvent) -> std::io::Result<()> {
        let depth = event.depth as usize;
        match &event.kind {
            RlmEventKind::RunStarted { task, contexts, .. } => {
                self.line(event, BOLD, &format!("run {}: {}", event.run, one_line(task)))?;
                for facts in contexts {
                    let length = match (facts.length, &facts.unit) {
                        (Some(length), Some(unit)) => format!(" of {length} {unit}"),
                        _ => String::new(),
                    };
                    self.line(
                        event,
                        DIM,
                        &one_line(&format!("{}: {}{length}", facts.name, facts.kind)),
                    )?;
                }
            }
            RlmEventKind::TurnStarted {
                turn,
                of,
                prompt_tokens,
                ..
            } => {
                let text = format!("turn {turn} of {of}, {prompt_tokens} tokens");
                self.line(event, CYAN, &text)?;
            }
            RlmEventKind::ModelReplied {
                usage,
                estimated,
                cut,
                duration,
                ..
            } => {
                self.spend(usage);
                self.spent.calls += 1.0;
                let about = if *estimated { "about " } else { "" };
                let cut = if *cut { ", cut by a token limit" } else { "" };
                let text = format!(
                    "replied in {:.1} s: {about}{} + {} tokens{}{cut}; in all {}",
                    duration / 1_000.0,
                    usage.input_tokens,
                    usage.output_tokens,
                    cost(usage),
                    self.in_all()
                );
                self.line(event, DIM, &text)?;
            }
            RlmEventKind::CodeStarted {
                code, block, blocks, ..
            } => {
                self.printed.insert(event.run.clone(), Printed::default());
                if *blocks > 1 {
                    self.line(event, DIM, &format!("block {block} of {blocks}"))?;
                }
                let lines: Vec<&str> = code.lines().collect();
                for line in lines.iter().take(MAX_CODE_LINES) {
                    self.line(event, GREEN, &format!("> {}", clean(line, MAX_LINE)))?;
                }
                if lines.len() > MAX_CODE_LINES {
                    let more = lines.len() - MAX_CODE_LINES;
                    self.line(event, DIM, &format!("> … {more} more lines"))?;
                }
            }
            RlmEventKind::Output { stream, text } => self.output(event, depth, stream == "stderr", text)?,
            RlmEventKind::ExecutionEnded { execution, .. } => {
                let field = |name: &str| execution.get(name).and_then(serde_json::Value::as_str);
                if let Some(result) = field("result") {
                    self.line(event, "", &format!("= {}", one_line(result)))?;
                }
                if let Some(error) = field("error") {
                    self.line(event, RED, &one_line(error))?;
                }
                let state = execution.pointer("/state/status").and_then(serde_json::Value::as_str);
                if let Some(state @ ("lost" | "restored")) = state {
                    self.line(event, RED, &format!("the variables were {state}"))?;
                }
            }
            RlmEventKind::CallStarted {
                call,
                name,
                prompt,
                prompt_chars,
                child,
                ahead,
                ..
            } => {
                let ahead = if *ahead { " ahead" } else { "" };
                let child = child
                    .as_ref()
                    .map(|child| format!(" → run {child}"))
                    .unwrap_or_default();
                let text = format!(
                    "{name} {call}{ahead}{child} ({prompt_chars} characters): {}",
                    one_line(prompt)
                );
                self.line(event, YELLOW, &text)?;
            }
            RlmEventKind::CallEnded {
                call,
                answer,
                error,
                usage,
                duration,
                wasted,
            } => {
                if let Some(usage) = usage {
                    self.spend(usage);
                    self.spent.calls += 1.0;
                }
                let text = answer.as_deref().or(error.as_deref()).unwrap_or_default();
                let failed = match error {
                    _ if *wasted => " was in vain",
                    Some(_) => " failed",
                    None => "",
                };
                let colour = if error.is_some() { RED } else { DIM };
                let text = format!(
                    "call {call}{failed} after {:.1} s: {}",
                    duration / 1_000.0,
                    one_line(text)
                );
                self.line(event, colour, &text)?;
            }
            RlmEventKind::Retry {
                attempt, wait, reason, ..
            } => {
                let text = format!(
                    "attempt {attempt} failed, again in {:.1} s: {}",
                    wait / 1_000.0,
                    one_line(reason)
                );
                self.line(event, RED, &text)?;
            }
            RlmEventKind::HistoryCompacted { before, after, .. } => {
                self.line(event, DIM, &format!("history shortened: {before} → {after} tokens"))?;
            }
            RlmEventKind::AnswerRejected { problems } => {
                self.line(event, RED, &format!("answer rejected: {}", one_line(problems)))?;
            }
            RlmEventKind::RunEnded {
                outcome,
                answer,
                error,
                iterations,
                usage,
                duration,
            } => {
                self.printed.remove(&event.run);
                let colour = if *outcome == RunOutcome::Answered { GREEN } else { RED };
                let text = format!(
                    "run {} {}: {iterations} turns, {:.1} s, {} calls, {} tokens{}",
                    event.run,
                    name(*outcome),
                    duration / 1_000.0,
                    usage.calls,
                    usage.tokens(),
                    cost(usage)
                );
                self.line(event, colour, &text)?;
                if let Some(error) = error {
                    self.line(event, RED, &one_line(error))?;
                }
                // The command itself prints the answer of the first run.
                if let Some(answer) = answer.as_ref().filter(|_| depth > 0) {
                    let answer = sandglass_rlm::answer::text(answer);
                    self.line(event, "", &format!("answer: {}", one_line(&answer)))?;
                }
            }
            RlmEventKind::Budget { .. } | RlmEventKind::Text { .. } => {}
        }
        Ok(())
    }

    fn spend(&mut self, usage: &Usage) {
        self.spent.input_tokens += usage.input_tokens;
        self.spent.output_tokens += usage.output_tokens;
        self.spent.cost += usage.cost;
    }

    /// Prints output as it comes, with each line below the code and behind the run's margin.
    fn output(&mut self, event: &RlmEvent, depth: usize, is_error: bool, text: &str) -> std::io::Result<()> {
        let printed = self.printed.entry(event.run.clone()).or_default();
        if printed.cut {
            return Ok(());
        }
        let left = MAX_OUTPUT.saturating_sub(printed.chars);
        let shown: String = text.chars().take(left).collect();
        printed.chars += shown.chars().count();
        let cut = shown.len() < text.len();
        printed.cut = cut;
        for piece in shown.split_inclusive('\n') {
            let (line, ends) = match piece.strip_suffix('\n') {
                Some(line) => (line, true),
                None => (piece, false),
            };
            if self.open.as_deref() != Some(&event.run) {
                self.close()?;
                write!(self.out, "{}  ", margin(depth))?;
            }
            let line = clean(line, usize::MAX);
            match is_error && self.coloured {
                true => write!(self.out, "{RED}{line}{RESET}")?,
                false => write!(self.out, "{line}")?,
            }
            self.open = if ends {
                writeln!(self.out)?;
                None
            } else {
                Some(event.run.clone())
            };
        }
        if cut {
            self.line(event, DIM, "  … more output")?;
        }
        Ok(())
    }

    fn line(&mut self, event: &RlmEvent, colour: &str, text: &str) -> std::io::Result<()> {
        self.close()?;
        let margin = margin(event.depth as usize);
        if self.coloured && !colour.is_empty() {
            writeln!(self.out, "{margin}{colour}{text}{RESET}")
        } else {
            writeln!(self.out, "{margin}{text}")
        }
    }

    /// Ends an open line of output.
    fn close(&mut self) -> std::io::Result<()> {
        if self.open.take().is_some() {
            writeln!(self.out)?;
        }
        Ok(())
    }
}

/// The margin at which the lines of a run begin.
fn margin(depth: usize) -> String {
    "│ ".repeat(depth)
}

fn cost(usage: &Usage) -> String {
    if usage.cost > 0.0 {
        format!(", cost {:.4}", usage.cost)
    } else {
        String::new()
    }
}

/// The outcome in words for people.
pub(super) fn name(outcome: RunOutcome) -> &'static str {
    match outcome {
        RunOutcome::Answered => "answered",
        RunOutcome::Exhausted => "has used its turns",
        RunOutcome::Limit => "has used its budget",
        RunOutcome::Aborted => "was stopped",
        RunOutcome::Failed => "failed",
    }
}

fn one_line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    clean(&middle_cut(&text, MAX_LINE).replace('\n', " "), usize::MAX)
}

/// At most `most` characters of untrusted text, without characters that control a terminal.
pub(crate) fn clean(text: &str, most: usize) -> String {
    let shown = text.chars().take(most).map(|char| match char {
        '\t' | '\n' => char,
        // Control characters, and marks that change the direction of text.
        char if char.is_control() => '\u{fffd}',
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        char => char,
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(events: &[(u32, RlmEventKind)], coloured: bool) -> String {
        let mut out = Vec::new();
        let mut show = Show::new(&mut out, coloured);
        for (depth, kind) in events {
            show.event(&RlmEvent {
                run: format!("0{}", ".0".repeat(*depth as usize)),
                depth: *depth,
                time: 0.0,
                kind: kind.clone(),
            });
        }
        String::from_utf8(out).unwrap()
    }

    fn output(text: &str) -> RlmEventKind {
        RlmEventKind::Output {
            stream: "stdout".to_owned(),
            text: text.to_owned(),
        }
    }

    fn code(code: &str) -> RlmEventKind {
        RlmEventKind::CodeStarted {
            turn: 1,
            block: 1,
            blocks: 1,
            code: code.to_owned(),
        }
    }

    #[test]
    fn children_are_set_in_and_lines_stay_whole() {
        let events = [
            (0, code("a = 1\nb = 2")),
            (0, output("half")),
            (0, output(" line\nnext")),
            (1, code("c")),
            (1, output("x\n")),
        ];
        let expected = "> a = 1\n> b = 2\n  half line\n  next\n│ > c\n│   x\n";
        assert_eq!(shown(&events, false), expected);
        assert!(shown(&events, true).contains("\u{1b}[32m> a = 1\u{1b}[0m"));
    }

    #[test]
    fn what_others_write_does_not_control_the_terminal() {
        let evil = "\u{1b}]0;title\u{7}\u{1b}[2J\r\u{202e}x\u{9b}31m";
        let events = [
            (0, code(evil)),
            (0, output(evil)),
            (
                0,
                RlmEventKind::AnswerRejected {
                    problems: evil.to_owned(),
                },
            ),
            (0, RlmEventKind::call_started(1, "llm_query", evil, None, None)),
        ];
        let text = shown(&events, false);
        assert!(
            !text.contains(['\u{1b}', '\u{7}', '\r', '\u{202e}', '\u{9b}']),
            "{text:?}"
        );
        assert!(text.contains("title"));
    }

    #[test]
    fn much_output_is_cut_once() {
        let events = [
            (0, code("c")),
            (0, output(&"x".repeat(5_000))),
            (0, output("more")),
            (0, code("d")),
            (0, output("y")),
        ];
        let text = shown(&events, false);
        assert!(
            text.len() < 5_000 && text.matches("more").count() == 1,
            "{}",
            text.len()
        );
        assert!(text.ends_with("> d\n  y"));
    }
}
