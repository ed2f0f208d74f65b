//! Replays a run: gives the replies from a recorded trajectory, in place of the model.
//!
//! Decisions: `docs/internals/controller.md`.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use super::event::{RlmEvent, RlmEventKind, TRAJECTORY_VERSION};
use super::limits::MAX_TRAJECTORY_EVENTS;
use sandglass_core::budget::Usage;

/// A model's reply, with its use.
pub type Said = (String, Usage);
/// A model's reply, or the error of its call.
pub type Recorded = Result<Said, String>;

/// The error of a request that is not in the trajectory. The run cannot go on as it did then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the trajectory has no {0}")]
pub struct Missing(String);

/// The replies of a trajectory.
#[derive(Debug, Default)]
pub struct Replay {
    turns: HashMap<(String, u32), Said>,
    calls: HashMap<(String, u32), Call>,
    used: RefCell<HashSet<(String, u32)>>,
}

#[derive(Debug)]
struct Call {
    prompt_hash: String,
    reply: Recorded,
}

/// Reads a trajectory from JSON lines. Skips live events, and a last line that was cut.
///
/// # Errors
/// The first line that this version cannot read, and the reason.
pub fn read_trajectory(text: &str) -> Result<Vec<RlmEvent>, String> {
    let mut events = Vec::new();
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    for (index, line) in lines.enumerate() {
        if index >= MAX_TRAJECTORY_EVENTS {
            return Err(format!("it has more than {MAX_TRAJECTORY_EVENTS} lines"));
        }
        match serde_json::from_str::<RlmEvent>(line) {
            Ok(event) => events.push(event),
            Err(error) if error.is_eof() && index > 0 => break,
            Err(error) => return Err(format!("line {} is no event: {error}", index + 1)),
        }
    }
    check_version(&events)?;
    events.retain(|event| !event.kind.is_live());
    Ok(events)
}

fn check_version(events: &[RlmEvent]) -> Result<(), String> {
    match events.first().map(|event| &event.kind) {
        Some(RlmEventKind::RunStarted { version, .. }) if *version == TRAJECTORY_VERSION => Ok(()),
        Some(RlmEventKind::RunStarted { version, .. }) => Err(format!(
            "it is of version {version}, this release reads version {TRAJECTORY_VERSION}"
        )),
        _ => Err("it does not begin with runStarted".to_owned()),
    }
}

impl Replay {
    /// Collects the replies in a trajectory.
    ///
    /// # Errors
    /// The reason for which the events are not a trajectory.
    pub fn new(events: Vec<RlmEvent>) -> Result<Self, String> {
        check_version(&events)?;
        let mut replay = Self::default();
        let mut prompts = HashMap::new();
        for RlmEvent { run, kind, .. } in events {
            match kind {
                RlmEventKind::ModelReplied { turn, text, usage, .. } => {
                    replay.turns.insert((run, turn), (text, usage));
                }
                RlmEventKind::CallStarted { call, prompt_hash, .. } => {
                    prompts.insert((run, call), prompt_hash);
                }
                RlmEventKind::CallEnded { wasted: true, .. } => {} // no code made this call
                RlmEventKind::CallEnded {
                    call,
                    answer,
                    error,
                    usage,
                    ..
                } => {
                    let reply = match answer {
                        Some(answer) => Ok((answer, usage.unwrap_or_default())),
                        None => Err(error.unwrap_or_default()),
                    };
                    let prompt_hash = prompts.remove(&(run.clone(), call)).unwrap_or_default();
                    replay.calls.insert((run, call), Call { prompt_hash, reply });
                }
                _ => {}
            }
        }
        Ok(replay)
    }

    /// The model's reply in a turn.
    ///
    /// # Errors
    /// [`Missing`] if the trajectory does not have it.
    pub fn turn(&self, run: &str, turn: u32) -> Result<Said, Missing> {
        let said = self.turns.get(&(run.to_owned(), turn)).cloned();
        said.ok_or_else(|| Missing(format!("reply for turn {turn} of run {run}")))
    }

    /// The outcome of a call. The call is found by number and prompt, else by its prompt alone, else by its number alone.
    ///
    /// # Errors
    /// [`Missing`] if there was no such call, or it did not end.
    pub fn call(&self, run: &str, call: u32, prompt_hash: &str) -> Result<Recorded, Missing> {
        let mut used = self.used.borrow_mut();
        let exact = (run.to_owned(), call);
        let is_it = |key: &(String, u32)| {
            !used.contains(key) && self.calls.get(key).is_some_and(|call| call.prompt_hash == prompt_hash)
        };
        let same_prompt = || {
            let mut keys: Vec<_> = self.calls.keys().filter(|key| key.0 == run && is_it(key)).collect();
            keys.sort();
            keys.first().map(|key| (*key).clone())
        };
        let key = if is_it(&exact) {
            exact
        } else {
            same_prompt().unwrap_or(exact)
        };
        let reply = self.calls.get(&key).map(|call| call.reply.clone());
        used.insert(key);
        reply.ok_or_else(|| Missing(format!("answer for call {call} of run {run}")))
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;

    const LINES: &str = r#"
{"run":"0","depth":0,"time":0,"type":"runStarted","version":1,"task":"t","contexts":[],"maxIterations":3,"maxDepth":1}
{"run":"0","depth":0,"time":1,"type":"modelReplied","turn":1,"text":"a","usage":{"calls":0,"inputTokens":1,"outputTokens":2,"cost":0},"estimated":false,"cut":false,"duration":1}
{"run":"0","depth":0,"time":2,"type":"text","text":"live"}
{"run":"0","depth":0,"time":3,"type":"callStarted","call":1,"name":"llm_query","prompt":"p","promptChars":1,"promptHash":"af63fd4c8601f21a"}
{"run":"0","depth":0,"time":3,"type":"callStarted","call":2,"name":"llm_query","prompt":"q","promptChars":1,"promptHash":"af63fc4c8601f067"}
{"run":"0","depth":0,"time":4,"type":"callEnded","call":2,"answer":"for q","duration":1}
{"run":"0","depth":0,"time":4,"type":"callEnded","call":1,"error":"it failed","duration":1}
{"run":"0","depth":0,"time":4,"type":"runEn"#;

    #[test]
    fn replies_are_found_by_their_turn_and_their_prompt() {
        let events = read_trajectory(LINES).unwrap();
        assert_eq!(events.len(), 6);
        let replay = Replay::new(events).unwrap();
        assert_eq!(replay.turn("0", 1).unwrap().0, "a");
        let missing = replay.turn("0", 2).unwrap_err();
        assert_eq!(missing.to_string(), "the trajectory has no reply for turn 2 of run 0");
        // The calls come in another order than in the recording.
        assert_eq!(replay.call("0", 1, "af63fc4c8601f067").unwrap().unwrap().0, "for q");
        assert_eq!(
            replay.call("0", 2, "af63fd4c8601f21a").unwrap().unwrap_err(),
            "it failed"
        );
        assert!(replay.call("0", 3, "x").unwrap_err().to_string().contains("call 3"));
    }

    #[test]
    fn a_call_whose_end_is_missing_is_no_failed_call() {
        let lines = LINES.replace("\"type\":\"callEnded\",\"call\":1", "\"type\":\"callEnded\",\"call\":7");
        let replay = Replay::new(read_trajectory(&lines).unwrap()).unwrap();
        let missing = replay.call("0", 1, "af63fd4c8601f21a").unwrap_err();
        assert_eq!(missing.to_string(), "the trajectory has no answer for call 1 of run 0");
    }

    #[test]
    fn a_prompt_that_has_changed_is_found_by_its_number() {
        let replay = Replay::new(read_trajectory(LINES).unwrap()).unwrap();
        assert_eq!(replay.call("0", 2, "other").unwrap().unwrap().0, "for q");
    }

    #[test]
    fn what_is_no_trajectory_is_refused() {
        for (text, problem) in [
            ("", "does not begin"),
            ("{}", "line 1"),
            (&LINES.replace("\"version\":1", "\"version\":2"), "version 2"),
            (&LINES.replace("\"turn\":1,", ""), "line 2"),
        ] {
            let error = read_trajectory(text).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
