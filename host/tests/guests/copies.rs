//! Exact copies of a session, each in namespaces of its own.

use std::sync::Arc;

use futures_util::future::join_all;
use sandglass_core::execution::{Outcome, StateStatus};
use sandglass_host::{BackendKind, ExecuteOptions, Limits, Sandbox, SandboxBuilder};

use crate::ahead::prints;
use crate::support::{limits, processes_with, starts_processes, token, until};

fn builder() -> SandboxBuilder {
    crate::support::builder(BackendKind::Bubblewrap)
        .limits(Limits {
            grace_period_ms: 100.0,
            ..limits()
        })
        .without_context()
        .checkpoints(3)
}

/// The copies of a sandbox.
async fn copies_of(sandbox: &Sandbox, count: usize) -> Vec<Sandbox> {
    let copies = sandbox.fork(count).await.unwrap();
    assert_eq!(copies.len(), count);
    let made = copies.into_iter().map(|copy| builder().copy(copy).build());
    join_all(made).await.into_iter().map(Result::unwrap).collect()
}

/// What comes and goes on only in an exact copy.
const STATE: &str = "
import os, random
def counter():
    number = 0
    def add():
        nonlocal number
        number += 1
        return number
    return add
count, numbers = counter(), (number for number in range(100))
count(), next(numbers), next(numbers)
os.makedirs('folder', exist_ok=True)
open('folder/inner.txt', 'w').write('inner')
os.symlink('folder/inner.txt', 'link')
os.chmod('folder', 0o750)
os.utime('folder/inner.txt', (1000, 2000))
open('/tmp/other', 'w').write('other')
file = open('file.txt', 'w+')
file.write('hello world')
file.flush(), file.seek(6)
random.seed(7)
";
const LOOK: &str = "
print(count(), next(numbers), file.read(), round(random.random(), 6), file.tell(), open('link').read(), open('/tmp/other').read(),
      oct(os.stat('folder').st_mode), os.stat('folder/inner.txt').st_mtime, os.getcwd(), sorted(os.listdir()))
";
const SEEN: &str = "2 2 world 0.323833 11 inner other 0o40750 2000.0 /workspace ['file.txt', 'folder', 'link']\n";

#[tokio::test(flavor = "multi_thread")]
async fn each_goes_on_where_the_session_was() {
    let sandbox = builder().build().await.unwrap();
    prints(&sandbox, STATE).await;
    let copies = copies_of(&sandbox, 3).await;
    for sandbox in copies.iter().chain([&sandbox]) {
        let run = sandbox.execute(LOOK).await.unwrap();
        assert_eq!((run.outcome, &*run.stdout, run.id), (Outcome::Ok, SEEN, 2), "{run:?}");
        assert_eq!(run.state.status, StateStatus::Kept, "{run:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_have_checkpoints_of_their_own() {
    let sandbox = builder().build().await.unwrap();
    prints(&sandbox, "x = [1]\nnumbers = (n for n in range(9))").await;
    let copies = copies_of(&sandbox, 2).await;
    for (index, sandbox) in copies.iter().chain([&sandbox]).enumerate() {
        prints(sandbox, &format!("x.append({index}); next(numbers)")).await;
        assert_eq!(prints(sandbox, "print(x, next(numbers))").await, format!("[1, {index}] 1\n"));
        assert_eq!(sandbox.undo().await, Ok(2));
        assert_eq!(sandbox.undo().await, Ok(1));
        assert_eq!(prints(sandbox, "print(x, next(numbers))").await, "[1] 0\n");
        let ended = sandbox.execute("x.append(5); __import__('os')._exit(1)").await.unwrap();
        assert_eq!(
            (ended.outcome, ended.state.status, ended.state.restored_to),
            (Outcome::Crashed, StateStatus::Restored, Some(4)),
            "{ended:?}"
        );
        let stuck = "sum(range(10**13))"; // a call into C, which nothing interrupts
        let options = ExecuteOptions {
            timeout_ms: Some(1_000.0),
            ..ExecuteOptions::default()
        };
        let stuck = sandbox.execute_with(stuck, options).await.unwrap();
        assert_eq!((stuck.outcome, stuck.state.restored_to), (Outcome::Timeout, Some(4)), "{stuck:?}");
        assert_eq!(prints(sandbox, "print(x, next(numbers))").await, "[1] 1\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_copied_again_and_outlive_their_originals() {
    let mut line = vec![builder().build().await.unwrap()];
    prints(&line[0], "depth = 0\nnumbers = (n for n in range(99))").await;
    for depth in 1..=6 {
        let last = line.last().unwrap();
        let copy = copies_of(last, 1).await.pop().unwrap();
        let code = "depth += 1; open(f'{depth}.txt', 'w').close(); next(numbers)";
        prints(&copy, code).await;
        if depth == 3 {
            line.remove(0).destroy().await;
        }
        line.push(copy);
    }
    for (depth, sandbox) in (1..).zip(&line) {
        let look = "import os; print(depth, next(numbers), len(os.listdir()), os.listdir('/proc').count('1'))";
        assert_eq!(prints(sandbox, look).await, format!("{depth} {depth} {depth} 1\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_shared_is_named_and_the_session_goes_on() {
    let obstacles = [
        ("import threading; t = threading.Thread(target=stop.wait); t.start()", "there are threads", "stop.set(); t.join()"),
        ("import socket; s = socket.socket()", "a socket is open", "s.close()"),
        ("f = open('gone', 'w'); import os; os.remove('gone')", "gone (deleted) is open", "f.close()"),
        ("import os; os.mkfifo('fifo')", "fifo is no ordinary file", "os.remove('fifo')"),
        ("for n in range(2001): open(f'f{n}', 'w').close()", "more than 2000 files", "for n in range(2001): os.remove(f'f{n}')"),
    ];
    let sandbox = builder().build().await.unwrap();
    prints(&sandbox, "import threading; stop = threading.Event(); numbers = (n for n in range(9))").await;
    for (number, (code, why, remove)) in obstacles.into_iter().enumerate() {
        prints(&sandbox, code).await;
        let error = sandbox.fork(1).await.unwrap_err();
        assert_eq!(error.code(), "not_serializable", "{error}");
        assert!(error.to_string().contains(why), "{error}");
        prints(&sandbox, remove).await;
        assert_eq!(prints(&sandbox, "print(next(numbers))").await, format!("{number}\n"));
    }
    assert_eq!(copies_of(&sandbox, 1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_copies_in_the_end() {
    let token = token();
    let sandbox = builder().build().await.unwrap();
    prints(&sandbox, &format!("token = '{token}'\nopen('file', 'w').write(token)")).await;
    let copies: Vec<_> = copies_of(&sandbox, 4).await.into_iter().map(Arc::new).collect();
    for copy in &copies {
        let (copy, busy) = (Arc::clone(copy), format!("{}\nwhile True: time.sleep(1)", starts_processes(&token)));
        tokio::spawn(async move { copy.execute(busy).await });
    }
    until("all have started", || processes_with(&token) >= 8).await;
    sandbox.destroy().await;
    assert_eq!(processes_with(&token), 8, "copies outlive their original");
    for copy in &copies {
        copy.destroy().await;
    }
    until("all have ended", || processes_with(&token) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zz_timing() {
    let sandbox = builder().python("/work/main/.setup/states/bin/python").build().await.unwrap();
    prints(&sandbox, "import numpy as np, pandas as pd\nframe = pd.DataFrame(np.random.rand(6_553_600, 2), columns=['a', 'b'])\n").await;
    println!("{}", prints(&sandbox, "print(open('/proc/self/smaps_rollup').read(), len(open('/proc/self/maps').readlines()))").await);
    for n in [100, 100] {
        let begin = std::time::Instant::now();
        let copies = sandbox.fork(n).await.unwrap();
        println!("{n} copies: {:?}", begin.elapsed());
        let made = copies.into_iter().map(|copy| builder().python("/work/main/.setup/states/bin/python").copy(copy).build());
        let copies: Vec<_> = join_all(made).await.into_iter().map(Result::unwrap).collect();
        println!("  built: {:?}", begin.elapsed());
        join_all(copies.iter().map(|copy| copy.start())).await;
        println!("  started: {:?}", begin.elapsed());
        join_all(copies.iter().map(|copy| copy.execute("1"))).await;
        println!("  each has run: {:?}", begin.elapsed());
        join_all(copies.iter().map(|copy| copy.destroy())).await;
        println!("  gone: {:?}", begin.elapsed());
    }
}
