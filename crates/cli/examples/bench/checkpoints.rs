//! The costs of checkpoints, with 100 MB of state.

use std::time::{Duration, Instant};

use sandglass_host::{ExecuteOptions, Sandbox, SandboxBuilder};

use crate::{Failure, Samples, ms, ok};

const STATE: &str = "import os\nx = bytearray(b'x') * (100 << 20)\nat = 0";
/// Changes a page in each of ten megabytes.
const CELL: &str = "for block in range(0, 10 << 20, 1 << 20): x[block + at] = 1\nat = (at + 4096) % (1 << 20)";
const APART: Duration = Duration::from_millis(50);

pub async fn measure(builder: &(dyn Fn() -> SandboxBuilder + Sync), times: usize) -> Result<Samples, Failure> {
    let mut samples = Samples::new();
    for (kept, name) in [(0, "without"), (3, "with 3")] {
        let sandbox = builder().checkpoints(kept).without_context().build().await?;
        ok(&sandbox, STATE).await?;
        samples.insert(format!("cell, {name}"), cells(&sandbox, times, Duration::ZERO).await?);
        samples.insert(format!("50 ms apart, {name}"), cells(&sandbox, times, APART).await?);
        tokio::time::sleep(APART).await;
        samples.insert(format!("MB, {name}"), vec![megabytes()]);
        if kept > 0 {
            going_back(&sandbox, times.div_ceil(10), &mut samples).await?;
        }
        sandbox.destroy().await;
    }
    Ok(samples)
}

async fn cells(sandbox: &Sandbox, times: usize, apart: Duration) -> Result<Vec<f64>, Failure> {
    let mut took = Vec::new();
    for _ in 0..times {
        tokio::time::sleep(apart).await;
        let began = Instant::now();
        ok(sandbox, CELL).await?;
        took.push(ms(began));
    }
    Ok(took)
}

async fn going_back(sandbox: &Sandbox, times: usize, samples: &mut Samples) -> Result<(), Failure> {
    let (mut undone, mut after, mut crashed, mut late) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..times {
        ok(sandbox, CELL).await?;
        let began = Instant::now();
        sandbox.undo().await?;
        undone.push(ms(began));
        ok(sandbox, "1 + 1").await?;
        after.push(ms(began));
        let began = Instant::now();
        sandbox.execute("os._exit(1)").await?;
        ok(sandbox, "x[0]").await?;
        crashed.push(ms(began));
        let options = ExecuteOptions {
            timeout_ms: Some(100.0),
            ..ExecuteOptions::default()
        };
        let most = 100.0 + sandbox.limits().grace_period_ms;
        let began = Instant::now();
        sandbox.execute_with("sum(range(10**13))", options).await?;
        ok(sandbox, "x[0]").await?;
        late.push(ms(began) - most);
    }
    samples.insert("undo".to_owned(), undone);
    samples.insert("undo, next result".to_owned(), after);
    samples.insert("crash, next result".to_owned(), crashed);
    samples.insert("kill, next result".to_owned(), late);
    Ok(())
}

/// The memory of this process's descendants, with shared pages counted once.
fn megabytes() -> f64 {
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let own = std::process::id();
    let descends = |pid: &u32| {
        std::iter::successors(Some(*pid), |pid| parent(*pid))
            .skip(1)
            .any(|pid| pid == own)
    };
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let kib = pids.filter(descends).filter_map(|pid| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Pss:")?.strip_suffix("kB"))?;
        line.trim().parse::<f64>().ok()
    });
    kib.sum::<f64>() / 1024.0
}
