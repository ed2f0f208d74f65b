#![doc = include_str!("../README.md")]
//!
//! [`Sandbox`] is the public handle. Below it, a [driver] carries out the core's `Session` over a byte channel to a
//! [guest], which a [backend] started.
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | [`sandbox`] | the public handle |
//! | [`callbacks`] | host functions, and receivers of output |
//! | [`value`] | Python values in Rust, as bodies and as JSON |
//! | [`frame`] | the bytes between host and guest |
//! | [`driver`] | one task per sandbox that carries out the session's effects |
//! | [`guest`] | a running guest: channel, process, exit |
//! | [`launcher`] | the interface of all backends, and their settings |
//! | [`backend`] | the backends, each with a plan as data |
//! | [`cgroup`] | resource bounds of a guest's processes together |
//! | [`seccomp`] | the system calls that guests lack |
//! | [`engine`] | the connection to Docker's engine |
//! | [`image`] | packages for guests: image and virtual environment |
//! | [`runtime`] | the Python package as files, and facts about a Python |
//! | [`zygote`] | a process that forks guests in milliseconds |
//! | [`pool`] | spares that wait for their use |
//! | `seqpacket` | JSON with descriptors, to processes that fork guests |
//! | [`kept`] | sandboxes whose executions outlive the process |
//! | [`stateless`] | runs that leave nothing behind |
//! | [`completions`] | the endpoints of models |
//! | [`notebook`] | cells, and the files that describe them |
//! | [`rlm`] | the controller of a Recursive Language Model |
//! | [`users`] | a user id for each guest of a host that is root |
//! | [`workspace`] | the folders that guests work in |
//! | [`doctor`] | a report on the backends of this machine |
//! | [`args`] | command-line options that programs share |
//! | [`complete`] | completeness of Python source that is being typed |
//! | [`html`] | a sanitizer for guests' HTML |
//! | [`log`] | the log of the program |
//! | [`traces`] | spans of OpenTelemetry |

pub mod args;
pub mod backend;
pub mod callbacks;
pub mod cgroup;
pub mod complete;
pub mod completions;
pub mod doctor;
pub mod driver;
pub mod engine;
pub mod frame;
pub mod guest;
pub mod html;
pub mod image;
pub mod kept;
pub mod launcher;
pub mod log;
pub mod notebook;
pub mod pool;
mod procfs;
pub mod rlm;
pub mod runtime;
pub mod sandbox;
pub mod seccomp;
mod seqpacket;
pub mod stateless;
pub mod temporary;
pub mod traces;
pub mod users;
pub mod value;
pub mod workspace;
pub mod zygote;

pub use guest::{Exit, Guest};
pub use html::sanitize_html;
pub use launcher::{BackendKind, Kernels, Launcher, Resources, Settings};
pub use sandbox::{
    Answer, Capabilities, ExecuteOptions, Execution, FileEntry, Final, HostCall, Query, Sandbox, SandboxBuilder,
    Variable,
};
pub use sandglass_core::execution::{CodeExecution, Killer, Outcome, StateStatus};
pub use sandglass_core::protocol::Stream;
pub use sandglass_core::{BudgetLimits, Error, Limits, PROTOCOL_VERSION, Profile, SUBPROTOCOL};
pub use users::Users;
pub use value::Value;

/// The samples of `docs/notebook.md`, run by `cargo test --doc`.
#[cfg(doctest)]
#[doc = include_str!("../docs/notebook.md")]
struct NotebookSamples;
