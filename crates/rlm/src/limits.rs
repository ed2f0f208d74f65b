//! Every default and bound of the controller, with its unit.

/// Levels of runs below the first (`maxDepth`).
pub const MAX_DEPTH: u32 = 1;
/// The most replies of the model in one run (`maxIterations`).
pub const MAX_ITERATIONS: u32 = 20;
/// The most calls of models in the whole tree, unless `budget.maxCalls` is given. With a limit a tree ends, whatever its code does.
pub const MAX_CALLS: f64 = 500.0;
/// The most tokens of one prompt (`maxPromptTokens`), as [`estimate_tokens`](super::estimate_tokens) counts them.
pub const MAX_PROMPT_TOKENS: u32 = 100_000;
/// The least value of `maxPromptTokens`. Rules, task and a turn must fit.
pub const LEAST_PROMPT_TOKENS: u32 = 4_000;
/// The most runs of one depth that have a sandbox at the same time, in the whole tree (`maxConcurrentRuns`).
pub const MAX_CONCURRENT_RUNS: u32 = 4;
/// Characters kept of each output stream of a block, unless `sandbox.maxOutputLength` is given.
pub const MAX_OUTPUT_CHARS: f64 = 20_000.0;
/// Time for a host call in milliseconds, unless `sandbox.hostCallTimeout` is given. A child run may take long, and has its own limits.
pub const HOST_CALL_TIMEOUT_MS: f64 = 24.0 * 3_600_000.0;

/// The most contexts of one run, with `context` itself.
pub const MAX_CONTEXTS: usize = 20;
/// The most characters of one block's feedback.
pub const MAX_FEEDBACK_CHARS: u32 = 50_000;
/// The most blocks of one reply that run.
pub const MAX_BLOCKS: usize = 16;
/// Characters at the beginning of a context that its description shows.
pub const PEEK_CHARS: usize = 500;
/// The most bytes of an answer as JSON.
pub const MAX_ANSWER_BYTES: usize = 16 << 20;
/// The most characters of a prompt or task in an event.
pub const MAX_EVENT_CHARS: usize = 2_000;
/// The most lines of a trajectory that is read.
pub const MAX_TRAJECTORY_EVENTS: usize = 1_000_000;

/// The most bytes of one reply from an endpoint.
pub const MAX_REPLY_BYTES: usize = 16 << 20;
/// The most attempts after the first (`maxRetries`).
pub const MAX_RETRIES: u32 = 5;
/// Time for one attempt, in milliseconds (`timeout` of a model).
pub const ATTEMPT_TIMEOUT_MS: f64 = 600_000.0;
/// Time before the second attempt, in milliseconds. It doubles before each later attempt.
pub const FIRST_BACKOFF_MS: f64 = 500.0;
/// The longest time between two attempts, in milliseconds.
pub const MAX_BACKOFF_MS: f64 = 30_000.0;
/// The longest wait that a `Retry-After` may ask for, in milliseconds. If it asks for more, no attempt follows.
pub const MAX_RETRY_AFTER_MS: f64 = 120_000.0;
