//! Options from the environment: `BSUB_TIME` for `--time`, and Slurm's names (`SBATCH_TIMELIMIT`) behind ours.
//!
//! Only the job's options come from here, never those of the output: a personal setting must not change what a script parses.
//! An empty variable counts as not set. A `SBATCH_*` variable of something unsupported is refused like its option.

use super::args::Options;
use super::layers::{line_parser, over, parse_words};
use crate::fail::Fail;

/// Long option, Slurm's variable, whether it is a flag.
#[rustfmt::skip]
const OPTIONS: &[(&str, &str, bool)] = &[
    ("job-name", "SBATCH_JOB_NAME", false),
    ("pool", "SBATCH_PARTITION", false),
    ("account", "SBATCH_ACCOUNT", false),
    ("qos", "SBATCH_QOS", false),
    ("array", "SBATCH_ARRAY_INX", false),
    ("comment", "SBATCH_COMMENT", false),
    ("nice", "", false),
    ("cpus-per-task", "SBATCH_CPUS_PER_TASK", false),
    ("ntasks", "SBATCH_NTASKS", false),
    ("ntasks-per-node", "SBATCH_NTASKS_PER_NODE", false),
    ("nodes", "SBATCH_NODES", false),
    ("mem", "SBATCH_MEM_PER_NODE", false),
    ("mem-per-cpu", "SBATCH_MEM_PER_CPU", false),
    ("mem-per-gpu", "SBATCH_MEM_PER_GPU", false),
    ("tmp", "", false),
    ("cpus-per-gpu", "SBATCH_CPUS_PER_GPU", false),
    ("gpus", "SBATCH_GPUS", false),
    ("gpus-per-node", "SBATCH_GPUS_PER_NODE", false),
    ("gres", "SBATCH_GRES", false),
    ("exclusive", "SBATCH_EXCLUSIVE", true),
    ("time", "SBATCH_TIMELIMIT", false),
    ("begin", "SBATCH_BEGIN", false),
    ("reservation", "SBATCH_RESERVATION", false),
    ("hold", "", true),
    ("signal", "SBATCH_SIGNAL", false),
    ("requeue", "SBATCH_REQUEUE", true),
    ("no-requeue", "SBATCH_NO_REQUEUE", true),
    ("output", "SBATCH_OUTPUT", false),
    ("error", "SBATCH_ERROR", false),
    ("input", "SBATCH_INPUT", false),
    ("open-mode", "SBATCH_OPEN_MODE", false),
    ("chdir", "SBATCH_CHDIR", false),
    ("export", "SBATCH_EXPORT", false),
    ("export-file", "", false),
    ("propagate", "SBATCH_PROPAGATE", false),
    ("wait", "SBATCH_WAIT", true),
    ("mail-type", "", false),
    ("mail-user", "", false),
];

/// The options that these variables give. An error names the variable.
pub fn read(variables: impl Iterator<Item = (String, String)>) -> Result<Options, Fail> {
    let (mut ours, mut slurms) = (Options::default(), Options::default());
    let mut parser = None;
    for (name, value) in variables {
        if value.is_empty() || !(name.starts_with("BSUB_") || name.starts_with("SBATCH_")) {
            continue;
        }
        let own = name.strip_prefix("BSUB_").map(|rest| rest.to_ascii_lowercase().replace('_', "-"));
        let option = OPTIONS.iter().find(|(long, slurm, _)| *slurm == name || own.as_deref() == Some(long));
        let Some((long, _, flag)) = option else {
            super::foreign::refuse_variable(&name)?;
            continue;
        };
        let no = ["0", "no", "false"].iter().any(|no| no.eq_ignore_ascii_case(&value));
        let word = match (flag, *long) {
            (true, _) if no => continue,
            (true, "exclusive") if !matches!(value.as_str(), "1" | "yes" | "true") => {
                format!("--exclusive={value}")
            }
            (true, long) => format!("--{long}"),
            (false, long) => format!("--{long}={value}"),
        };
        let parser = parser.get_or_insert_with(line_parser);
        let options = parse_words(parser, vec![word]).map_err(|fail| fail.at(&name))?;
        let layer = if own.is_some() { &mut ours } else { &mut slurms };
        *layer = over(std::mem::take(layer), options);
    }
    Ok(over(slurms, ours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::duration::Limit;

    fn of(variables: &[(&str, &str)]) -> Result<Options, Fail> {
        read(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn our_variable_wins_over_slurms() {
        let options = of(&[
            ("SBATCH_TIMELIMIT", "5"),
            ("BSUB_TIME", "10"),
            ("SBATCH_PARTITION", "p"),
            ("BSUB_HOLD", "1"),
        ]);
        let options = options.unwrap();
        assert_eq!(
            (options.time, options.pool.as_deref(), options.hold),
            (Some(Limit::Seconds(600)), Some("p"), true)
        );
    }

    #[test]
    fn empty_and_negative_variables_count_as_not_set() {
        let options = of(&[
            ("BSUB_TIME", ""),
            ("BSUB_HOLD", "0"),
            ("SBATCH_WAIT", "no"),
            ("BSUB_UNKNOWN", "x"),
            ("PATH", "/"),
        ]);
        assert_eq!(options.unwrap(), Options::default());
    }

    #[test]
    fn output_options_never_come_from_the_environment() {
        let options = of(&[
            ("BSUB_JSON", "1"),
            ("BSUB_PARSABLE", "1"),
            ("BSUB_QUIET", "1"),
            ("BSUB_IDEMPOTENCY_KEY", "k"),
        ]);
        assert_eq!(options.unwrap(), Options::default());
    }

    #[test]
    fn an_error_names_the_variable() {
        for (name, value, want) in [
            ("BSUB_TIME", "xyz", "BSUB_TIME: --time: \"xyz\" is not a time limit"),
            ("SBATCH_CONSTRAINT", "fast", "SBATCH_CONSTRAINT: --constraint is not supported yet"),
            ("SBATCH_REQ_SWITCH", "1", "SBATCH_REQ_SWITCH: --switches is not supported yet"),
            ("SBATCH_EXCLUSIVE", "user", "SBATCH_EXCLUSIVE: --exclusive: \"user\" is not supported yet"),
        ] {
            let fail = of(&[(name, value)]).expect_err(name);
            assert!(fail.error.message.starts_with(want), "{fail}");
        }
    }

    #[test]
    fn every_option_in_the_list_is_one_of_the_parsers() {
        let parser = line_parser();
        for (long, _, _) in OPTIONS {
            assert!(parser.get_arguments().any(|arg| arg.get_long() == Some(long)), "--{long}");
        }
    }
}
