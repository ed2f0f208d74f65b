//! Kept sandboxes in a store that servers share: one server at a time has one, and a late one does nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sandglass_host::kept::{Kept, KeptPlace, ResumeOptions};
use sandglass_host::{BackendKind, Error, Execution, Sandbox, SandboxBuilder, StateStatus, Value};
use sandglass_states::{Clock, MasterKey, MemoryStore, States, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::faults::{Faulty, NO_STATES};
use super::{Calls, all, ok, open, questions};

const LASTS: u64 = 30;
/// The time after which a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server of the store.
struct Server {
    states: States,
    place: KeptPlace,
}

impl Server {
    fn beat(&self) {
        self.states.renew().unwrap();
        self.states.watch().unwrap();
    }
}

/// Two servers, and the seconds of their clock.
fn two() -> (Server, Server, Arc<AtomicU64>) {
    two_of(&(Arc::new(MemoryStore::default()) as Arc<dyn Store>))
}

fn two_of(store: &Arc<dyn Store>) -> (Server, Server, Arc<AtomicU64>) {
    let seconds = Arc::new(AtomicU64::new(0));
    let server = || {
        let (key, seconds) = (MasterKey::parse(&"5a".repeat(32)).unwrap(), Arc::clone(&seconds));
        let clock = Clock::new(move || Duration::from_secs(seconds.load(Ordering::SeqCst)));
        let states = States::shared(Arc::clone(store), key, Duration::from_secs(LASTS), clock, None).unwrap();
        let tenant = Arc::new(states.tenant("ann").unwrap());
        let place = KeptPlace::new(tenant, "01".repeat(16).parse().unwrap());
        Server { states, place }
    };
    let [a, b] = [(), ()].map(|()| server());
    a.beat();
    b.beat();
    (a, b, seconds)
}

/// The lease of the other server runs out, as this one sees it.
fn end_lease(watching: &Server, seconds: &AtomicU64) {
    for _ in 0..4 {
        seconds.fetch_add(LASTS / 2, Ordering::SeqCst);
        watching.beat();
    }
}

/// Runs code while the test goes on.
fn begun(kept: &Arc<Kept>, code: &'static str) -> JoinHandle<Result<Execution, Error>> {
    let kept = Arc::clone(kept);
    tokio::spawn(async move { kept.execute(code).await })
}

fn builder() -> SandboxBuilder {
    Sandbox::builder()
        .backend(BackendKind::Subprocess)
        .allow_subprocess(true)
        .without_context()
}

async fn refusal(server: &Server) -> String {
    in_use(Kept::open(builder(), server.place.clone()).await.map(drop))
}

/// The message of the error for a sandbox that another server has.
fn in_use<T>(done: Result<T, Error>) -> String {
    match done {
        Err(Error::PersistInUse(why)) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("another server has it"),
    }
}

/// A sandbox whose calls of `ask` wait until they may end.
async fn waiting(server: &Server) -> (Arc<Kept>, Calls, watch::Sender<bool>) {
    let calls: Calls = Arc::new(watch::Sender::new(Vec::new()));
    let (end, ends) = watch::channel(false);
    let noted = Arc::clone(&calls);
    let builder = Sandbox::builder()
        .backend(BackendKind::Subprocess)
        .allow_subprocess(true)
        .without_context()
        .host_function("ask", move |call| {
            let (noted, mut ends) = (Arc::clone(&noted), ends.clone());
            async move {
                let question = call.text(0)?.to_owned();
                noted.send_modify(|calls| calls.push((call.id.clone(), question.clone())));
                let _ = ends.wait_for(|ends| *ends).await;
                Ok(Value::Str(format!("late answer to {question}")))
            }
        });
    (Kept::open(builder, server.place.clone()).await.unwrap(), calls, end)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_at_a_time_has_a_sandbox_and_gives_it_back() {
    let (a, b, _) = two();
    let (kept, _) = open(&a.place, BackendKind::Subprocess, all).await;
    ok(&kept.execute("x = [ask('one')]").await.unwrap());
    assert!(refusal(&b).await.contains("another server"));
    assert!(in_use(b.place.remove().await).contains("another server"));
    kept.destroy().await;
    assert!(!a.place.is_open(), "the end of the sandbox waits for that");
    let (kept, _) = open(&b.place, BackendKind::Subprocess, all).await;
    let run = kept.execute("x").await.unwrap();
    assert_eq!(
        (ok(&run).as_str(), run.state.status),
        ("['answer to one']", StateStatus::Kept)
    );
    // What ended at the other server runs again here.
    let again = kept
        .replay(1, sandglass_host::kept::ReplayOptions::default())
        .await
        .unwrap();
    assert_eq!((again.execution.id, again.difference), (1, None));
    assert!(refusal(&a).await.contains("another server"));
    kept.destroy().await;
    a.place.remove().await.unwrap();
    assert!(open(&b.place, BackendKind::Subprocess, all).await.0.is_new());
}

/// The store that fails is asked again.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_could_not_be_given_back_is_given_back_later() {
    let store = Arc::new(Faulty::default());
    let (a, b, _) = two_of(&(Arc::clone(&store) as Arc<dyn Store>));
    let (kept, _) = open(&a.place, BackendKind::Subprocess, all).await;
    ok(&kept.execute("x = 1").await.unwrap());
    store.faults.store(NO_STATES, Ordering::SeqCst);
    kept.destroy().await;
    assert!(refusal(&b).await.contains("another server"));
    store.faults.store(0, Ordering::SeqCst);
    let began = Instant::now();
    let kept = loop {
        match Kept::open(builder(), b.place.clone()).await {
            Ok(kept) => break kept,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(ok(&kept.execute("x").await.unwrap()), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_new_ones_the_first_execution_decides() {
    let (a, b, _) = two();
    let (first, _) = open(&a.place, BackendKind::Subprocess, all).await;
    let (second, calls) = open(&b.place, BackendKind::Subprocess, all).await;
    assert!(first.is_new() && second.is_new());
    ok(&first.execute("x = 1").await.unwrap());
    let why = in_use(second.execute("ask('nothing')").await);
    assert!(why.contains("nothing was done here"), "{why}");
    in_use(second.sandbox().await);
    assert!(questions(&calls).is_empty());
    second.destroy().await;
    assert_eq!(ok(&first.execute("x").await.unwrap()), "1");
    first.destroy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_makes_no_further_call_and_writes_nothing() {
    let (a, b, seconds) = two();
    let (late, calls, end) = waiting(&a).await;
    ok(&late.execute("x = []").await.unwrap());
    let late = Arc::new(late);
    let running = begun(&late, "x.append(ask('one'))\nx.append(ask('two'))\nx");
    super::is_asked(&calls).await;
    end_lease(&b, &seconds);
    let (kept, again) = open(&b.place, BackendKind::Subprocess, all).await;
    assert_eq!(kept.pending().unwrap().calls[0].name, "ask");
    let run = kept.resume(ResumeOptions::default()).await.unwrap();
    assert_eq!(
        (ok(&run).as_str(), run.unkept),
        ("['answer to one', 'answer to two']", None)
    );
    assert_eq!(questions(&again), ["one", "two"]);
    assert_eq!(
        calls.borrow()[0].0,
        again.borrow()[0].0,
        "a call that is made again has the same name"
    );

    // The answer comes now. The lease of this server is over, so nobody sees it.
    end.send_replace(true);
    let why = in_use(running.await.unwrap());
    assert!(why.contains("the guest was ended"), "{why}");
    assert_eq!(questions(&calls), ["one"]);
    // Neither under the old lease nor under a new one may it do anything.
    in_use(late.execute("x = 'late'").await);
    a.beat();
    in_use(late.execute("x = 'late'").await);
    in_use(late.sandbox().await);
    assert!(!a.place.hold_again().unwrap());
    late.destroy().await;
    let run = kept.execute("x").await.unwrap();
    assert_eq!(
        (ok(&run).as_str(), run.state.status),
        ("['answer to one', 'answer to two']", StateStatus::Kept)
    );
    kept.destroy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_goes_on_if_nobody_took_the_sandbox_over() {
    let (a, b, seconds) = two();
    let (kept, calls, end) = waiting(&a).await;
    ok(&kept.execute("x = []").await.unwrap());
    let running = begun(&kept, "x.append(ask('one'))\nx");
    super::is_asked(&calls).await;
    end_lease(&b, &seconds);
    end.send_replace(true);
    in_use(running.await.unwrap());
    a.beat();
    assert!(a.place.hold_again().unwrap());
    kept.settle().await.unwrap();
    let pending = kept.pending().unwrap();
    assert_eq!((pending.execution, pending.calls.len()), (2, 1));
    let run = kept.resume(ResumeOptions::default()).await.unwrap();
    assert_eq!(ok(&run), "['late answer to one']");
    let [first, second] = [0, 1].map(|place| calls.borrow()[place].0.clone());
    assert_eq!(first, second, "a call that is made again has the same name");
    kept.destroy().await;
}
