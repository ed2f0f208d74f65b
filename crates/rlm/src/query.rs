//! Rules for answers to `llm_query` and `rlm_query`: the size of prompts, and the texts for Python.

use super::estimate_tokens;
use super::event::RunOutcome;

/// Returns true if a prompt has at most `most` tokens.
pub fn fits(prompt: &str, most: u32) -> bool {
    // A token has at most four bytes. So for most long prompts the length alone decides.
    prompt.len() <= 4 * most as usize && estimate_tokens(prompt) <= most as usize
}

/// A prompt that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The beginning of the prompt, for events.
    pub start: String,
    /// The reason for the refusal.
    pub why: String,
}

/// Returns the prompt if it has at most `most` tokens.
///
/// # Errors
/// [`Refused`] if the prompt is longer.
pub fn checked(prompt: String, most: u32) -> Result<String, Refused> {
    if fits(&prompt, most) {
        return Ok(prompt);
    }
    let why = too_long(prompt.chars().count(), most);
    Err(Refused { start: prompt, why })
}

/// The message to Python about a prompt of `chars` characters that does not fit.
pub fn too_long(chars: usize, most: u32) -> String {
    format!(
        "the prompt has {chars} characters, which is more than the {most} tokens that fit (about {} characters): ask about parts \
         of it",
        4 * u64::from(most)
    )
}

/// A task and its context as one prompt, if they fit. `rlm_query` sends it to the sub-model if there is no deeper level.
pub fn with_context(task: &str, context: &str, most: u32) -> Option<String> {
    let prompt = match context {
        "" => task.to_owned(),
        context => format!("{task}\n\n{context}"),
    };
    fits(&prompt, most).then_some(prompt)
}

/// The message to Python about a task and context that do not fit into one prompt.
pub fn no_deeper(max_depth: u32, most: u32) -> String {
    format!(
        "rlm_query goes no deeper than here (maxDepth {max_depth}), and its context does not fit into one prompt of {most} tokens \
         (about {} characters): pass a smaller ctx, or use llm_query_batched on parts",
        4 * u64::from(most)
    )
}

/// The message to Python about a child run without an answer.
pub fn child_failed(outcome: RunOutcome, why: Option<String>) -> String {
    let why = why.unwrap_or_default();
    match outcome {
        RunOutcome::Limit => why,
        _ => format!("the child run has no answer: {why}"),
    }
}

/// The models that Python may name: an endpoint's own, and its others. Empty if Python has no choice.
pub fn offered(own: &str, others: &[String]) -> Vec<String> {
    match others {
        [] => Vec::new(),
        others => std::iter::once(own.to_owned())
            .chain(others.iter().filter(|other| *other != own).cloned())
            .collect(),
    }
}

/// The model to ask: the one that Python named, or the endpoint's own.
///
/// # Errors
/// The message to Python, if the endpoint does not have the named model.
pub fn model_named<'a>(named: Option<&'a str>, own: &'a str, others: &[String]) -> Result<&'a str, String> {
    match named {
        Some(named) if named != own && !others.iter().any(|other| other == named) => {
            let offered = std::iter::once(own).chain(others.iter().map(String::as_str));
            let offered = offered.collect::<Vec<_>>().join(", ");
            Err(format!("there is no model {named:.100}; there are: {offered}"))
        }
        named => Ok(named.unwrap_or(own)),
    }
}

/// The least length of a secret key, in bytes. Keys for local endpoints are words such as `none`, which any text may contain.
const MIN_KEY_BYTES: usize = 10;

/// Removes the key from an endpoint's text. Endpoints quote keys that they refuse.
pub fn without_key(text: String, key: Option<&str>) -> String {
    match key.filter(|key| key.len() >= MIN_KEY_BYTES) {
        Some(key) => text.replace(key, "[key]"),
        None => text,
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_fits_by_its_tokens() {
        assert!(fits(&"x".repeat(400), 100) && !fits(&"x".repeat(401), 100));
        assert!(fits(&"é".repeat(100), 100) && !fits(&"é".repeat(101), 100));
        assert_eq!(with_context("a", "b", 100).as_deref(), Some("a\n\nb"));
        assert_eq!(with_context("a", "", 100).as_deref(), Some("a"));
        assert_eq!(with_context("a", &"b".repeat(400), 100), None);
    }

    #[test]
    fn only_models_of_the_endpoint_can_be_named() {
        let others = ["small".to_owned()];
        assert_eq!(model_named(None, "large", &others), Ok("large"));
        assert_eq!(model_named(Some("small"), "large", &others), Ok("small"));
        let error = model_named(Some("other"), "large", &others).unwrap_err();
        assert_eq!(error, "there is no model other; there are: large, small");
        assert_eq!(offered("large", &others), ["large", "small"]);
        assert!(offered("large", &[]).is_empty());
    }

    #[test]
    fn a_quoted_key_is_left_out() {
        let text = || "bad key sk-1234567, none".to_owned();
        assert_eq!(without_key(text(), Some("sk-1234567")), "bad key [key], none");
        assert_eq!(without_key(text(), Some("none")), text(), "it is no secret");
        assert_eq!(without_key(text(), None), text());
    }
}
