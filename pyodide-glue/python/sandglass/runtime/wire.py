"""The wire's version; `wire.pyi` has its types."""

# Made of crates/core/src/protocol.rs by `cargo test -p sandglass-core --lib python`.
VERSION = 11
