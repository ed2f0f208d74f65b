//! States for other sandboxes.

use bytes::{Buf, Bytes};
use sandglass_core::Error;
use sandglass_core::execution::LostVariable;
use sandglass_core::limits::MAX_NAMES;
use sandglass_core::session::{Command, Reply, VariableCommand};

use super::Sandbox;
use crate::value::Payload;

/// The most bytes of the names and reasons before a state.
const MAX_HEAD_BYTES: usize = 2 << 20;
/// The beginning of a portable state. See `python/sandglass/state/portable/layout.py`.
const PORTABLE: &[u8] = b"sandglass-portable\n";

/// The user's variables, for [`Sandbox::open_state`] of another sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// An LZ4 frame of a cloudpickle, or a portable state. Only guests may open it.
    pub state: Vec<u8>,
    /// The variables that it lacks, with the reasons, by the guest's word.
    pub lost: Vec<LostVariable>,
}

impl Captured {
    /// Reads a guest's answer: the length of the names, the names as JSON, and the state. See `python/sandglass/state/stateless.py`.
    fn read(mut body: Bytes) -> Result<Self, Error> {
        let malformed = || Error::Protocol("a state whose missing variables cannot be read".to_owned());
        let size = body.try_get_u32_le().map_err(|_| malformed())? as usize;
        if size > body.len().min(MAX_HEAD_BYTES) {
            return Err(malformed());
        }
        let head = body.split_to(size);
        let lost: Vec<(String, String)> = serde_json::from_slice(&head).map_err(|_| malformed())?;
        if lost.len() > MAX_NAMES {
            return Err(malformed());
        }
        let lost = lost.into_iter().map(|(name, reason)| LostVariable { name, reason });
        Ok(Self {
            state: body.into(),
            lost: lost.collect(),
        })
    }
}

impl Sandbox {
    /// Adds the variables of a state from [`Sandbox::capture_state`] or [`Sandbox::capture_portable_state`], of this or another sandbox.
    /// `max_bytes` bounds the unpacked state. Returns the variables of a portable state that cannot be had here, by the guest's word.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] when the state is malformed or too large; then no variable is set.
    pub async fn open_state(&self, state: impl Into<Bytes>, max_bytes: u64) -> Result<Vec<LostVariable>, Error> {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let open = VariableCommand::Open(Payload(state.into()), max_bytes as f64);
        match self.ask(Command::Variable(open)).await? {
            Reply::Value(value) => Ok(Captured::read(value.body.0)?.lost),
            _ => Ok(Vec::new()),
        }
    }

    /// The user's variables, for another sandbox, of at most `max_bytes` before they are packed. Private names, modules, generators and
    /// open handles are left out, and told.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] when a variable cannot be pickled, or all together are too large.
    pub async fn capture_state(&self, max_bytes: u64) -> Result<Captured, Error> {
        self.capture(max_bytes, false).await
    }

    /// The user's variables, for a sandbox of any backend and any version of Python: a portable state of at most `max_bytes`. Private names,
    /// modules and functions go, too. See `docs/checkpoint-format.md`.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] when the variables are too large, or the guest answers with something else.
    pub async fn capture_portable_state(&self, max_bytes: u64) -> Result<Captured, Error> {
        self.capture(max_bytes, true).await
    }

    async fn capture(&self, max_bytes: u64, portable: bool) -> Result<Captured, Error> {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let max_bytes = max_bytes as f64;
        let capture = VariableCommand::Capture {
            max_bytes,
            portable,
            direct: false,
        };
        let captured = Captured::read(self.value(Command::Variable(capture)).await?.body.0)?;
        if portable && !captured.state.starts_with(PORTABLE) {
            let problem = "the guest answered with what is no portable state; its variables stay";
            return Err(Error::NotSerializable(problem.to_owned()));
        }
        Ok(captured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(head: &[u8], size: u32) -> Result<Captured, Error> {
        Captured::read([&size.to_le_bytes(), head, b"state"].concat().into())
    }

    #[test]
    fn a_state_tells_what_it_lacks() {
        let head = br#"[["f","an open file"]]"#;
        let captured = read(head, 22).unwrap();
        assert_eq!(captured.state, b"state");
        assert_eq!((captured.lost[0].name.as_str(), captured.lost.len()), ("f", 1));
    }

    #[test]
    fn what_a_guest_made_up_is_refused() {
        for (head, size) in [
            (&b"[]"[..], 99),
            (b"{}", 2),
            (b"[[1,2]]", 7),
            (b"[]", u32::MAX),
            (b"[]", 3),
        ] {
            assert!(read(head, size).is_err(), "{head:?}");
        }
        let many = format!("[{}[\"\",\"\"]]", "[\"\",\"\"],".repeat(MAX_NAMES));
        assert!(read(many.as_bytes(), u32::try_from(many.len()).unwrap()).is_err());
        assert!(Captured::read(Bytes::from_static(b"abc")).is_err());
    }
}
