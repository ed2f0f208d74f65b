//! Exact copies of a session, each in namespaces of its own.

use futures_util::future::join_all;
use sandglass_core::execution::{Outcome, StateStatus};
use sandglass_host::{BackendKind, Sandbox, SandboxBuilder};

use crate::ahead::prints;
use crate::support::limits;

fn builder() -> SandboxBuilder {
    crate::support::builder(BackendKind::Bubblewrap)
        .limits(limits())
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
