//! Every default and bound of the controller, with its unit.

/// Levels of runs below the first (`maxDepth`).
pub const MAX_DEPTH: u32 = 1;
/// Replies of the model that one run may take (`maxIterations`).
pub const MAX_ITERATIONS: u32 = 20;
/// Calls of models in the whole tree, where `budget.maxCalls` says nothing: a tree ends, whatever its code does.
pub const MAX_CALLS: f64 = 500.0;
/// Tokens, as [`estimate_tokens`](super::estimate_tokens) counts them, of one prompt (`maxPromptTokens`).
pub const MAX_PROMPT_TOKENS: u32 = 100_000;
/// The same, at least: rules, task and a turn have to fit.
pub const LEAST_PROMPT_TOKENS: u32 = 4_000;
/// Runs of one depth that have a sandbox at the same time, in the whole tree (`maxConcurrentRuns`).
pub const MAX_CONCURRENT_RUNS: u32 = 4;
/// Characters kept of each output stream of a block, where `sandbox.maxOutputLength` says nothing.
pub const MAX_OUTPUT_CHARS: f64 = 20_000.0;
/// Milliseconds per host call, where `sandbox.hostCallTimeout` says nothing: a child may take long, and has its own bounds.
pub const HOST_CALL_TIMEOUT_MS: f64 = 24.0 * 3_600_000.0;

/// Contexts of one run, `context` among them.
pub const MAX_CONTEXTS: usize = 20;
/// Characters of one block's feedback.
pub const MAX_FEEDBACK_CHARS: u32 = 50_000;
/// Blocks of one reply that are run.
pub const MAX_BLOCKS: usize = 16;
/// Characters of the context that its description shows.
pub const PEEK_CHARS: usize = 500;
/// Bytes of an answer as JSON.
pub const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Characters of a prompt or a task in an event.
pub const MAX_EVENT_CHARS: usize = 2_000;
/// Lines of a trajectory that are read.
pub const MAX_TRAJECTORY_EVENTS: usize = 1_000_000;

/// Bytes of one reply of an endpoint.
pub const MAX_REPLY_BYTES: usize = 16 << 20;
/// Attempts after the first (`maxRetries`).
pub const MAX_RETRIES: u32 = 5;
/// Milliseconds that one attempt may take (`timeout` of a model).
pub const ATTEMPT_TIMEOUT_MS: f64 = 600_000.0;
/// Milliseconds before the first repetition; each next one waits twice as long.
pub const FIRST_BACKOFF_MS: f64 = 500.0;
/// Milliseconds before a repetition, at most.
pub const MAX_BACKOFF_MS: f64 = 30_000.0;
/// Milliseconds that a `Retry-After` may ask for; with more, there is no repetition.
pub const MAX_RETRY_AFTER_MS: f64 = 120_000.0;
