//! Native supervision for Sandglass.
//!
//! Today this crate proves one thing: the core builds and works with no browser in sight. The byte channel, the
//! launchers and the server come here.

pub use sandglass::{PROTOCOL_VERSION, Session};
