//! The browser's front door, and the only place that knows a browser.

mod assets;
mod convert;
mod driver;
mod glue;
mod guest_frame;
mod options;
mod outbox;
mod sandbox;
