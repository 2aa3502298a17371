//! One job in full, and why it waits: labelled lines for people.
//!
//! A line whose value is absent is left out. Times are local and name their zone.

use crate::text::visible;
use crate::{signals, wall};
use proto::State;
use proto::api::{Job, JobDetail};
use proto::duration::{Full, show_limit};
use proto::memory;
use proto::reason::Condition;
use std::fmt::Write;

const LABEL_CELLS: usize = 13;

/// The job as labelled lines.
pub fn record(job: &Job) -> String {
    let mut lines = Lines::default();
    lines.add("Job", &job.display_id);
    lines.add("Name", &job.name);
    lines.add("User", &user(job));
    lines.add("Pool", &job.pool);
    lines.add("State", &state(job.state));
    for condition in &job.reasons {
        lines.add("Reason", &condition_line(condition));
    }
    if let Some(array) = &job.array {
        let throttle = array.throttle.map_or(String::new(), |n| format!(", at most {n} at once"));
        lines.add("Array", &format!("{}{throttle}", array.indices));
        lines.add("Not started", &array.pending.to_string());
    }
    lines.add("Exit", &exit(job));
    lines.add("Asks for", &asks(job));
    lines.add("Nodes", &job.nodes.join(","));
    lines.add("GPUs", &job.gpus.join(","));
    lines.add("Priority", &job.priority.to_string());
    if job.attempt > 1 {
        lines.add("Attempt", &job.attempt.to_string());
    }
    lines.add("Submitted", &wall::show(job.submitted_at));
    for (label, at) in [("Begins after", job.begin_at), ("Started", job.started_at), ("Ended", job.ended_at)]
    {
        lines.add(label, &at.map(wall::show).unwrap_or_default());
    }
    lines.add("Ran", &job.run_s.map(|s| Full(s).to_string()).unwrap_or_default());
    lines.add("Time limit", &show_limit(job.time_limit_s));
    lines.add("Comment", job.comment.as_deref().unwrap_or_default());
    if let Some(detail) = &job.detail {
        lines.detail(detail);
    }
    lines.text
}

#[derive(Default)]
struct Lines {
    text: String,
}

impl Lines {
    fn add(&mut self, label: &str, value: &str) {
        if !value.is_empty() {
            let label = format!("{label}:");
            writeln!(self.text, "{label:LABEL_CELLS$} {}", visible(value))
                .expect("a String takes all that is written");
        }
    }

    fn detail(&mut self, detail: &JobDetail) {
        self.add("Directory", &detail.chdir);
        self.add("Arguments", &shell_words::join(&detail.args));
        self.add("Output", &detail.output);
        if detail.error != detail.output {
            self.add("Error", &detail.error);
        }
        if detail.input != "/dev/null" {
            self.add("Input", &detail.input);
        }
        self.add("From", &detail.submit_host);
        self.add("Requeue", if detail.requeue { "yes" } else { "no" });
        if let Some(usage) = &detail.usage {
            let peak =
                usage.mem_peak_bytes.map_or(String::new(), |b| format!(", {} of memory at most", bytes(b)));
            let kills = match usage.oom_kills {
                0 => String::new(),
                1 => ", one process killed for memory".to_owned(),
                n => format!(", {n} processes killed for memory"),
            };
            let seconds = usage.cpu_us as f64 / 1e6;
            self.add("Used", &format!("{seconds:.3} s of CPU{peak}{kills}"));
        }
    }
}

fn state(state: State) -> String {
    match state.sentence() {
        sentence if sentence == state.name() => sentence.to_owned(),
        sentence => format!("{state}: {sentence}"),
    }
}

fn user(job: &Job) -> String {
    let account = job.account.as_ref().map_or(String::new(), |account| format!(", account {account}"));
    let uid = job.detail.as_ref().map_or(String::new(), |detail| format!(" ({})", detail.uid));
    format!("{}{uid}, tenant {}{account}", job.user, job.tenant)
}

fn exit(job: &Job) -> String {
    match (job.exit_code, job.signal) {
        (Some(code), None) => format!("status {code}"),
        (_, Some(signal)) => format!("signal {signal} ({})", signals::name(signal)),
        (None, None) => String::new(),
    }
}

fn asks(job: &Job) -> String {
    let plural = |n: u32| if n == 1 { "" } else { "s" };
    let mut asks = format!("{} CPU{}, {}", job.cpus, plural(job.cpus), memory::show(job.mem_mib));
    if job.disk_mib > 0 {
        write!(asks, ", {} of disk", memory::show(job.disk_mib)).expect("a String takes all");
    }
    if job.gpu_count > 0 {
        let model = job.gpu_type.as_ref().map_or(String::new(), |model| format!(" {model}"));
        write!(asks, ", {}{model} GPU{}", job.gpu_count, plural(job.gpu_count)).expect("a String takes all");
    }
    match job.node_count {
        1 => asks.push_str(" on one node"),
        n => write!(asks, " on each of {n} nodes").expect("a String takes all"),
    }
    asks
}

fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..1_048_576 => format!("{:.1} KiB", count as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", count as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", count as f64 / 1_073_741_824.0),
    }
}

fn condition_line(condition: &Condition) -> String {
    format!("{}: {}", condition.reason, condition.message)
}

/// Why the job waits or how it ended, every failed check with its numbers.
pub fn why(job: &Job) -> String {
    let mut text = format!("job {} ({}) is {}\n", job.display_id, visible(&job.name), job.state);
    if job.reasons.is_empty() {
        writeln!(text, "  {}", job.state.sentence()).expect("a String takes all");
    }
    for condition in &job.reasons {
        writeln!(text, "  {}", visible(&condition_line(condition))).expect("a String takes all");
        for check in &condition.checks {
            let never = if check.total < check.asked { ", so it never fits here" } else { "" };
            let line = format!(
                "{}: {} asked {}, free {}, in all {}{never}",
                check.place, check.resource, check.asked, check.free, check.total
            );
            writeln!(text, "    {}", visible(&line)).expect("a String takes all");
        }
    }
    text
}
