//! Values that the host keeps for every guest: `context`, and those that were added to it.

use serde::{Deserialize, Serialize};

use super::commands::Queued;
use super::exchange::Job;
use super::interpreter::Interpreter;
use super::variables::VariableCommand;
use super::{Body, Encoded, Ticket};
use crate::error::Error;

/// Numbered variables. Each value that is added gets the next number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Series {
    /// `context_1`, `context_2`, …; `context_0` is `context`.
    Context,
    /// `session_context_0`, …; the list `context_history` holds all of them.
    SessionContext,
    /// `history_0`, …; the list `session_history` holds all of them, and `history` is the first.
    History,
}

/// The variable that gets a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `context`.
    Context,
    /// The next variable of a series.
    Next(Series),
    /// The variable with this name.
    Variable(String),
}

impl Series {
    /// The beginning of the names of the series' variables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Context => "context",
            Self::SessionContext => "session_context",
            Self::History => "history",
        }
    }

    /// The series that a name belongs to, and its number there.
    fn of(name: &str) -> Option<(Self, usize)> {
        let (series, number) = name.rsplit_once('_')?;
        let all = [Self::Context, Self::SessionContext, Self::History];
        let series = all.into_iter().find(|known| known.name() == series)?;
        Some((series, number.parse().ok()?))
    }
}

impl Target {
    /// Returns true if the host keeps the value for later guests.
    pub(super) fn is_kept(&self) -> bool {
        !matches!(self, Self::Variable(_))
    }
}

/// The kept values, in the order in which they were first given.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Contexts<B>(Vec<(String, Encoded<B>)>);

impl<B> Default for Contexts<B> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<B> Contexts<B> {
    /// Replaces each value's body.
    pub(super) fn map<C>(self, replace: &mut impl FnMut(B) -> C) -> Contexts<C> {
        let values = self.0.into_iter().map(|(name, Encoded { encoding, body })| {
            let body = replace(body);
            (name, Encoded { encoding, body })
        });
        Contexts(values.collect())
    }
}

impl<B: Clone> Contexts<B> {
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    pub(super) fn find(&self, name: &str) -> Option<&Encoded<B>> {
        self.0
            .iter()
            .find_map(|(known, value)| (known == name).then_some(value))
    }

    pub(super) fn is_initialized(&self) -> bool {
        self.has("context")
    }

    pub(super) fn keep(&mut self, name: &str, value: Encoded<B>) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(name, _)| name.clone())
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The name of the variable that `target` means now.
    pub(super) fn name(&self, target: &Target) -> String {
        match target {
            Target::Context => "context".to_owned(),
            Target::Variable(name) => name.clone(),
            Target::Next(series) => {
                let used = self.0.iter().filter_map(|(name, _)| Series::of(name));
                let next = used.filter(|(of, _)| of == series).map(|(_, number)| number + 1).max();
                let first = usize::from(*series == Series::Context);
                format!("{}_{}", series.name(), next.unwrap_or(first))
            }
        }
    }
}

impl<B: Body> Interpreter<B> {
    /// Takes the value that a command waits for, or the reason for which there is none.
    pub(super) fn arrived(&mut self, ticket: Ticket, value: Result<Encoded<B>, Error>) {
        let waits =
            |(waiting, queued): &(Ticket, Queued<B>)| *waiting == ticket && matches!(queued, Queued::Awaiting(_));
        let Some(at) = self.queue.iter().position(waits) else {
            return;
        };
        match (value, self.queue.get_mut(at)) {
            (Ok(value), Some((_, queued))) => {
                if let Queued::Awaiting(target) = queued {
                    let target = target.clone();
                    *queued = Queued::Job(Job::Variable(VariableCommand::Set(target, value)));
                }
            }
            (Ok(_), None) => {}
            (Err(error), _) => {
                self.queue.remove(at);
                self.resolve(ticket, Err(error));
            }
        }
    }

    /// Returns true if the next command still waits for its value.
    pub(super) fn waits_for_value(&self) -> bool {
        matches!(self.front(), Some(Queued::Awaiting(_)))
    }

    /// Gives the guest the next kept value that it lacks.
    pub(super) fn restore_contexts(&mut self, now: f64) {
        while let Some(name) = self.lacking.first().cloned() {
            let replaced = name == "context" && self.front().is_some_and(Queued::initializes);
            match self.contexts.find(&name).cloned().filter(|_| !replaced) {
                Some(value) => {
                    let set = VariableCommand::Set(Target::Variable(name), value);
                    return self.begin(now, None, Job::Variable(set), None);
                }
                None => self.lacking.retain(|lacking| *lacking != name),
            }
        }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use crate::protocol::Encoding;

    #[test]
    fn numbers_go_on_after_the_highest() {
        let value = || Encoded {
            encoding: Encoding::None,
            body: Vec::<u8>::new(),
        };
        let mut contexts = Contexts::default();
        contexts.keep("context", value());
        let next = |contexts: &Contexts<Vec<u8>>, series| contexts.name(&Target::Next(series));
        assert_eq!(next(&contexts, Series::Context), "context_1");
        assert_eq!(next(&contexts, Series::SessionContext), "session_context_0");
        contexts.keep("context_1", value());
        contexts.keep("history_7", value());
        assert_eq!(next(&contexts, Series::Context), "context_2");
        assert_eq!(next(&contexts, Series::History), "history_8");
        assert_eq!(next(&contexts, Series::SessionContext), "session_context_0");
    }
}
