//! All texts that a model reads: the rules, the task, the outcomes of its code, and the rest of the budget.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::limits::{MAX_CONTEXTS, MAX_FEEDBACK_CHARS, PEEK_CHARS};
use super::middle_cut;
use super::schema::Schema;
use crate::feedback;
use sandglass_core::budget::BudgetLeft;
use sandglass_core::execution::{CodeExecution, Outcome};
use sandglass_core::protocol::Profile;

/// The facts about a variable that holds a context.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct ContextFacts {
    /// The variable's name.
    pub name: String,
    /// The name of the value's class.
    #[serde(rename = "type")]
    pub kind: String,
    /// The value's length in `unit`s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional, type = "number"))]
    pub length: Option<u64>,
    /// The unit of `length`: `characters`, `bytes` or `items`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub unit: Option<String>,
    /// The number of characters of all items together, if all items are texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional, type = "number"))]
    pub characters: Option<u64>,
    /// The beginning of the value, as text.
    #[serde(default)]
    pub peek: String,
}

/// Python code that declares the [`ContextFacts`] of all contexts as its final value.
pub fn describe_code() -> String {
    include_str!("describe.py")
        .replace("PEEK", &PEEK_CHARS.to_string())
        .replace("CONTEXTS", &MAX_CONTEXTS.to_string())
}

/// Reads the value that [`describe_code`] declared. The context may hold any text, so every field is checked.
pub fn read_facts(value: Option<Value>) -> Vec<ContextFacts> {
    let facts: Vec<ContextFacts> = value
        .and_then(|value| serde_json::from_value(value).ok())
        .unwrap_or_default();
    let short = |text: String, most| text.chars().take(most).collect::<String>();
    let facts = facts.into_iter().take(32).map(|facts| ContextFacts {
        name: short(facts.name, 100),
        kind: short(facts.kind, 100),
        unit: facts.unit.map(|unit| short(unit, 20)),
        peek: short(facts.peek, PEEK_CHARS),
        ..facts
    });
    facts.collect()
}

/// The facts of a context that need no guest: those of a text, by its length in characters and its beginning, or of `None`. They are the
/// same that [`describe_code`] declares. `index` is 0 for `context`, 1 for `context_1`, and so on.
pub fn facts_of(index: usize, text: Option<(u64, &str)>) -> ContextFacts {
    let name = match index {
        0 => "context".to_owned(),
        index => format!("context_{index}"),
    };
    match text {
        Some((length, text)) => ContextFacts {
            name,
            kind: "str".to_owned(),
            length: Some(length),
            unit: Some("characters".to_owned()),
            characters: None,
            peek: text.chars().take(PEEK_CHARS).collect(),
        },
        None => ContextFacts {
            name,
            kind: "NoneType".to_owned(),
            peek: "None".to_owned(),
            ..ContextFacts::default()
        },
    }
}

/// The settings for the rules.
#[derive(Debug, Clone)]
pub struct Setting<'a> {
    /// The number of contexts.
    pub contexts: usize,
    /// True if `rlm_query` starts runs. If false, it asks the sub-model.
    pub recurses: bool,
    /// The most characters of a prompt for the sub-model.
    pub prompt_chars: usize,
    /// The most characters of each output that the model sees.
    pub output_chars: usize,
    /// The user's own functions.
    pub functions: &'a [String],
    /// Packages besides the standard library.
    pub packages: &'a [String],
    /// Models that `llm_query` may name.
    pub models: &'a [String],
    /// Instructions of the user that are added to the rules.
    pub instructions: Option<&'a str>,
}

/// The rules, as text for the model.
pub fn rules(setting: &Setting<'_>) -> String {
    let Setting {
        contexts,
        recurses,
        prompt_chars,
        output_chars,
        functions,
        packages,
        models,
        instructions,
    } = setting;
    let rlm_query = if *recurses {
        "gives a sub-task to a run like this one, with a Python REPL of its own in which `context` is `ctx` (without ctx, your \
         `context`); it returns that run's answer. For sub-tasks that take several steps."
    } else {
        "asks the sub-model the task with `ctx` (a text that fits into one prompt); there is no deeper recursion from here."
    };
    let contexts = match contexts {
        0 | 1 => "",
        _ => "; more of it is in the variables `context_1` and so on, which the task lists",
    };
    let packages = match packages.is_empty() {
        true => String::new(),
        false => format!(" and these packages: {}", packages.join(", ")),
    };
    let quoted = |names: &[String], quote: &str| {
        let names = names.iter().map(|name| format!("{quote}{name}{quote}"));
        names.collect::<Vec<_>>().join(", ")
    };
    let functions = match functions.is_empty() {
        true => String::new(),
        false => format!("- also callable: {}\n", quoted(functions, "`")),
    };
    let models = match models {
        [] | [_] => String::new(),
        [usual, ..] => format!(
            " Both take `model=`, one of {}; without it, \"{usual}\" is asked.",
            quoted(models, "\"")
        ),
    };
    let instructions = instructions.map(|text| format!("\n{text}\n")).unwrap_or_default();
    format!(
        r#"You solve a task by writing Python, turn by turn. The data is not in this conversation: it is in variables of a Python REPL, and it may be far larger than what you can read. Each turn, think briefly, then write code in a block like this:

```repl
print(type(context), len(context))
print(context[:500])
```

The code runs at once. In the next turn you see what it printed, the value of its last expression, and errors; of each output at most {output_chars} characters (its beginning and its end). Variables, imports and functions stay from block to block. You can import Python's standard library{packages}. There is no network, and there are no threads. A block that runs for too long is stopped, waiting for models not counted.

Names in the REPL:
- `context`: the data of the task{contexts}.
- `llm_query(prompt)`: asks a sub-model one question and returns its answer as str. The sub-model sees the prompt and nothing else, at most about {prompt_chars} characters. Good at reading, judging and summarising a piece of text.
- `llm_query_batched(prompts)`: the same for a list, at the same time: a list of str in the same order. A prompt that failed has the answer "Error: LM query failed - ...".{models}
- `rlm_query(task, ctx=None)`: {rlm_query} Returns str.
- `rlm_query_batched(tasks, contexts=None)`: the same for lists, at the same time.
- `search_context(pattern, window=200, max_results=100, text=None)`: matches of a regular expression, upper and lower case alike, in `context` or `text`: a list of dicts with the keys "match", "start", "end", "context" (the match with its surroundings), and "index" where the text is a list or dict.
- `chunk_text(text, size=10000, overlap=500)`: a list of overlapping pieces of a text.
- `SHOW_VARS()`: a text with the names and types of your variables.
- `FINAL(value)`, `FINAL_VAR("name")`: declare the final answer, a value or a variable. Call one of them in a block when you know the answer; that ends the run.
{functions}
How to go about it: look at the data before you decide anything. What Python can find, count or compute exactly, leave to Python: search, split, regular expressions, Counter. What has to be understood, leave to sub-models: cut the data into pieces that fit into a prompt, ask about all of them in one batch, and combine the answers in Python. A few large prompts are better than many small ones. Print little. Check a result before you declare it.
{instructions}"#
    )
}

/// The task and its contexts, as text for the model.
pub fn task(task: &str, contexts: &[ContextFacts], schema: Option<&Schema>) -> String {
    let mut text = format!("Task:\n{task}\n");
    for facts in contexts {
        text.push_str(&format!("\nThe variable `{}` is a {}", facts.name, facts.kind));
        if let (Some(length), Some(unit)) = (facts.length, &facts.unit) {
            text.push_str(&format!(" of {length} {unit}"));
        }
        if let Some(characters) = facts.characters {
            text.push_str(&format!(", texts of {characters} characters in all"));
        }
        if facts.peek.is_empty() {
            text.push_str(".\n");
        } else {
            text.push_str(&format!(". It begins:\n<<<\n{}\n>>>\n", facts.peek));
        }
    }
    if let Some(schema) = schema {
        text.push_str(&format!(
            "\nThe final answer must be a Python value that is valid, as JSON, under this JSON Schema:\n{}\n",
            schema.value()
        ));
    }
    text
}

/// The last line of every message: the turn's number, and the rest of the budget.
pub fn turn_line(turn: u32, of: u32, left: &BudgetLeft) -> String {
    let last = if turn == of {
        " This is the last turn: declare your best answer in it."
    } else {
        ""
    };
    format!("Turn {turn} of {of}. {LEFT} {left}.{last}")
}

/// The words before the rest of the budget.
const LEFT: &str = "Left for everything:";

/// A message without its [`turn_line`], in which time and money count down.
pub fn without_turn_line(message: &str) -> &str {
    let start = message.rfind('\n').map_or(0, |at| at + 1);
    match &message[start..] {
        line if line.starts_with("Turn ") && line.contains(LEFT) => &message[..start],
        _ => message,
    }
}

/// The message that asks for the answer only, after the last turn.
pub fn last_words(schema: Option<&Schema>) -> String {
    let form = if schema.is_some() {
        "as JSON that is valid under the schema, and nothing else"
    } else {
        "as plain text, and nothing else"
    };
    format!("There are no turns left. Reply with your best answer to the task now, {form}: no code runs any more.")
}

/// The message to the model about a reply without code.
pub fn no_code(other_fences: usize, thinks_code: bool) -> String {
    let why = if thinks_code {
        "The only code of your reply is in its thoughts, before </think>, so nothing was run."
    } else if other_fences > 0 {
        "Your reply has fenced text, but none that begins with ```repl, so nothing was run."
    } else {
        "Your reply has no block of code, so nothing was run."
    };
    format!("{why} Write a ```repl block; when you know the answer, call FINAL(value) in it.")
}

/// The message to the model about a `FINAL(name)` in prose that names no variable.
pub fn no_variable(name: &str) -> String {
    format!(
        "FINAL({name}) outside of code declares a variable, and there is none with a value of that name. If the answer is that text, call \
         FINAL(\"{name}\") in a ```repl block."
    )
}

/// The problem of a `FINAL(text)` in the prose of a reply that has code.
pub fn text_beside_code() -> &'static str {
    "FINAL(…) outside of code was written before the code of its own reply had run, so it cannot rest on the output above. If the output \
     says the same, write FINAL(…) in a reply without code, or call FINAL(value) in a ```repl block."
}

/// The reason for which last words with a declaration brought no answer.
pub fn declares_nothing(execution: &CodeExecution) -> String {
    let why = execution.error.as_deref().or(execution.result.as_deref());
    format!(
        "what the model's last reply declares has no value: {}",
        middle_cut(why.unwrap_or_default(), 500)
    )
}

/// The message to the model about a block that was not run because the reply ends within it.
pub fn cut_block() -> &'static str {
    "The last block has no end, because your reply was cut: it was not run. Write less at once, and close the block."
}

/// The message to the model about blocks that did not run, because one failed or there are too many.
pub fn skipped(from: usize, blocks: usize, reason: &str) -> String {
    match blocks - from {
        0 => format!("Block {blocks} was not run, {reason}."),
        _ => format!("Blocks {from} to {blocks} were not run, {reason}."),
    }
}

/// The message to the model about an answer that does not match the schema.
pub fn rejected(problems: &str) -> String {
    format!(
        "That final answer was not accepted:\n{problems}\nDeclare one that is right; all variables are still there."
    )
}

/// The report of a block's outcome.
pub fn block_outcome(execution: &CodeExecution, block: usize, blocks: usize) -> String {
    let number = (blocks > 1).then(|| u32::try_from(block).unwrap_or(u32::MAX));
    let text = feedback::feedback(Profile::Default, execution, number, &[], Some(MAX_FEEDBACK_CHARS));
    match outcome(execution) {
        Some(outcome) => format!("{}\n{outcome}", text.trim_end_matches('\n')),
        None => text.trim_end_matches('\n').to_owned(),
    }
}

/// The text about an outcome that the traceback does not show.
fn outcome(execution: &CodeExecution) -> Option<&'static str> {
    match execution.outcome {
        Outcome::Ok | Outcome::Error => None,
        Outcome::Timeout => Some("[The block ran for too long and was stopped.]"),
        Outcome::Interrupted => Some("[The block was stopped.]"),
        Outcome::Crashed => Some("[Python itself died in this block.]"),
        Outcome::Limit => Some("[A limit ended the block.]"),
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use sandglass_core::execution::{StateReport, Truncated};
    use serde_json::json;

    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    fn execution() -> CodeExecution {
        serde_json::from_value(json!({
            "id": 1, "code": "", "stdout": "", "stderr": "", "duration": 1, "guestTime": 1, "outcome": "ok",
            "state": StateReport::kept(), "truncated": Truncated::default(), "hostCalls": 0, "displays": [], "files": []
        }))
        .unwrap()
    }

    #[test]
    fn feedback_says_how_a_block_ended() {
        assert_eq!(block_outcome(&execution(), 1, 1), "Output:\nNo output");
        let stopped = CodeExecution {
            stdout: "out\n".to_owned(),
            outcome: Outcome::Timeout,
            ..execution()
        };
        assert_eq!(
            block_outcome(&stopped, 2, 3),
            "Output (block 2):\nout\n[The block ran for too long and was stopped.]"
        );
    }

    #[test]
    fn feedback_is_bounded() {
        let huge = CodeExecution {
            stdout: "x".repeat(200_000),
            traceback: Some("y".repeat(200_000)),
            ..execution()
        };
        assert!(block_outcome(&huge, 1, 1).chars().count() < MAX_FEEDBACK_CHARS as usize + 200);
    }

    #[test]
    fn the_turn_line_can_be_left_out() {
        let line = turn_line(2, 2, &BudgetLeft::default());
        assert_eq!(without_turn_line(&format!("output\n\n{line}")), "output\n\n");
        assert_eq!(without_turn_line(&line), "");
        assert_eq!(without_turn_line("Turn around\nor not"), "Turn around\nor not");
    }

    #[test]
    fn the_rules_name_what_the_runtime_has() {
        let setting = Setting {
            contexts: 2,
            recurses: true,
            prompt_chars: 400_000,
            output_chars: 20_000,
            functions: &["lookup".to_owned()],
            packages: &["numpy".to_owned()],
            models: &["small".to_owned(), "large".to_owned()],
            instructions: Some("Answer in French."),
        };
        let rules = rules(&setting);
        let runtime = sandglass_core::guest::FILES;
        let helpers: String = runtime.iter().map(|(_, source)| *source).collect();
        for name in [
            "llm_query",
            "llm_query_batched",
            "rlm_query",
            "rlm_query_batched",
            "search_context",
            "chunk_text",
        ] {
            assert!(rules.contains(&format!("`{name}(")), "{name}");
            assert!(helpers.contains(&format!("def {name}(")), "{name}");
        }
        for text in [
            "```repl",
            "\"match\", \"start\", \"end\", \"context\"",
            "`lookup`",
            "`model=`, one of \"small\", \"large\"; without it, \"small\" is asked.",
            "Answer in French.",
            "`context_1`",
        ] {
            assert!(rules.contains(text), "{text}");
        }
    }

    #[test]
    fn what_the_guest_says_of_its_context_is_bounded() {
        let facts = read_facts(Some(
            json!([{ "name": "n".repeat(1_000), "type": "str", "peek": "é".repeat(9_000) }]),
        ));
        assert_eq!((facts[0].name.len(), facts[0].peek.chars().count()), (100, PEEK_CHARS));
        assert!(read_facts(Some(json!({ "name": 1 }))).is_empty());
        assert!(read_facts(None).is_empty());
        let facts = ContextFacts {
            name: "context".to_owned(),
            kind: "list".to_owned(),
            length: Some(3),
            unit: Some("items".to_owned()),
            characters: Some(70),
            peek: "['a'".to_owned(),
        };
        let text = task("Count.", &[facts], None);
        assert!(
            text.contains("`context` is a list of 3 items, texts of 70 characters in all. It begins:\n<<<\n['a'\n>>>")
        );
    }
}
