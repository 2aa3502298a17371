//! How much of the machine others used during a measurement.
//!
//! Ours is what the benchmark's own control group counted (itself, the commands, daemons and database that it starts) and the
//! cluster's (shepherds and jobs); the rest of what the processors did is foreign. Only where cgroup v1 counts processor time;
//! elsewhere the share is not known, and `null`.

use std::path::PathBuf;

const CPUACCT: &str = "/sys/fs/cgroup/cpuacct";
const OWN: &str = "bct-bench";
const CPU: &str = "/sys/fs/cgroup/cpu";

pub struct Foreign {
    own: Option<PathBuf>,
    clusters: Vec<PathBuf>,
    last: Option<(f64, f64, f64)>,
}

impl Foreign {
    pub fn new() -> Foreign {
        let own = PathBuf::from(CPUACCT).join(OWN);
        let entered = std::fs::create_dir_all(&own)
            .and_then(|()| std::fs::write(own.join("cgroup.procs"), std::process::id().to_string()));
        let mut foreign = Foreign { own: entered.is_ok().then_some(own), clusters: Vec::new(), last: None };
        foreign.last = foreign.look();
        foreign
    }

    /// Counts this cluster's groups as ours. Where the benchmark was given a larger share of a machine that others use too, what
    /// the node daemons put into groups of their own gets the same, or it would wait for the others.
    pub fn cluster(&mut self, base: &str) {
        let given = own_cpu_group().and_then(|group| std::fs::read_to_string(group.join("cpu.shares")).ok());
        let theirs = PathBuf::from(CPU).join(base).join("cpu.shares");
        if let Some(given) = given.filter(|_| theirs.exists())
            && let Err(error) = std::fs::write(&theirs, given.trim())
        {
            eprintln!("bench: cannot write {}: {error}", theirs.display());
        }
        self.clusters = vec![PathBuf::from(CPUACCT).join(base)];
        self.last = self.look();
    }

    /// The share since the last time.
    pub fn share(&mut self) -> Option<f64> {
        let now = self.look()?;
        let last = self.last.replace(now)?;
        let all = now.0 - last.0;
        let foreign = (now.1 - last.1) - (now.2 - last.2);
        (all > 0.0).then(|| (foreign / all).clamp(0.0, 1.0)).map(|share| (share * 1000.0).round() / 1000.0)
    }

    /// Seconds of processor time: in all, busy, ours.
    fn look(&self) -> Option<(f64, f64, f64)> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let ticks: Vec<f64> =
            stat.lines().next()?.split_whitespace().skip(1).filter_map(|t| t.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal; guest time is in user already.
        let all: f64 = ticks.iter().take(8).sum::<f64>() / 100.0;
        let idle = (ticks.get(3)? + ticks.get(4)?) / 100.0;
        let usage = |group: &PathBuf| {
            let text = std::fs::read_to_string(group.join("cpuacct.usage")).ok()?;
            text.trim().parse::<f64>().ok().map(|ns| ns / 1e9)
        };
        let own = usage(self.own.as_ref()?)?;
        Some((all, all - idle, own + self.clusters.iter().filter_map(usage).sum::<f64>()))
    }
}

impl Drop for Foreign {
    /// A group that this process is still in cannot be removed.
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            let left =
                std::fs::write(PathBuf::from(CPUACCT).join("cgroup.procs"), std::process::id().to_string());
            if let Err(error) = left.and_then(|()| std::fs::remove_dir(own)) {
                eprintln!("bench: cannot remove {}: {error}", own.display());
            }
        }
    }
}

/// The group whose share of the processors this process has.
fn own_cpu_group() -> Option<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|controller| controller == "cpu").then_some(path)
    })?;
    let group = PathBuf::from(CPU).join(path.trim_start_matches('/'));
    group.join("cpu.shares").exists().then_some(group)
}
