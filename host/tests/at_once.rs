//! Guests that one zygote forks at the same time: none has anything of another, or of the zygote.
//!
//! The tests use real guests in bubblewrap, and fail on a machine without it; `scripts/setup` installs bubblewrap.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sandglass_host::backend::{self, bubblewrap};
use sandglass_host::pool::{Pool, PoolSettings, Source};
use sandglass_host::{BackendKind, Launcher, Outcome, Sandbox, Settings};

const PATIENCE: Duration = Duration::from_secs(120);
const GUESTS: usize = 12;

async fn pool(spares: usize) -> Arc<Pool> {
    let zygotes = bubblewrap::zygote_launcher(&Settings::default(), vec!["json".to_owned()], None, PATIENCE)
        .await
        .unwrap();
    let cold = backend::launcher(BackendKind::Bubblewrap, &Settings::default())
        .await
        .unwrap();
    let settings = PoolSettings {
        min_spares: spares,
        max_spares: GUESTS,
        max_wait: PATIENCE,
        ..PoolSettings::default()
    };
    Arc::new(Pool::new(Source::Zygote(zygotes), cold, settings))
}

async fn sandbox(pool: &Arc<Pool>) -> Sandbox {
    let launcher: Arc<dyn Launcher> = pool.clone();
    let builder = Sandbox::builder().launcher(launcher).without_context();
    builder.build().await.unwrap()
}

async fn result(sandbox: &Sandbox, code: &str) -> String {
    let run = sandbox.execute(code).await.unwrap();
    assert_eq!(run.outcome, Outcome::Ok, "{code}: {:?}", run.traceback);
    run.result.clone().unwrap_or_default()
}

/// Lists the kinds of a guest's descriptors.
const DESCRIPTORS: &str = "import os, re\n\
    kinds = []\n\
    for fd in os.listdir('/proc/self/fd'):\n\
    \x20   try: kinds.append(re.sub(r'\\[\\d+\\]', '', os.readlink(f'/proc/self/fd/{fd}')))\n\
    \x20   except OSError: pass\n\
    sorted(kind for kind in kinds if not kind.startswith('/proc'))";

#[tokio::test(flavor = "multi_thread")]
async fn guests_forked_at_the_same_time_hold_no_descriptor_of_each_other() {
    let alone = pool(1).await;
    alone.warm(PATIENCE).await.unwrap();
    let expected = result(&sandbox(&alone).await, DESCRIPTORS).await;
    // A pidfd would be the right to kill another guest, and a file of a control group the way out of the own one.
    for foreign in ["pidfd", "tasks", "cgroup"] {
        assert!(!expected.contains(foreign), "{expected}");
    }
    let pool = pool(GUESTS).await;
    pool.warm(PATIENCE).await.unwrap();
    for _ in 0..GUESTS {
        assert_eq!(result(&sandbox(&pool).await, DESCRIPTORS).await, expected);
    }
}

/// The zygote's forking thread enters a guest's group, and the end of the group kills all members.
#[tokio::test(flavor = "multi_thread")]
async fn each_guest_is_born_in_a_group_of_its_own_whose_end_is_nobody_elses() {
    let pool = pool(GUESTS).await;
    pool.warm(PATIENCE).await.unwrap();
    let group = "import subprocess\n\
        own = open('/proc/self/cgroup').read()\n\
        child = subprocess.run(['/bin/cat', '/proc/self/cgroup'], capture_output=True, text=True, check=True).stdout\n\
        assert own == child, (own, child)\n\
        [line.split(':', 2)[2] for line in own.splitlines() if '.fork' in line]";
    let guests = join_all((0..GUESTS).map(|_| sandbox(&pool))).await;
    let groups: Vec<String> = join_all(guests.iter().map(|guest| result(guest, group))).await;
    if groups[0] != "[]" {
        assert_eq!(groups.iter().collect::<HashSet<_>>().len(), GUESTS, "{groups:?}");
    }
    let (ended, kept) = guests.split_at(GUESTS / 2);
    join_all(ended.iter().map(|guest| async {
        let _ = guest
            .execute("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
            .await;
    }))
    .await;
    for guest in kept {
        assert_eq!(result(guest, "1 + 1").await, "2");
    }
    assert_eq!(result(&sandbox(&pool).await, "1 + 1").await, "2");
    assert_eq!(pool.stats().zygotes, 1);
}
