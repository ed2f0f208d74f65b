//! Code that runs ahead in a copy of the guest.

use std::time::Duration;

use futures_util::stream;
use sandglass_core::Error;
use sandglass_core::execution::Outcome;
use sandglass_core::predictions::{Source, Tally};
use sandglass_host::{BackendKind, ExecuteOptions, Limits, Sandbox};

use crate::support::{PATIENCE, builder, limits, on_both};

on_both!(
    a_guest_has_nobody_killed_but_itself,
    an_effect_happens_once,
    code_that_waits_has_its_time,
    a_hint_that_comes_true_is_served_by_the_copy,
    what_does_not_come_true_never_was,
    what_it_does_to_the_world_happens_when_its_code_comes,
    code_runs_while_it_is_written,
    a_copy_that_became_the_guest_ends_as_one,
    libraries_start_no_threads,
);

async fn sandbox(kind: BackendKind) -> Sandbox {
    // On a slow machine, much time is spent in vain.
    let limits = Limits {
        max_ahead_share: 1.0,
        ..limits()
    };
    let builder = builder(kind).limits(limits).ahead(true).without_context();
    let builder = builder.on_llm_query(|query| async move { Ok(format!("answer to {}", query.prompt)) });
    let sandbox = builder.build().await.unwrap();
    sandbox.start().await.unwrap();
    sandbox
}

pub(crate) async fn tally(sandbox: &Sandbox, source: Source) -> Tally {
    sandbox
        .stats()
        .await
        .unwrap()
        .ahead
        .code
        .remove(&source)
        .unwrap_or_default()
}

/// Waits until this many copies have run to the end of their code. A copy that has to wait for something goes on when it is
/// asked for.
pub(crate) async fn finished(sandbox: &Sandbox, source: Source, count: u32) {
    let ended = async {
        while tally(sandbox, source).await.finished < count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let started = async {
        while tally(sandbox, source).await.started < count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, started)
        .await
        .expect("nothing runs ahead");
    tokio::time::timeout(PATIENCE, ended)
        .await
        .expect("it does not come to its end");
}

pub(crate) async fn prints(sandbox: &Sandbox, code: &str) -> String {
    let run = sandbox.execute(code).await.unwrap();
    assert_eq!(run.outcome, Outcome::Ok, "{:?}", run.run);
    run.run.stdout
}

async fn a_hint_that_comes_true_is_served_by_the_copy(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    prints(&sandbox, "import random\nrandom.seed(3)\nx = []").await;
    let code = "for i in range(2_000_000): pass\nx.append(random.random())\nprint(len(x), i)\nx";
    for round in 1..=5 {
        sandbox.hint([code]);
        finished(&sandbox, Source::Explicit, round).await;
        let run = sandbox.execute(code).await.unwrap();
        assert_eq!(run.stdout, format!("{round} 1999999\n"));
    }
    assert_eq!(
        prints(
            &sandbox,
            "random.seed(3)\nprint(x == [random.random() for _ in range(5)])"
        )
        .await,
        "True\n"
    );
    let tally = tally(&sandbox, Source::Explicit).await;
    assert_eq!((tally.started, tally.used, tally.wasted), (5, 5, 0), "{kind}");
    assert!(tally.time_saved > 0.0);
    sandbox.destroy().await;
}

async fn libraries_start_no_threads(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    let code = "import os\nprint([os.environ.get(f'{name}_NUM_THREADS') for name in ('OPENBLAS', 'OMP')])";
    assert_eq!(prints(&sandbox, code).await, "['1', '1']\n");
    sandbox.destroy().await;
}

async fn what_does_not_come_true_never_was(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    prints(&sandbox, "x = 1").await;
    sandbox.hint(["x = 2\nopen('made', 'w').write('x')"]);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        prints(&sandbox, "import os\nprint(x, os.path.exists('made'))").await,
        "1 False\n"
    );
    sandbox.hint(["x = 3"]);
    finished(&sandbox, Source::Explicit, 1).await;
    sandbox.set_variable("x", 4).await.unwrap();
    assert_eq!(prints(&sandbox, "x = 3").await, "");
    assert_eq!(prints(&sandbox, "print(x)").await, "3\n");
    let tally = tally(&sandbox, Source::Explicit).await;
    assert_eq!((tally.started, tally.used), (2, 0), "{kind}");
    sandbox.destroy().await;
}

async fn what_it_does_to_the_world_happens_when_its_code_comes(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    prints(&sandbox, "import time").await;
    let code = "open('made', 'w').write('x')\nt = time.time()\nprint(llm_query('a'))";
    sandbox.hint([code]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(sandbox.read_file("made").await.is_err() || sandbox.list_files("").await.unwrap().is_empty());
    sandbox.hint([code]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    assert_eq!(prints(&sandbox, code).await, "answer to a\n");
    assert_eq!(sandbox.read_file("made").await.unwrap(), b"x");
    assert_eq!(
        prints(&sandbox, &format!("print(t >= {before})")).await,
        "True\n",
        "{kind}"
    );
    sandbox.destroy().await;
}

/// A sandbox that has run code while it was written.
async fn written(kind: BackendKind) -> Sandbox {
    let sandbox = sandbox(kind).await;
    prints(&sandbox, "x = []").await;
    let pieces = [
        "for i in range(1000):\n",
        "    x.append(i)\n",
        "y = len(x)\nz =",
        " y + 1\nprint(y)\n",
        "z",
    ];
    let slow = stream::unfold(pieces.iter(), |mut pieces| async move {
        let piece = pieces.next()?;
        tokio::time::sleep(Duration::from_millis(60)).await;
        Some((Ok::<_, Error>(*piece), pieces))
    });
    let run = sandbox.execute_stream(slow, ExecuteOptions::default()).await.unwrap();
    assert_eq!(
        (run.stdout.as_str(), run.result.as_deref()),
        ("1000\n", Some("1001")),
        "{:?}",
        run.run
    );
    sandbox
}

async fn code_runs_while_it_is_written(kind: BackendKind) {
    let mut rounds = 0..5;
    let sandbox = loop {
        let sandbox = written(kind).await;
        let tally = tally(&sandbox, Source::Stream).await;
        assert_eq!(tally.started, 1, "{kind}");
        if tally.used == 1 {
            break sandbox;
        }
        // On a slow machine, the guest may take too long to tell that the code is plain.
        sandbox.destroy().await;
        assert!(rounds.next().is_some(), "{kind}");
    };
    let failed: [Result<&str, Error>; 2] = [Ok("x = 1\n"), Err(Error::Destroyed)];
    let refused = sandbox
        .execute_stream(stream::iter(failed), ExecuteOptions::default())
        .await;
    assert!(refused.is_err());
    assert_eq!(prints(&sandbox, "print(len(x))").await, "1000\n");
    sandbox.destroy().await;
}

async fn a_copy_that_became_the_guest_ends_as_one(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    prints(&sandbox, "x = 1").await;
    sandbox.hint(["x = 2"]);
    finished(&sandbox, Source::Explicit, 1).await;
    prints(&sandbox, "x = 2").await;
    let run = sandbox.execute("import os\nos._exit(3)").await.unwrap();
    assert_eq!(run.outcome, Outcome::Crashed, "{kind}");
    let run = sandbox.execute("x").await.unwrap();
    assert_eq!(run.error_type.as_deref(), Some("NameError"), "{kind}: it is a new one");
    sandbox.destroy().await;
}

/// Guesses over a real pandas table. In bubblewrap this is impossible if only root can read the Python that has pandas.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_guessed_of_a_table_is_served() {
    let kind = BackendKind::Subprocess;
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../.venv/bin/python");
    let mut builders = [(); 2].map(|()| builder(kind).python(python).ahead(true).without_context());
    builders[0] = builders[0].clone().predictions(true).limits(Limits {
        max_ahead_share: 1.0,
        ..limits()
    });
    let [guesser, plain] = builders;
    let (guesser, plain) = (guesser.build().await.unwrap(), plain.build().await.unwrap());
    let table = "import pandas as pd
df = pd.DataFrame({'kind': ['a', 'b', 'c', 'b'] * 500_000, 'price': range(2_000_000)})
print(len(df))";
    for sandbox in [&guesser, &plain] {
        assert_eq!(prints(sandbox, table).await, "2000000\n");
    }
    guesser.update_conversation("How are the values of `kind` distributed? I look at the value counts.");
    finished(&guesser, Source::Conversation, 1).await;
    let best = guesser.predictions().await.unwrap().swap_remove(0);
    assert_eq!(
        best.code, "print(df['kind'].value_counts())",
        "written as the code before is"
    );
    assert_eq!(
        (best.source, best.dependencies),
        (Source::Conversation, vec!["df".to_owned(), "kind".to_owned()])
    );
    let (served, ran) = (prints(&guesser, &best.code).await, prints(&plain, &best.code).await);
    assert_eq!(served, ran);
    assert!(ran.contains("b    1000000\n"), "{ran}");
    let tally = tally(&guesser, Source::Conversation).await;
    assert!(tally.used == 1 && tally.time_saved > 0.0, "{kind}: {tally:?}");

    assert_eq!(plain.predictions().await, Ok(Vec::new()), "nobody asked for guesses");
    assert!(plain.stats().await.unwrap().ahead.code.is_empty());
    guesser.destroy().await;
    plain.destroy().await;
}

/// Code that answers a request for a copy falsely: with pidfds of the process that made its control socket, which is the host.
pub(crate) const LIE: &str = "
import gc, socket, struct
Forks = next(type(o) for o in gc.get_objects() if type(o).__name__ == 'Forks')
def lie(control, message, fds):
    global lied
    lied = True
    peer = control.getsockopt(socket.SOL_SOCKET, 77)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack('2i', peer, peer))]
    control.sendmsg([message.encode()], rights)
Forks.fork.__globals__['answer'] = lie
";

async fn a_guest_has_nobody_killed_but_itself(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    prints(&sandbox, LIE).await;
    sandbox.hint(["x = 1"]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(
        prints(&sandbox, "x = 1\nprint(x, lied)").await,
        "1 True\n",
        "{kind}: this process lives"
    );
    assert_eq!(tally(&sandbox, Source::Explicit).await.used, 0);
    sandbox.destroy().await;
}

async fn an_effect_happens_once(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    prints(&sandbox, "import os").await;
    // C code that holds the interpreter's lock for long, and code without enough memory, each after a visible effect.
    for (name, rest) in [("a", "sum(range(4 * 10**7)) > 0"), ("b", "[0] * 10**15")] {
        let code =
            format!("fd = os.open('{name}', os.O_WRONLY | os.O_CREAT | os.O_APPEND)\nos.write(fd, b'x')\n{rest}");
        sandbox.hint([code.as_str()]);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let run = sandbox.execute(code).await.unwrap();
        assert!(matches!(run.outcome, Outcome::Ok | Outcome::Error), "{:?}", run.run);
        assert_eq!(sandbox.read_file(name).await.unwrap(), b"x", "{kind}");
    }
    sandbox.destroy().await;
}

async fn code_that_waits_has_its_time(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    prints(&sandbox, "import time, queue\nx = 1\nq = queue.Queue()").await;
    let options = || ExecuteOptions {
        timeout_ms: Some(60_000.0),
        ..ExecuteOptions::default()
    };
    // The wait before the code is asked for counts for no timeout.
    let code = "open('made', 'w').close()\nend = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass\n'done'";
    sandbox.hint([code]);
    tokio::time::sleep(Duration::from_millis(700)).await;
    let run = sandbox.execute_with(code, options()).await.unwrap();
    assert_eq!(run.result.as_deref(), Some("'done'"), "{:?}", run.run);
    assert!(run.guest_time >= 500.0, "{}", run.guest_time);
    sandbox.hint(["q.get()"]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let waiting = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.execute("q.get()").await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    sandbox.interrupt();
    assert_eq!(waiting.await.unwrap().unwrap().outcome, Outcome::Interrupted);
    assert_eq!(prints(&sandbox, "print(x)").await, "1\n", "{kind}");
    sandbox.destroy().await;
}
