//! The places of sessions, and their moves from one to another.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{InUse, Session, Sessions, lock};
use crate::App;
use crate::errors::ApiError;
use crate::suspension::Asleep;

/// The place of a session.
#[derive(Debug)]
pub(super) enum Place {
    /// It has a guest, or gets one when it is used.
    Awake(Arc<Session>),
    /// It is suspended.
    Asleep(Arc<Asleep>),
    /// It is being suspended, woken or removed. Requests wait for the end of this.
    Moving(Known, Settled),
}

impl Place {
    /// The session, if it has guests.
    pub(super) fn session(self) -> Option<Arc<Session>> {
        match self {
            Self::Awake(session) | Self::Moving(Known::Awake(session), _) => Some(session),
            Self::Asleep(_) | Self::Moving(Known::Asleep(_), _) => None,
        }
    }

    fn known(&self) -> Known {
        match self {
            Self::Awake(session) => Known::Awake(Arc::clone(session)),
            Self::Asleep(asleep) => Known::Asleep(Arc::clone(asleep)),
            Self::Moving(before, _) => before.clone(),
        }
    }

    fn owner(&self) -> &str {
        match self {
            Self::Awake(session) | Self::Moving(Known::Awake(session), _) => &session.owner,
            Self::Asleep(asleep) | Self::Moving(Known::Asleep(asleep), _) => &asleep.owner,
        }
    }
}

/// A session as it is, or as it was before it began to move.
#[derive(Debug, Clone)]
pub enum Known {
    /// It is awake.
    Awake(Arc<Session>),
    /// It is suspended.
    Asleep(Arc<Asleep>),
}

impl Known {
    fn id(&self) -> &str {
        match self {
            Self::Awake(session) => &session.id,
            Self::Asleep(asleep) => &asleep.id,
        }
    }

    fn place(self) -> Place {
        match self {
            Self::Awake(session) => Place::Awake(session),
            Self::Asleep(asleep) => Place::Asleep(asleep),
        }
    }
}

/// The end of a move, for those who wait.
#[derive(Debug, Clone)]
pub struct Settled(watch::Receiver<Option<Result<(), ApiError>>>);

impl Settled {
    /// Waits for the end of the move. The session is looked up again afterwards.
    ///
    /// # Errors
    /// The reason for which a session could not be woken.
    pub async fn wait(mut self) -> Result<(), ApiError> {
        match self.0.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Ok(())),
            Err(_) => Ok(()),
        }
    }
}

/// A session that its user has found.
#[derive(Debug)]
pub enum Target {
    /// It is awake, and cannot expire as long as it is in use.
    Awake(Arc<Session>, InUse),
    /// It is suspended, and moves now.
    Asleep(Arc<Asleep>, Move),
    /// It moves.
    Moving(Settled),
}

/// A move of a session. Only its holder decides the session's next place. If it is dropped, the session stays where it was.
#[derive(Debug)]
#[must_use = "the session stays where it was when this is dropped"]
pub struct Move {
    app: App,
    before: Option<Known>,
    settle: watch::Sender<Option<Result<(), ApiError>>>,
}

impl Move {
    /// The end of this move.
    pub fn settled(&self) -> Settled {
        Settled(self.settle.subscribe())
    }

    /// Ends the move: the session is `next`, or is gone. Those who wait are told the outcome. Returns false when the server has shut down
    /// meanwhile.
    pub fn end(mut self, next: Option<Known>, outcome: Result<(), ApiError>) -> bool {
        self.settle(next, outcome)
    }

    /// Ends the move where it began, with this outcome.
    pub fn end_in_vain(mut self, outcome: Result<(), ApiError>) {
        let before = self.before.clone();
        self.settle(before, outcome);
    }

    fn settle(&mut self, next: Option<Known>, outcome: Result<(), ApiError>) -> bool {
        let Some(before) = self.before.take() else { return false };
        let is_there = {
            let mut all = lock(&self.app.sessions.all);
            let is_there = matches!(all.get(before.id()), Some(Place::Moving(..)));
            match next {
                Some(next) if is_there => drop(all.insert(before.id().to_owned(), next.place())),
                None if is_there => drop(all.remove(before.id())),
                _ => {}
            }
            is_there
        };
        self.settle.send_replace(Some(outcome));
        is_there
    }
}

impl Drop for Move {
    fn drop(&mut self) {
        let before = self.before.clone();
        let outcome = Err(ApiError::internal("the session could not be moved; it stays as it was"));
        self.settle(before, outcome);
    }
}

impl Sessions {
    /// Waits until no session is being suspended or woken.
    pub async fn rest(&self) {
        loop {
            let moving = lock(&self.all).values().find_map(|place| match place {
                Place::Moving(_, settled) => Some(settled.clone()),
                Place::Awake(_) | Place::Asleep(_) => None,
            });
            let Some(settled) = moving else { return };
            drop(settled.wait().await);
        }
    }

    /// Adds a suspended session.
    pub fn add_asleep(&self, asleep: Arc<Asleep>) {
        lock(&self.all).insert(asleep.id.clone(), Place::Asleep(asleep));
    }

    /// Adds a suspended session, unless it was added meanwhile.
    pub fn add_found(&self, asleep: Arc<Asleep>) {
        let mut all = lock(&self.all);
        if !self.are_closed() {
            all.entry(asleep.id.clone()).or_insert(Place::Asleep(asleep));
        }
    }

    /// A session of this owner, to use it. A suspended session begins to move.
    ///
    /// # Errors
    /// 404: no session has this id, or it belongs to another key.
    pub fn to_use(app: &App, owner: &str, id: &str) -> Result<Target, ApiError> {
        let mut all = lock(&app.sessions.all);
        match all.get(id).filter(|place| place.owner() == owner) {
            None => Err(ApiError::no_session(id)),
            // It is in use before the lock is given back. So nothing suspends it now.
            Some(Place::Awake(session)) => Ok(Target::Awake(Arc::clone(session), session.used())),
            Some(Place::Moving(_, settled)) => Ok(Target::Moving(settled.clone())),
            Some(Place::Asleep(asleep)) => {
                let asleep = Arc::clone(asleep);
                let moving = begin(app, &mut all, Known::Asleep(Arc::clone(&asleep)));
                Ok(Target::Asleep(asleep, moving))
            }
        }
    }

    /// A session of this owner, as it is; and the end of its move, if it moves.
    ///
    /// # Errors
    /// 404: no session has this id, or it belongs to another key.
    pub fn of(&self, owner: &str, id: &str) -> Result<(Known, Option<Settled>), ApiError> {
        let all = lock(&self.all);
        let place = all.get(id).filter(|place| place.owner() == owner);
        let place = place.ok_or_else(|| ApiError::no_session(id))?;
        let settled = match place {
            Place::Moving(_, settled) => Some(settled.clone()),
            _ => None,
        };
        Ok((place.known(), settled))
    }

    /// All sessions of this owner, ordered by id.
    pub fn all_of(&self, owner: &str) -> Vec<Known> {
        let all = lock(&self.all);
        let own = all.values().filter(|place| place.owner() == owner);
        let mut own: Vec<_> = own.map(Place::known).collect();
        own.sort_by(|a, b| a.id().cmp(b.id()));
        own
    }

    /// The sessions that are suspended.
    pub fn asleep(&self) -> Vec<Arc<Asleep>> {
        let all = lock(&self.all);
        let asleep = all.values().filter_map(|place| match place {
            Place::Asleep(asleep) => Some(Arc::clone(asleep)),
            _ => None,
        });
        asleep.collect()
    }

    /// Begins to suspend a session that has been unused for so long. Without `idle`, it may be in use. `None` if it may not be suspended.
    pub fn begin_to_suspend(app: &App, id: &str, idle: Option<Duration>) -> Option<(Arc<Session>, Move)> {
        let mut all = lock(&app.sessions.all);
        let Some(Place::Awake(session)) = all.get(id) else {
            return None;
        };
        let may = match idle {
            Some(idle) => session.may_sleep(idle),
            None => session.recipe().is_some(),
        };
        let session = may.then(|| Arc::clone(session))?;
        let moving = begin(app, &mut all, Known::Awake(Arc::clone(&session)));
        Some((session, moving))
    }

    /// Begins to end a session that has been unused for so long. `None` if it is in use.
    pub fn begin_to_end(app: &App, id: &str, idle: Duration) -> Option<(Arc<Session>, Move)> {
        let mut all = lock(&app.sessions.all);
        let Some(Place::Awake(session)) = all.get(id) else {
            return None;
        };
        let is_unused = session.idle_for().is_some_and(|unused| unused >= idle);
        let session = is_unused.then(|| Arc::clone(session))?;
        let moving = begin(app, &mut all, Known::Awake(Arc::clone(&session)));
        Some((session, moving))
    }

    /// Begins to find out who has a session, also if it is in use. `None` if no session that is in doubt is awake here any more.
    pub fn begin_to_settle(
        app: &App,
        id: &str,
        is_in_doubt: impl Fn(&Session) -> bool,
    ) -> Option<(Arc<Session>, Move)> {
        let mut all = lock(&app.sessions.all);
        let Some(Place::Awake(session)) = all.get(id).filter(|place| match place {
            Place::Awake(session) => is_in_doubt(session),
            _ => false,
        }) else {
            return None;
        };
        let session = Arc::clone(session);
        let moving = begin(app, &mut all, Known::Awake(Arc::clone(&session)));
        Some((session, moving))
    }

    /// Begins to remove a session that is suspended. `None` if it is not suspended any more.
    pub fn begin_to_forget(app: &App, id: &str) -> Option<(Arc<Asleep>, Move)> {
        let mut all = lock(&app.sessions.all);
        let Some(Place::Asleep(asleep)) = all.get(id) else {
            return None;
        };
        let asleep = Arc::clone(asleep);
        let moving = begin(app, &mut all, Known::Asleep(Arc::clone(&asleep)));
        Some((asleep, moving))
    }
}

fn begin(app: &App, all: &mut std::collections::HashMap<String, Place>, before: Known) -> Move {
    let (settle, settled) = watch::channel(None);
    all.insert(before.id().to_owned(), Place::Moving(before.clone(), Settled(settled)));
    Move {
        app: app.clone(),
        before: Some(before),
        settle,
    }
}
