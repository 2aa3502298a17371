//! `#BSUB` and `#PBS` lines: never obeyed, always answered with what to write instead.
//!
//! The letters of LSF and PBS differ from ours just enough to be dangerous (`-W 48:00` is two days there), so nothing is guessed
//! at submission: this module only words the answer.

use super::directives::words;

/// What to write instead of a `#BSUB` line, as one or more `#BATCH` options; a remark where there is nothing to write.
pub fn instead_of_bsub(line: &str) -> String {
    let Ok(words) = words(line) else { return "its quotes do not close".to_owned() };
    let mut ours = Vec::new();
    let mut words = words.iter().map(String::as_str);
    while let Some(option) = words.next() {
        let takes_none = matches!(option, "-K" | "-x" | "-r" | "-H" | "-B" | "-N" | "-I" | "-Is" | "-Ip");
        let value = if takes_none { "" } else { words.next().unwrap_or_default() };
        ours.push(bsub_option(option, value));
    }
    ours.join(" ")
}

fn bsub_option(option: &str, value: &str) -> String {
    match option {
        "-J" => job_name(value),
        "-q" => format!("--pool={value}"),
        "-n" => format!("--ntasks={value}"),
        "-W" => format!("--time={}", run_limit(value).unwrap_or_else(|| "TIME".to_owned())),
        "-M" => format!("--mem=SIZE (LSF's unit of {value} is the site's: write it with M or G)"),
        "-R" => resources(value),
        "-gpu" => format!("--gpus={}", part_of(value, "num=").unwrap_or("1")),
        "-o" | "-oo" => format!("--output={}", file(value)),
        "-e" | "-eo" => format!("--error={}", file(value)),
        "-i" | "-is" => format!("--input={}", file(value)),
        "-P" | "-G" => format!("--account={value}"),
        "-cwd" => format!("--chdir={value}"),
        "-env" => "--export=LIST".to_owned(),
        "-b" => format!("--begin={value}"),
        "-x" => "--exclusive".to_owned(),
        "-r" => "--requeue".to_owned(),
        "-H" => "--hold".to_owned(),
        "-K" => "--wait".to_owned(),
        "-m" => format!("(nothing: nodes such as {value:?} cannot be named yet)"),
        "-w" => format!("(nothing: dependencies such as {value:?} are not supported yet)"),
        "-u" | "-B" | "-N" => format!("(nothing: no mail is sent yet, so no {option})"),
        other => format!("(nothing for {})", format!("{other} {value}").trim_end()),
    }
}

/// LSF's run limit, `[HOURS:]MINUTES[/HOST]`, in our form.
pub fn run_limit(value: &str) -> Option<String> {
    let time = value.split('/').next()?;
    let (hours, minutes) = time.split_once(':').unwrap_or(("0", time));
    let seconds =
        hours.parse::<u64>().ok()?.checked_mul(60)?.checked_add(minutes.parse().ok()?)?.checked_mul(60)?;
    Some(proto::duration::Full(seconds).to_string())
}

/// `name[1-4]%2` is a name and an array in LSF.
fn job_name(value: &str) -> String {
    match value.split_once('[') {
        None => format!("--job-name={value}"),
        Some((name, rest)) => {
            let name = if name.is_empty() { String::new() } else { format!("--job-name={name} ") };
            format!("{name}--array={}", rest.replace(']', ""))
        }
    }
}

fn resources(value: &str) -> String {
    let mut ours = Vec::new();
    if value.contains("span[hosts=1]") {
        ours.push("--nodes=1".to_owned());
    }
    if let Some(tasks) = part_of(value, "ptile=") {
        ours.push(format!("--ntasks-per-node={tasks}"));
    }
    if let Some(mem) = part_of(value, "mem=") {
        ours.push(format!("--mem={mem} (on each node; LSF's may be for each task)"));
    }
    if ours.is_empty() { format!("(nothing for -R {value:?})") } else { ours.join(" ") }
}

fn part_of<'a>(value: &'a str, key: &str) -> Option<&'a str> {
    let rest = &value[value.find(key)? + key.len()..];
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len());
    Some(&rest[..end])
}

fn file(pattern: &str) -> String {
    if pattern.contains("%I") { pattern.replace("%J", "%A").replace("%I", "%a") } else { pattern.to_owned() }
}

/// What to write instead of a `#PBS` line.
pub fn instead_of_pbs(line: &str) -> String {
    let Ok(words) = words(line) else { return "its quotes do not close".to_owned() };
    let (option, value) = match words.as_slice() {
        [] => return "nothing".to_owned(),
        [option] => (option.as_str(), ""),
        [option, value, ..] => (option.as_str(), value.as_str()),
    };
    match option {
        "-N" => format!("--job-name={value}"),
        "-q" => format!("--pool={value}"),
        "-A" | "-P" => format!("--account={value}"),
        "-o" => format!("--output={value}"),
        "-e" => format!("--error={value}"),
        "-d" => format!("--chdir={value}"),
        "-J" | "-t" => format!("--array={value}"),
        "-V" => "--export=ALL".to_owned(),
        "-v" => format!("--export=ALL,{value}"),
        "-h" => "--hold".to_owned(),
        "-a" => "--begin=TIME".to_owned(),
        "-r" => if value == "n" { "--no-requeue" } else { "--requeue" }.to_owned(),
        "-j" => "(nothing: the error file joins the output by itself)".to_owned(),
        "-m" | "-M" => "(nothing: no mail is sent yet)".to_owned(),
        "-W" => "(nothing: dependencies are not supported yet)".to_owned(),
        "-l" => match value.split_once('=') {
            Some(("walltime", time)) => format!("--time={time}"),
            Some(("mem" | "pmem" | "vmem", size)) => format!("--mem={size}"),
            _ => "--nodes, --ntasks, --cpus-per-task, --mem, --gpus and --time for what it asks".to_owned(),
        },
        other => format!("(nothing for {other})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lsfs_lines_are_answered_with_ours() {
        for (theirs, ours) in [
            ("-J \"a[1-4]%2\"", "--job-name=a --array=1-4%2"),
            ("-q short -n 4", "--pool=short --ntasks=4"),
            (
                "-R \"span[hosts=1] rusage[mem=8GB]\"",
                "--nodes=1 --mem=8GB (on each node; LSF's may be for each task)",
            ),
            ("-W 00:30", "--time=00:30:00"),
            ("-W 48:00", "--time=2-00:00:00"),
            ("-W 4320", "--time=3-00:00:00"),
            ("-gpu \"num=1:mode=exclusive_process\"", "--gpus=1"),
            ("-o out/x_%J_%I.out", "--output=out/x_%A_%a.out"),
            ("-o x.%J", "--output=x.%J"),
            ("-w \"done(123)\"", "(nothing: dependencies such as \"done(123)\" are not supported yet)"),
            ("-Z 9", "(nothing for -Z 9)"),
            ("-J \"unclosed", "its quotes do not close"),
        ] {
            assert_eq!(instead_of_bsub(theirs), ours, "{theirs}");
        }
        assert_eq!(instead_of_pbs("-l walltime=10:00:00"), "--time=10:00:00");
        assert_eq!(instead_of_pbs("-N x"), "--job-name=x");
    }
}
