//! Options that people bring from elsewhere and that are not supported: each is refused by name, with what to do.
//!
//! Slurm's are hidden options of the parser, so that their values are understood as such and `--dependency afterok:7 job.sh`
//! is not taken for a script called "afterok:7". LSF's are seen before parsing, since some of their letters mean something
//! else here (`-W 48:00` would be `--wait` and a script called "48:00").

use crate::fail::Fail;
use clap::{Arg, ArgAction, ArgMatches};
use std::ffi::OsString;

/// Whether the option has a value.
#[derive(Clone, Copy, PartialEq)]
enum Value {
    No,
    Maybe,
    Yes,
}
use Value::{Maybe, No, Yes};

struct Foreign {
    long: &'static str,
    short: Option<char>,
    value: Value,
    /// What to do; empty is only "leave it out".
    advice: &'static str,
}

const fn slurm(long: &'static str, short: Option<char>, value: Value, advice: &'static str) -> Foreign {
    Foreign { long, short, value, advice }
}

const PLACE: &str = "nodes are chosen by CPUs, memory and GPUs; use --pool to narrow them";
const STEPS: &str = "the script starts its own processes; leave it out";
const SHARE: &str = "CPUs are never shared between jobs; leave it out";

#[rustfmt::skip]
const SLURM: &[Foreign] = &[
    slurm("acctg-freq", None, Yes, "usage is always recorded; leave it out"),
    slurm("async", None, No, STEPS),
    slurm("batch", None, Yes, PLACE),
    slurm("bb", None, Yes, "there are no burst buffers"),
    slurm("bbf", None, Yes, "there are no burst buffers"),
    slurm("clusters", Some('M'), Yes, "BC_SERVER names another cluster's controller"),
    slurm("cluster-constraint", None, Yes, "BC_SERVER names another cluster's controller"),
    slurm("consolidate-segments", None, No, PLACE),
    slurm("constraint", Some('C'), Yes, PLACE),
    slurm("container", None, Yes, "start the container in the script"),
    slurm("container-id", None, Yes, "start the container in the script"),
    slurm("contiguous", None, No, PLACE),
    slurm("core-spec", Some('S'), Yes, PLACE),
    slurm("cores-per-socket", None, Yes, PLACE),
    slurm("cpu-bind", None, Yes, STEPS),
    slurm("cpu-freq", None, Yes, ""),
    slurm("deadline", None, Yes, "limit the job with --time"),
    slurm("delay-boot", None, Yes, ""),
    slurm("dependency", Some('d'), Yes, "submit the second job when `bsub --wait` of the first has returned"),
    slurm("distribution", Some('m'), Yes, STEPS),
    slurm("exclude", Some('x'), Yes, PLACE),
    slurm("extra", None, Yes, "use --comment"),
    slurm("extra-node-info", Some('B'), Yes, PLACE),
    slurm("get-user-env", None, Maybe, "the caller's environment is taken; start a login shell in the script (#!/bin/bash -l)"),
    slurm("gid", None, Yes, "submit as the user and group that the job is to have"),
    slurm("gpu-bind", None, Yes, STEPS),
    slurm("gpu-freq", None, Yes, ""),
    slurm("gpus-per-socket", None, Yes, "use --gpus-per-node"),
    slurm("gpus-per-task", None, Yes, "use --gpus or --gpus-per-node"),
    slurm("gres-flags", None, Yes, ""),
    slurm("hint", None, Yes, STEPS),
    slurm("ignore-pbs", None, No, "#PBS lines are never read"),
    slurm("immediate", Some('I'), Maybe, "there are no interactive jobs yet; `bsub --wait` waits for a batch job's end"),
    slurm("kill-on-invalid-dep", None, Yes, "dependencies are not supported yet"),
    slurm("licenses", Some('L'), Yes, ""),
    slurm("mcs-label", None, Yes, ""),
    slurm("mem-bind", None, Yes, STEPS),
    slurm("mem-update", None, Yes, ""),
    slurm("mincpus", None, Yes, "use --cpus-per-task"),
    slurm("network", None, Yes, ""),
    slurm("no-kill", Some('k'), Maybe, "a job ends when one of its nodes fails"),
    slurm("nodefile", Some('F'), Yes, PLACE),
    slurm("nodelist", Some('w'), Yes, PLACE),
    slurm("ntasks-per-core", None, Yes, SHARE),
    slurm("ntasks-per-gpu", None, Yes, "use --ntasks and --gpus"),
    slurm("ntasks-per-socket", None, Yes, "use --ntasks-per-node"),
    slurm("oom-kill-step", None, Maybe, ""),
    slurm("overcommit", Some('O'), No, SHARE),
    slurm("oversubscribe", Some('s'), No, SHARE),
    slurm("power", None, Yes, ""),
    slurm("prefer", None, Yes, PLACE),
    slurm("priority", None, Yes, "use --nice to lower it"),
    slurm("profile", None, Yes, "usage is always recorded; leave it out"),
    slurm("reboot", None, No, ""),
    slurm("resources", None, Yes, ""),
    slurm("resv-ports", None, Maybe, ""),
    slurm("runtime", None, Yes, "start the container in the script"),
    slurm("segment", None, Yes, PLACE),
    slurm("sockets-per-node", None, Yes, PLACE),
    slurm("spread-job", None, No, PLACE),
    slurm("spread-segments", None, No, PLACE),
    slurm("stepmgr", None, No, STEPS),
    slurm("switches", None, Yes, PLACE),
    slurm("test-only", None, No, "`bq --why ID` tells what a job waits for"),
    slurm("thread-spec", None, Yes, PLACE),
    slurm("threads-per-core", None, Yes, PLACE),
    slurm("time-min", None, Yes, "use --time"),
    slurm("tres-bind", None, Yes, STEPS),
    slurm("tres-per-task", None, Yes, "use --cpus-per-task and --gpus"),
    slurm("uid", None, Yes, "submit as the user that the job is to have"),
    slurm("use-min-nodes", None, No, PLACE),
    slurm("wait-all-nodes", None, Yes, "a job starts when all of its nodes are ready; leave it out"),
    slurm("wckey", None, Yes, "use --comment"),
    slurm("x11", None, Maybe, ""),
    slurm("kill-command", Some('K'), Maybe, "LSF's -K is --wait here"),
];

/// LSF's options that Slurm does not have. Seen only as whole words before the script.
#[rustfmt::skip]
const LSF: &[(&str, &str)] = &[
    ("-I", "there are no interactive jobs yet; `bsub --wait` waits for a batch job's end"),
    ("-Ip", "there are no interactive jobs yet"),
    ("-Is", "there are no interactive jobs yet"),
    ("-IS", "there are no interactive jobs yet"),
    ("-K", "write --wait"),
    ("-R", "write --mem, --cpus-per-task or --nodes for what it asks"),
    ("-gpu", "write --gpus=N or --gres=gpu:MODEL:N"),
    ("-cwd", "write --chdir=DIR"),
    ("-env", "write --export=LIST"),
    ("-app", "leave it out"),
    ("-sp", "write --nice=N"),
    ("-oo", "write --output=FILE"),
    ("-eo", "write --error=FILE"),
    ("-ti", "leave it out"),
    ("-ar", "write --requeue"),
    ("-r", "write --requeue"),
    ("-P", "write --account=ACCOUNT"),
    ("-u", "no mail is sent yet; leave it out"),
    ("-B", "no mail is sent yet; leave it out"),
    ("-g", "use --comment or --job-name to group jobs"),
    ("-U", "use --reservation NAME"),
    ("-E", "run it at the script's start"),
    ("-Ep", "run it at the script's end"),
    ("-We", "write --time"),
];

/// Adds Slurm's options as hidden ones.
pub fn add(command: clap::Command) -> clap::Command {
    let args = SLURM.iter().map(|foreign| {
        let arg =
            Arg::new(foreign.long).long(foreign.long).hide(true).allow_hyphen_values(foreign.value == Yes);
        let arg = match foreign.short {
            Some(short) => arg.short(short),
            None => arg,
        };
        match foreign.value {
            No => arg.action(ArgAction::SetTrue),
            Yes => arg.action(ArgAction::Set),
            Maybe => {
                arg.action(ArgAction::Set).num_args(0..=1).require_equals(true).default_missing_value("")
            }
        }
    });
    command.args(args)
}

/// Refuses the first of Slurm's options that was given.
pub fn refuse(matches: &ArgMatches) -> Result<(), Fail> {
    let given = |foreign: &&Foreign| {
        matches.value_source(foreign.long) == Some(clap::parser::ValueSource::CommandLine)
    };
    match SLURM.iter().find(given) {
        Some(foreign) => Err(not_supported(foreign)),
        None => Ok(()),
    }
}

/// Refuses an `SBATCH_*` variable that stands for one of them.
pub fn refuse_variable(name: &str) -> Result<(), Fail> {
    let Some(name) = name.strip_prefix("SBATCH_") else { return Ok(()) };
    // The few whose variable is not the option's own name.
    let long = match name {
        "NO_KILL" => "no-kill".to_owned(),
        "REQ_SWITCH" | "WAIT4SWITCH" => "switches".to_owned(),
        "SEGMENT_SIZE" => "segment".to_owned(),
        // They change nothing about a job here, and sites set them for everybody.
        "IGNORE_PBS" | "DEBUG" => return Ok(()),
        _ => name.to_ascii_lowercase().replace('_', "-"),
    };
    match SLURM.iter().find(|foreign| foreign.long == long) {
        Some(foreign) => Err(not_supported(foreign).at(format!("SBATCH_{name}"))),
        None => Ok(()),
    }
}

fn not_supported(foreign: &Foreign) -> Fail {
    let fail = Fail::usage(format!("--{} is not supported yet", foreign.long));
    match foreign.advice {
        "" => fail.hint("leave it out"),
        advice => fail.hint(advice),
    }
}

/// Refuses LSF's options where the arguments could be parsed: `script` words at the end are the script and its arguments.
pub fn refuse_lsf(args: &[OsString], script: usize) -> Result<(), Fail> {
    let (options, script) = args.split_at(args.len() - script);
    if let (Some("-W"), Some(next)) =
        (options.last().and_then(|a| a.to_str()), script.first().and_then(|a| a.to_str()))
        && is_run_limit(next)
    {
        let ours = super::lsf::run_limit(next).unwrap_or_else(|| "TIME".to_owned());
        return Err(Fail::usage(format!(
            "-W {next} is LSF's run limit; here -W is --wait and takes no time"
        ))
        .hint(format!("write --time={ours}")));
    }
    match options.iter().skip(1).find_map(|word| lsf_option(word.to_str()?)) {
        Some(fail) => Err(fail),
        None => Ok(()),
    }
}

/// Where the arguments could not be parsed: the refusal of an LSF option among them, if there is one, says more.
pub fn explain(args: &[OsString], fail: Fail) -> Fail {
    args.iter().skip(1).find_map(|word| lsf_option(word.to_str()?)).unwrap_or(fail)
}

fn lsf_option(word: &str) -> Option<Fail> {
    let (_, advice) = LSF.iter().find(|(name, _)| *name == word)?;
    Some(Fail::usage(format!("{word} is an option of LSF's bsub, which this is not")).hint(*advice))
}

/// `48:00`, `4320`, `0:30/host`: what LSF's `-W` takes, and no file is called.
fn is_run_limit(word: &str) -> bool {
    let time = word.split('/').next().unwrap_or_default();
    !time.is_empty() && time.bytes().all(|b| b.is_ascii_digit() || b == b':') && time.as_bytes()[0] != b':'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bsub::args;

    fn parse(line: &str) -> Result<(), Fail> {
        let argv: Vec<OsString> = line.split(' ').map(Into::into).collect();
        crate::bsub::parse_command_line(argv).map(|_| ())
    }

    fn refusal(line: &str) -> String {
        let error = parse(line).expect_err(line).error;
        format!("{}\nhint: {}", error.message, error.hint.unwrap())
    }

    #[test]
    fn every_option_of_slurm_that_is_not_ours_is_refused_by_its_name() {
        for foreign in SLURM {
            let line = match foreign.value {
                Yes => format!("bsub --{} value job.sh", foreign.long),
                _ => format!("bsub --{} job.sh", foreign.long),
            };
            let refusal = refusal(&line);
            assert!(refusal.starts_with(&format!("--{} is not supported yet", foreign.long)), "{refusal}");
        }
    }

    #[test]
    fn nothing_that_is_ours_is_called_foreign() {
        let ours = args::command();
        for foreign in SLURM {
            let clash = |arg: &clap::Arg| {
                arg.get_long() == Some(foreign.long)
                    || (arg.get_short().is_some() && arg.get_short() == foreign.short)
            };
            assert!(!ours.get_arguments().any(clash), "--{}", foreign.long);
        }
        args::parser().debug_assert();
    }

    #[test]
    fn people_who_know_another_bsub_are_told() {
        insta::assert_snapshot!(refusal("bsub -W 48:00 sleep 5"), @r"
        -W 48:00 is LSF's run limit; here -W is --wait and takes no time
        hint: write --time=2-00:00:00
        ");
        insta::assert_snapshot!(refusal("bsub -W 4320 ./x"), @r"
        -W 4320 is LSF's run limit; here -W is --wait and takes no time
        hint: write --time=3-00:00:00
        ");
        for line in [
            "bsub -I bash",
            "bsub -K ./x",
            "bsub -n 4 -gpu num=1 ./x",
            "bsub -R span[hosts=1] ./x",
            "bsub -Is bash",
        ] {
            assert!(refusal(line).contains("is an option of LSF's bsub"), "{line}");
        }
    }

    #[test]
    fn a_scripts_own_arguments_are_its_own() {
        for line in [
            "bsub job.sh -W 48:00",
            "bsub --hold job.sh -R x -gpu y",
            "bsub -n 4 job.sh -K",
            "bsub -W job.sh",
            "bsub -W ./48",
            "bsub -- -R",
        ] {
            assert_eq!(parse(line), Ok(()), "{line}");
        }
    }
}
