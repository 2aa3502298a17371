//! How fast: run by hand, with a release build, on an idle machine:
//! `cargo nextest run -p noded --release --run-ignored only --no-capture launches`.

use crate::site::Site;
use std::time::Instant;

#[tokio::test]
#[ignore = "a measurement, not a check"]
async fn launches_per_second_and_latency() {
    let mut site = Site::prepare();
    site.config.push("log = \"warn\"".to_owned());
    site.config.retain(|line| !line.starts_with("log"));
    site.start().await;
    site.script("true").await;
    for (count, width) in [(1000, 1000), (3000, 64), (1000, 4)] {
        let jobs: Vec<_> = (0..count)
            .map(|_| {
                let mut job = site.job("true");
                job.output = Some("/dev/null".to_owned());
                job.mem_mib = 64;
                job
            })
            .collect();
        let last = jobs.last().unwrap().allocation_id;
        let cpu_before = cpu_us(&site);
        let before = Instant::now();
        let mut sent = 0;
        let mut queue = jobs.into_iter();
        while sent < count {
            let done = site.ctld.book(|b| b.ended.len()) as i64;
            let running = sent as i64 - (done - (last - count as i64));
            let room = (width as i64 - running).max(0) as usize;
            if room > 0 {
                let some: Vec<_> = queue.by_ref().take(room).collect();
                sent += some.len();
                site.ctld.run(some);
            }
            site.ctld.until("another ends", |b| (b.ended.len() as i64 > done).then_some(())).await;
        }
        site.ctld.until("all end", |b| (b.ended.len() as i64 >= last).then_some(())).await;
        let took = before.elapsed().as_secs_f64();
        let cpu = cpu_us(&site);
        let each = |from: usize| (cpu[from] - cpu_before[from]) / count as u64;
        let jobs: u64 =
            site.ctld.book(|b| b.ended.values().rev().take(count).map(|all| all[0].usage.cpu_us).sum());
        println!(
            "{{\"bench\":\"launches\",\"jobs\":{count},\"at_once\":{width},\"per_s\":{:.0},\
             \"cpu_us_per_job\":{{\"noded\":{},\"launcher_and_shepherd\":{},\"script\":{}}}}}",
            count as f64 / took,
            each(0),
            each(1),
            jobs / count as u64
        );
    }
    let mut first = Vec::new();
    for _ in 0..50 {
        let job = site.job("true");
        let id = job.allocation_id;
        let before = Instant::now();
        site.ctld.run(vec![job]);
        site.ctld.started(id).await;
        let started = before.elapsed().as_secs_f64() * 1e3;
        site.ctld.ended(id).await;
        first.push((started, before.elapsed().as_secs_f64() * 1e3));
    }
    first.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut ends: Vec<f64> = first.iter().map(|f| f.1).collect();
    ends.sort_by(f64::total_cmp);
    println!(
        "{{\"bench\":\"latency_ms\",\"started_p50\":{:.2},\"started_p95\":{:.2},\"ended_p50\":{:.2},\"ended_p95\":{:.2}}}",
        first[25].0, first[47].0, ends[25], ends[47]
    );
}

/// CPU time of noded, and of its launcher and shepherds, in microseconds.
fn cpu_us(site: &Site) -> [u64; 2] {
    let number = |text: &str| text.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", site.noded_pid())).unwrap().flatten();
    let noded: u64 = tasks
        .map(|task| number(&std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default()))
        .sum();
    let layout = site.layout();
    let unified = layout.trees.iter().find(|tree| tree.unified).expect("a unified hierarchy");
    let stat = std::fs::read_to_string(unified.mount.join(&layout.base).join("shepherds/cpu.stat")).unwrap();
    [noded / 1000, number(stat.strip_prefix("usage_usec ").unwrap_or_default())]
}
