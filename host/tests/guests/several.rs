//! Several copies of one guest: each runs one code of a hint.

use std::time::Duration;

use sandglass_core::execution::Outcome;
use sandglass_core::predictions::Source;
use sandglass_host::{BackendKind, Limits, Resources, Sandbox, SandboxBuilder};

use crate::ahead::{finished, prints, tally};
use crate::support::{PATIENCE, builder, limits, on_both};

on_both!(
    any_code_of_a_hint_is_served_and_nothing_of_the_others_is_left,
    as_many_are_prepared_at_a_time_as_there_are_processors,
    what_fills_the_memory_leaves_the_others_and_the_state,
    large_copies_are_fewer,
    eight_that_never_end_are_in_nobodys_way,
    what_they_say_is_bounded_together,
);

fn ahead(kind: BackendKind) -> SandboxBuilder {
    // On a busy machine, copies that come to nothing would soon have used up their share of the time.
    let limits = Limits {
        max_ahead_share: 1.0,
        ..limits()
    };
    builder(kind).limits(limits).ahead(true).without_context()
}

async fn started(builder: SandboxBuilder) -> Sandbox {
    let sandbox = builder.build().await.unwrap();
    sandbox.start().await.unwrap();
    sandbox
}

/// Prints the number of other processes with the guest's parent, once there are none or some time has passed.
const SIBLINGS: &str = "
import os, time
def siblings():
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            fields = open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == os.getppid() and int(pid) != os.getpid():
            found.append(pid)
    return found
end = time.monotonic() + 20
while siblings() and time.monotonic() < end:
    time.sleep(0.01)
print(len(siblings()))
";

async fn any_code_of_a_hint_is_served_and_nothing_of_the_others_is_left(kind: BackendKind) {
    let sandbox = started(ahead(kind)).await;
    prints(&sandbox, "import random\nrandom.seed(1)\nx = []").await;
    let codes = ["a", "b", "c", "d", "e"].map(|name| {
        format!("for i in range(10**5): pass\nx.append(('{name}', random.random()))\nprint([name for name, _ in x])")
    });
    let mut names = Vec::new();
    for (round, comes) in [(1, 2), (2, 0), (3, 4)] {
        sandbox.hint(codes.iter().map(String::as_str));
        finished(&sandbox, Source::Explicit, 5 * round).await;
        names.push(["'a'", "'b'", "'c'", "'d'", "'e'"][comes]);
        assert_eq!(
            prints(&sandbox, &codes[comes]).await,
            format!("[{}]\n", names.join(", "))
        );
    }
    let same = "random.seed(1)\nprint([value for _, value in x] == [random.random() for _ in x])";
    assert_eq!(prints(&sandbox, same).await, "True\n");
    let tally = tally(&sandbox, Source::Explicit).await;
    assert_eq!((tally.started, tally.used, tally.wasted), (15, 3, 12), "{kind}");
    assert_eq!(prints(&sandbox, SIBLINGS).await, "0\n", "{kind}");
    sandbox.destroy().await;
}

async fn as_many_are_prepared_at_a_time_as_there_are_processors(kind: BackendKind) {
    let resources = Resources {
        cpus: 64.0,
        ..Resources::default()
    };
    let sandbox = started(ahead(kind).resources(resources)).await;
    let codes = ["1", "2", "3", "4"].map(|number| format!("x = sum(range({number} * 10**6))\nprint({number})"));
    sandbox.hint(codes.iter().map(String::as_str));
    let at_first = tally(&sandbox, Source::Explicit).await.started as usize;
    let processors = std::thread::available_parallelism().unwrap().get();
    assert!(at_first >= processors.min(4), "{kind}: {at_first}");
    finished(&sandbox, Source::Explicit, 4).await;
    assert_eq!(prints(&sandbox, &codes[3]).await, "4\n");
    assert_eq!(tally(&sandbox, Source::Explicit).await.used, 1, "{kind}");
    sandbox.destroy().await;
}

/// Code that takes this much memory and writes to all of it.
fn fills(mib: usize, name: &str) -> String {
    format!("x = bytearray({mib} << 20)\nx[::4096] = b'x' * ({mib} << 8)\nprint('{name}')")
}

fn within(kind: BackendKind, memory_bytes: u64) -> SandboxBuilder {
    ahead(kind).resources(Resources {
        memory_bytes,
        ..Resources::default()
    })
}

async fn what_fills_the_memory_leaves_the_others_and_the_state(kind: BackendKind) {
    let sandbox = started(within(kind, 256 << 20)).await;
    prints(&sandbox, "kept = 7").await;
    let eater = "hoard = []\nwhile True: hoard.append(bytearray(b'x') * (10 << 20))";
    sandbox.hint([eater, "print(kept)", "print(kept + 1)"]);
    finished(&sandbox, Source::Explicit, 2).await;
    let tally_before = tally(&sandbox, Source::Explicit).await;
    assert_eq!((tally_before.started, tally_before.wasted), (3, 1), "{kind}");
    let run = sandbox.execute("print(kept + 1)").await.unwrap();
    assert_eq!((run.stdout.as_str(), run.outcome), ("8\n", Outcome::Ok), "{kind}");
    assert_eq!(tally(&sandbox, Source::Explicit).await.used, 1);
    sandbox.destroy().await;
}

async fn large_copies_are_fewer(kind: BackendKind) {
    let sandbox = started(within(kind, 512 << 20)).await;
    prints(&sandbox, "kept = 7").await;
    let codes = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| fills(128, name));
    sandbox.hint(codes.iter().map(String::as_str));
    let full = async {
        while tally(&sandbox, Source::Explicit).await.wasted == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, full).await.expect("all of them fit");
    let tally_before = tally(&sandbox, Source::Explicit).await;
    let kept = tally_before.under_way();
    assert!((1..=3).contains(&kept), "{kind}: {tally_before:?}");
    assert_eq!(prints(&sandbox, &codes[0]).await, "a\n", "the likeliest is kept");
    assert_eq!(tally(&sandbox, Source::Explicit).await.used, 1);
    assert_eq!(prints(&sandbox, "print(kept, len(x))").await, "7 134217728\n");
    sandbox.destroy().await;
}

async fn eight_that_never_end_are_in_nobodys_way(kind: BackendKind) {
    let resources = Resources {
        cpus: 8.0,
        ..Resources::default()
    };
    let sandbox = started(ahead(kind).resources(resources)).await;
    prints(&sandbox, "x = 1").await;
    let codes = [1, 2, 3, 4, 5, 6, 7, 8].map(|number| format!("while True: x = {number}"));
    sandbox.hint(codes.iter().map(String::as_str));
    let begun = async {
        while tally(&sandbox, Source::Explicit).await.started == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, begun).await.expect("nothing is begun");
    assert_eq!(prints(&sandbox, "print(x)").await, "1\n");
    let tally = tally(&sandbox, Source::Explicit).await;
    assert_eq!((tally.used, tally.wasted), (0, tally.started), "{kind}");
    assert_eq!(prints(&sandbox, SIBLINGS).await, "0\n", "{kind}");
    sandbox.destroy().await;
}

async fn what_they_say_is_bounded_together(kind: BackendKind) {
    let limits = Limits {
        max_ahead_share: 1.0,
        ..limits()
    };
    let sandbox = started(
        ahead(kind)
            .limits(limits)
            .on_llm_query(|_| async { Ok("an answer".to_owned()) }),
    )
    .await;
    prints(&sandbox, "x = 1").await;
    // A host call's argument is kept until its code is asked for.
    let codes = ["a", "b", "c", "d"].map(|letter| format!("llm_query('{letter}' * (6 << 20))"));
    sandbox.hint(codes.iter().map(String::as_str));
    let full = async {
        while tally(&sandbox, Source::Explicit).await.wasted == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, full).await.expect("all of it is kept");
    assert_eq!(prints(&sandbox, "print(x)").await, "1\n", "{kind}");
    sandbox.destroy().await;
}
