//! Rules for saving the state.
//!
//! A save is no exchange. The guest works at it while it has nothing else to do, and gives up when a request comes in. A command waits for
//! a save only if much work is at stake: [`WORTH`] times the time of a save. So saving takes at most a twentieth of the time, and a guest
//! that is never idle is saved as well. An execution also waits if nothing else could bring the state before it back, and the state is
//! not large.

use super::Body;
use super::checkpoint_chain::{Kept, Link};
use super::checkpoints::Checkpoints;
use super::contexts::Contexts;
use super::journal::{Journal, Origin};
use crate::protocol::{Event, Request};

/// The work at stake for which a command waits, in times of a save.
const WORTH: f64 = 20.0;
/// The least time that a save counts, in milliseconds. It also counts before the first save.
pub(super) const LEAST_SAVE_MS: f64 = 20.0;
/// The largest state for whose save an execution waits so that it can be undone, in bytes.
const PROMPT_BYTES: f64 = 256.0 * 1024.0 * 1024.0;
/// The idle time before a save begins, in milliseconds.
const IDLE_MS: f64 = 50.0;
/// The same if the next execution would wait for the save. Commands that follow at once are not interrupted by its beginning.
const PROMPT_IDLE_MS: f64 = 3.0;
/// The time that a command may wait for a save, in milliseconds.
const MAX_SAVE_MS: f64 = 20_000.0;
/// The time added to [`MAX_SAVE_MS`], in milliseconds. The page may have been busy, with the guest's messages still in a queue.
const LATE_MS: f64 = 500.0;

/// The needs of those who wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    /// True if the guest could begin a job.
    pub(super) is_free: bool,
    /// True if a command waits for the guest.
    pub(super) is_awaited: bool,
    /// True if that command asks for a save.
    pub(super) asks: bool,
    /// True if that command is an execution.
    pub(super) executes: bool,
    /// True if that command gives the present state up for the one before.
    pub(super) undoes: bool,
    /// True if somebody waits for a copy of the state, which should come soon.
    pub(super) copies: bool,
}

/// A checkpoint under way.
#[derive(Debug)]
pub(super) struct Saving<B> {
    number: u32,
    full: bool,
    /// True if the state has not changed since the last save, except by looking at it.
    pub(super) again: bool,
    execution: u32,
    names: Vec<String>,
    contexts: Contexts<B>,
    settings: u32,
    before: Option<Origin<B>>,
    /// The executions since the save began.
    pub(super) journal: Journal,
    /// Variables that the host had set since the last save.
    pub(super) news: Vec<String>,
    begun_at: f64,
    /// The time since which somebody waits for the save.
    awaited_since: Option<f64>,
    /// The time at which the wait was first found to be too long.
    late_since: Option<f64>,
    /// True if another request was sent meanwhile. The guest may give up the save for it.
    overtaken: bool,
}

impl<B: Body> Checkpoints<B> {
    /// Returns true if the state is saved and saving can succeed.
    pub(super) fn are_saved(&self) -> bool {
        self.are_made && !self.vain && !self.frozen
    }

    /// Returns true if the present state needs a save, and none is under way.
    pub(super) fn is_unsaved(&self) -> bool {
        self.are_saved() && self.dirty && self.saving.is_none()
    }

    /// Returns true if the next command must wait for a save.
    pub(super) fn holds_up(&self, demand: Demand) -> bool {
        let unsaved = self.dirty || self.saving.is_some();
        let is_due = demand.asks
            || (demand.executes && (self.could_not_be_undone() || self.would_have_two_origins()))
            || self.is_worth_waiting()
            || self.pauses_guest(demand);
        self.are_saved() && !self.failed && unsaved && is_due
    }

    /// Returns true if only a save makes the next execution one that can be undone, and the state is not too large to be saved for that.
    fn could_not_be_undone(&self) -> bool {
        let is_first = self.saves_first && self.base.is_none();
        self.are_repeated && (is_first || self.journal.steps().is_none()) && self.chain.bytes() <= PROMPT_BYTES
    }

    /// Returns true if the save under way could end after the next execution has begun. Its record would then begin with a state that is not the
    /// newest one.
    fn would_have_two_origins(&self) -> bool {
        self.saves_first && self.saving.is_some() && self.chain.bytes() <= PROMPT_BYTES
    }

    fn is_worth_waiting(&self) -> bool {
        self.unsaved_ms >= WORTH * self.save_ms
    }

    /// The time at which a save begins, if nothing happens before.
    pub(super) fn saves_at(&self, demand: Demand) -> Option<f64> {
        let idle_ms = match demand.copies || self.most_paused.is_some() {
            true => 0.0,
            false if !self.failed && self.could_not_be_undone() => PROMPT_IDLE_MS,
            false => IDLE_MS,
        };
        self.can_save(demand).then_some(self.idle_since + idle_ms)
    }

    fn can_save(&self, demand: Demand) -> bool {
        let idle = demand.is_free && (!demand.is_awaited || self.holds_up(demand));
        let differs = self.dirty || (self.looked_at && demand.copies);
        self.are_saved() && idle && differs && self.saving.is_none()
    }

    /// Begins a save if the guest is idle, or too much is at stake.
    pub(super) fn begin_save(
        &mut self,
        now: f64,
        demand: Demand,
        names: &[String],
        contexts: &Contexts<B>,
    ) -> Option<Request> {
        let at = self.saves_at(demand)?;
        if now < at && !self.holds_up(demand) {
            return None;
        }
        let again = !std::mem::take(&mut self.dirty);
        self.looked_at = false;
        self.last_number += 1;
        let checkpoint = self.last_number;
        let full = !self.growing || self.most_paused.is_some() || self.chain.is_long();
        self.saving = Some(Saving {
            number: checkpoint,
            full,
            again,
            execution: self.execution,
            names: names.to_vec(),
            contexts: contexts.clone(),
            settings: self.settings,
            before: self.before.clone(),
            journal: Journal::default(),
            news: std::mem::take(&mut self.set_since),
            begun_at: now,
            awaited_since: None,
            late_since: None,
            overtaken: false,
        });
        Some(Request::Save { checkpoint, full })
    }

    /// Records the time since which somebody waits for the save under way.
    pub(super) fn note_wait(&mut self, now: f64, demand: Demand) {
        let waits = demand.is_free && demand.is_awaited && self.holds_up(demand);
        if let Some(saving) = &mut self.saving {
            if waits {
                saving.awaited_since.get_or_insert(now);
            } else {
                (saving.awaited_since, saving.late_since) = (None, None);
            }
        }
    }

    /// The time at which to check a save that somebody waits for.
    pub(super) fn save_ends_at(&self) -> Option<f64> {
        let saving = self.saving.as_ref()?;
        let late = saving.late_since.map(|since| since + LATE_MS);
        late.or(saving.awaited_since.map(|since| since + MAX_SAVE_MS))
    }

    /// Returns true if a save takes too long. The first late check does not count, because the host may have been busy.
    pub(super) fn is_late(&mut self, now: f64) -> bool {
        if self.save_ends_at().is_none_or(|ends_at| now < ends_at) {
            return false;
        }
        match &mut self.saving {
            Some(saving) if saving.late_since.is_none() => {
                saving.late_since = Some(now);
                false
            }
            _ => true,
        }
    }

    /// Records that another request was sent to the guest.
    pub(super) fn overtaken(&mut self) {
        if let Some(saving) = &mut self.saving {
            saving.overtaken = true;
        }
    }

    /// Takes the [`Event::Saved`] of a finished save. Returns true if the guest should be replaced by one that restores the state. An error
    /// is a violation.
    pub(super) fn saved(&mut self, now: f64, event: Event, body: Option<B>) -> Result<bool, &'static str> {
        let unasked = "a checkpoint that nobody asked for";
        let Event::Saved {
            checkpoint: number,
            full,
            lost,
            spent,
        } = event
        else {
            return Err(unasked);
        };
        let (saving, body) = self.take_saving(number).zip(body).ok_or(unasked)?;
        let took = self.took(now, &saving);
        let link = Link {
            number,
            full: full || saving.full,
            execution: saving.execution,
            names: saving.names,
            lost,
            contexts: saving.contexts,
            settings: saving.settings,
            before: saving.before,
            parent: self.base,
            set: saving.news.clone(),
            body,
        };
        let recycles = spent && link.lost.is_empty();
        match self.chain.keep(link, self.max_bytes) {
            Kept::Yes => {}
            Kept::NotOnTop => {
                self.growing = false;
                self.gave_way(saving.news);
                return Ok(false);
            }
            Kept::No => {
                self.failed_to_save(took, saving.news, "it was too large".to_owned());
                return Ok(false);
            }
        }
        if let Some(most) = self.most_paused {
            self.chain.keep_newest(most, number);
        }
        self.unsavable = None;
        self.base = Some(number);
        self.journal = saving.journal;
        self.growing = true;
        self.save_ms = LEAST_SAVE_MS.max(took);
        self.failed = false;
        if !self.dirty {
            self.unsaved_ms = 0.0;
        }
        Ok(recycles && !self.dirty)
    }

    /// Takes the end of a save without a checkpoint. Another request came first, or there is a `reason`. An error is a violation.
    pub(super) fn not_saved(&mut self, now: f64, number: u32, reason: Option<String>) -> Result<(), &'static str> {
        let saving = self.take_saving(number).ok_or("a checkpoint that nobody asked for")?;
        if reason.is_none() && !saving.overtaken {
            return Err("it gives up saving for nothing");
        }
        let took = self.took(now, &saving);
        match reason {
            None => self.gave_way(saving.news),
            Some(why) => {
                let why = why.chars().take(300).collect();
                self.failed_to_save(took, saving.news, why);
            }
        }
        Ok(())
    }

    fn take_saving(&mut self, number: u32) -> Option<Saving<B>> {
        self.saving.take_if(|saving| saving.number == number)
    }

    /// The time of a save, from the moment at which the guest was last free for it.
    fn took(&self, now: f64, saving: &Saving<B>) -> f64 {
        now - saving.begun_at.max(self.idle_since)
    }

    /// Handles a failed save. Earlier checkpoints stay, and the next exchange may remove the obstacle.
    fn failed_to_save(&mut self, took: f64, news: Vec<String>, why: String) {
        self.unsavable = Some(why);
        self.vain = !self.dirty;
        self.growing = false;
        self.save_ms = LEAST_SAVE_MS.max(took);
        self.unsaved_ms = 0.0;
        self.gave_way(news);
    }

    /// Gives up the save under way.
    fn gave_way(&mut self, news: Vec<String>) {
        self.dirty = true;
        self.set_since.extend(news);
    }
}
