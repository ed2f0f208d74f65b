//! Native supervision for Sandglass: the same sandbox outside of the browser.
//!
//! [`Sandbox`] is the front door. Under it, a [driver](driver) carries out the core's `Session` over a byte channel to a
//! [guest], which a [backend] started.
//!
//! | module | holds |
//! |---|---|
//! | [`sandbox`] | the public handle |
//! | [`callbacks`] | what the host is asked by Python, and what it is shown |
//! | [`value`] | what Python values are here; as bodies, and as JSON |
//! | [`frame`] | the bytes between host and guest |
//! | [`driver`] | one task per sandbox that carries out what the session wants |
//! | [`guest`] | a running guest: channel, end, cause |
//! | [`launcher`] | what is asked of every backend, and its settings |
//! | [`backend`] | what starts guests: a pure plan per backend |
//! | [`cgroup`] | what a guest's processes may use together |
//! | [`seccomp`] | the system calls that a guest does without |
//! | [`engine`] | Docker's engine on this machine |
//! | [`image`] | what guests find installed: image and virtual environment |
//! | [`runtime`] | the Python package as files, and what a Python needs |
//! | [`zygote`] | a process that forks guests in milliseconds |
//! | [`pool`] | guests that wait to be needed |
//! | `seqpacket` | JSON with descriptors, to processes that fork guests |
//! | [`stateless`] | runs that leave nothing behind |
//! | [`completions`] | the endpoints of models |
//! | [`notebook`] | cells, and the files that describe them |
//! | [`rlm`] | the controller of a Recursive Language Model |
//! | [`users`] | a user id for each guest of a host that is root |
//! | [`workspace`] | the folders that guests work in |
//! | [`doctor`] | what each backend can do on this machine |
//! | [`args`] | options that programs share |
//! | [`complete`] | whether Python that is typed goes on |
//! | [`html`] | HTML of guests, for those who show it |
//! | [`log`] | what the program logs |

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
pub mod launcher;
pub mod log;
pub mod notebook;
pub mod pool;
pub mod rlm;
pub mod runtime;
pub mod sandbox;
pub mod seccomp;
mod seqpacket;
pub mod stateless;
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
#[doc = include_str!("../../docs/notebook.md")]
struct NotebookSamples;
