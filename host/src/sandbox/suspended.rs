//! Sandboxes that are written out, and go on later in another guest: one that slept, or a copy.

use std::collections::HashSet;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use sandglass_core::Error;
use sandglass_core::budget::Usage;
use sandglass_core::execution::LostVariable;
use sandglass_core::session::Past as CorePast;
use serde_json::Value as Json;

use super::{Captured, Files, Sandbox, SandboxBuilder};
use crate::driver::now;
use crate::value::Payload;

/// The most files and folders that go along with a sandbox.
const MOST_FILES: usize = 2_000;
/// The most copies of one request.
const MOST_COPIES: usize = 100;
/// Copies that are made at once.
const COPIES_AT_ONCE: usize = 4;

/// All that another sandbox needs to go on from this one's state.
#[derive(Debug, Clone)]
pub struct Suspended {
    /// The variables: a portable state. Only guests may open it.
    pub state: Bytes,
    /// The working folder.
    pub files: Files,
    /// The variables and files that are missing, with the reasons, by the guest's word.
    pub lost: Vec<LostVariable>,
    /// The host's part.
    pub past: Past,
    /// The used part of the budget.
    pub spent: Spent,
}

impl Suspended {
    /// Has a sandbox begin with the host's part, and its next execution report what is missing. The sandbox takes the rest by
    /// [`Sandbox::take_up`].
    #[must_use]
    pub fn begin(&self, builder: SandboxBuilder) -> SandboxBuilder {
        let mut past = self.past.clone();
        past.add_lost(self.lost.clone());
        builder.past(past).spent(self.spent)
    }

    /// Makes a copy for each item, some at once. `make` returns a copy and what its [`Sandbox::take_up`] returned. The result has the copies,
    /// and the variables and files that they lack. Nobody should know a copy before all are made: if one cannot be, the others are dropped.
    ///
    /// # Errors
    /// That of the first copy that cannot be made.
    pub async fn copies<I, F, T, E>(
        &self,
        items: I,
        make: impl FnMut(I::Item) -> F,
    ) -> Result<(Vec<T>, Vec<LostVariable>), E>
    where
        I: IntoIterator,
        F: Future<Output = Result<(T, Vec<LostVariable>), E>>,
    {
        let made: Vec<_> = stream::iter(items)
            .map(make)
            .buffered(COPIES_AT_ONCE)
            .try_collect()
            .await?;
        let (copies, not_taken): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        let mut lost = self.lost.clone();
        let mut known: HashSet<String> = lost.iter().map(|lost| lost.name.clone()).collect();
        lost.extend(
            not_taken
                .into_iter()
                .flatten()
                .filter(|lost| known.insert(lost.name.clone())),
        );
        Ok((copies, lost))
    }
}

/// The number of copies that a request makes: one by default.
///
/// # Errors
/// The problem with the number, if it is out of range.
pub fn number_of_copies(wanted: Option<usize>) -> Result<usize, String> {
    let count = wanted.unwrap_or(1);
    match (1..=MOST_COPIES).contains(&count) {
        true => Ok(count),
        false => Err(format!("must be 1 to {MOST_COPIES}; nothing was done")),
    }
}

/// The host's part of a sandbox that goes on later: the number of its executions, its contexts, its names, and losses that nobody was told
/// of.
#[derive(Debug, Clone)]
pub struct Past(pub(super) CorePast<Payload>);

impl Past {
    /// The number of executions that were requested.
    pub fn execution(&self) -> u32 {
        self.0.execution()
    }

    /// The bytes of the contexts.
    fn bytes(&self) -> u64 {
        let mut bytes = 0;
        let _ = self.0.clone().map(|body: Payload| bytes += body.0.len() as u64);
        bytes
    }

    /// Returns true if the variables are lost, and no execution has reported that yet.
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// Has the next execution report variables that could not be written.
    pub fn add_lost(&mut self, lost: Vec<LostVariable>) {
        self.0.add_lost(lost);
    }

    /// Has the next execution report that the state is this one again, because executions after it are undone.
    pub fn is_returned_to(&mut self) {
        self.0.is_returned_to();
    }

    /// The parts to store: JSON, and the bodies that it names by their numbers.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] when it cannot be written as JSON.
    pub fn into_parts(self) -> Result<(Json, Vec<Bytes>), Error> {
        let mut bodies = Vec::new();
        let named = self.0.map(|body: Payload| {
            bodies.push(body.0);
            bodies.len() - 1
        });
        let json = serde_json::to_value(named);
        json.map(|json| (json, bodies))
            .map_err(|error| Error::NotSerializable(format!("the session's past: {error}")))
    }

    /// Reads the parts from [`Past::into_parts`].
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for anything else.
    pub fn from_parts(json: Json, bodies: &[Bytes]) -> Result<Self, Error> {
        let malformed = |problem: String| Error::invalid("past", problem);
        let named: CorePast<usize> = serde_json::from_value(json).map_err(|error| malformed(error.to_string()))?;
        let mut is_complete = true;
        let past = named.map(|index| {
            let body = bodies.get(index);
            is_complete &= body.is_some();
            Payload(body.cloned().unwrap_or_default())
        });
        match is_complete {
            true => Ok(Self(past)),
            false => Err(malformed("it names a body that is not there".to_owned())),
        }
    }
}

impl Sandbox {
    /// The state of the sandbox for a later one: variables, contexts and files, of at most `max_bytes` together. Nothing may be asked of the
    /// sandbox meanwhile. Checkpoints, threads and open handles of the guest are not part of it.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] when it is more than `max_bytes` or 2000 files, and as all calls.
    pub async fn suspend(&self, max_bytes: u64) -> Result<Suspended, Error> {
        let spent = self.all_spent();
        let Captured { state, mut lost } = self.capture_portable_state(max_bytes).await?;
        let past = Past(self.driver.past().await?);
        let left = max_bytes.checked_sub(state.len() as u64 + past.bytes());
        let left = left.ok_or_else(|| {
            Error::NotSerializable(format!("its variables and contexts take more than {max_bytes} bytes"))
        })?;
        let mut files = self.read_files(MOST_FILES, left).await?;
        lost.append(&mut files.lost);
        Ok(Suspended {
            state: state.into(),
            files,
            lost,
            past,
            spent,
        })
    }

    /// Takes the files and the variables of another sandbox, before anything else is asked of this one. Its builder has to come from
    /// [`Suspended::begin`]. Variables that cannot be had here are returned, and the next execution reports them.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] when the variables are malformed or take more than `max_bytes`.
    pub async fn take_up(&self, suspended: &Suspended, max_bytes: u64) -> Result<Vec<LostVariable>, Error> {
        // Modules of the working folder have to be there when variables name them.
        self.write_files(&suspended.files).await?;
        let lost = self.open_state(suspended.state.clone(), max_bytes).await?;
        self.driver.add_lost(lost.clone());
        Ok(lost)
    }

    /// The used part of the budget.
    pub(super) fn all_spent(&self) -> Spent {
        Spent {
            usage: self.spent(),
            time_ms: self.budget_time().unwrap_or_default(),
        }
    }

    /// The time in milliseconds since the sandbox's budget began, if the budget limits time.
    pub fn budget_time(&self) -> Option<f64> {
        let most = self.budget.limits().max_time?;
        let left = self.budget.left(now()).time?;
        Some(most - left)
    }
}

/// The part of a budget that is used up already.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    /// The use of models.
    pub usage: Usage,
    /// The time since the budget began, in milliseconds.
    pub time_ms: f64,
}
