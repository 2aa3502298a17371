//! Which option counts: command line over environment over `#BATCH` over `#SBATCH`.
//!
//! Within one layer a later option replaces an earlier one of the same name. Between layers a whole family gives way: `--mem` on
//! the command line also replaces `--mem-per-cpu` of the script, since both say the same thing. The list of fields is checked
//! by the compiler, so a new option cannot be forgotten here.

use super::args::Options;
use super::directives::{Kind, Line, words};
use crate::fail::Fail;
use clap::{Args, Command, FromArgMatches};

/// A field that may or may not have been given.
trait Given {
    fn given(&self) -> bool;
}

impl<T> Given for Option<T> {
    fn given(&self) -> bool {
        self.is_some()
    }
}

impl Given for bool {
    fn given(&self) -> bool {
        *self
    }
}

impl Given for u8 {
    fn given(&self) -> bool {
        *self > 0
    }
}

macro_rules! fields {
    ($($field:ident)*) => {
        /// Puts the later options of the same layer over the earlier ones.
        fn join(earlier: Options, later: Options) -> Options {
            let Options { $($field,)* mut export } = later;
            let export = { let mut all = earlier.export; all.append(&mut export); all };
            Options { $($field: if Given::given(&$field) { $field } else { earlier.$field },)* export }
        }

        /// The options that both give, with different values.
        fn conflicts(one: &Options, other: &Options) -> Vec<String> {
            let mut names = Vec::new();
            $(if Given::given(&one.$field) && Given::given(&other.$field) && one.$field != other.$field {
                names.push(concat!("--", stringify!($field)).replace('_', "-"));
            })*
            if !one.export.is_empty() && !other.export.is_empty() && one.export != other.export {
                names.push("--export".to_owned());
            }
            names
        }
    };
}

fields! {
    job_name pool account qos array comment nice cpus_per_task ntasks ntasks_per_node nodes mem mem_per_cpu mem_per_gpu tmp
    cpus_per_gpu gpus gpus_per_node gres exclusive time begin reservation hold signal requeue no_requeue output error input open_mode
    chdir export_file propagate wait parsable quiet verbose mail_type mail_user
}

/// Puts a stronger layer over a weaker one.
pub fn over(mut weaker: Options, stronger: Options) -> Options {
    let s = &stronger;
    if s.mem.is_some() || s.mem_per_cpu.is_some() || s.mem_per_gpu.is_some() {
        (weaker.mem, weaker.mem_per_cpu, weaker.mem_per_gpu) = (None, None, None);
    }
    if s.gpus.is_some() || s.gpus_per_node.is_some() || s.gres.is_some() {
        (weaker.gpus, weaker.gpus_per_node, weaker.gres) = (None, None, None);
    }
    if s.cpus_per_task.is_some() || s.cpus_per_gpu.is_some() {
        (weaker.cpus_per_task, weaker.cpus_per_gpu) = (None, None);
    }
    if s.requeue || s.no_requeue {
        (weaker.requeue, weaker.no_requeue) = (false, false);
    }
    if !s.export.is_empty() || s.export_file.is_some() {
        (weaker.export, weaker.export_file) = (Vec::new(), None);
    }
    join(weaker, stronger)
}

/// What a script's directives say.
#[derive(Debug, Default)]
pub struct Directives {
    /// Their options, ours over Slurm's.
    pub options: Options,
    /// What to say about them.
    pub warnings: Vec<String>,
}

/// Reads a script's directives; each error names the line.
pub fn directives(lines: &[Line<'_>], script: &str) -> Result<Directives, Fail> {
    let mut directives = Directives::default();
    if lines.is_empty() {
        return Ok(directives);
    }
    let mut parser = line_parser();
    let (mut batch, mut sbatch) = (Options::default(), Options::default());
    for line in lines {
        let layer = match line.kind {
            Kind::Batch => &mut batch,
            Kind::Sbatch => &mut sbatch,
            Kind::Bsub | Kind::Pbs => continue,
        };
        let options =
            parse_line(&mut parser, line).map_err(|e| e.at(format!("{script}: line {}", line.number)))?;
        *layer = join(std::mem::take(layer), options);
    }
    for name in conflicts(&batch, &sbatch) {
        directives
            .warnings
            .push(format!("{script}: {name} differs in #BATCH and #SBATCH lines: #BATCH counts"));
    }
    directives.options = over(sbatch, batch);
    Ok(directives)
}

/// A parser of options alone: no program name, no script, no help.
pub fn line_parser() -> Command {
    let command = Command::new("bsub").no_binary_name(true).disable_help_flag(true).args_override_self(true);
    super::foreign::add(Options::augment_args(command))
}

fn parse_line(parser: &mut Command, line: &Line<'_>) -> Result<Options, Fail> {
    let words =
        words(line.text).map_err(|e| Fail::usage(format!("{}{}: {e}", line.kind.prefix(), line.text)))?;
    for word in &words {
        let long = word.split('=').next().unwrap_or_default();
        if ["--wrap", "--json", "--idempotency-key", "--help", "--version"].contains(&long) {
            return Err(
                Fail::usage(format!("{long} is for the command line only")).hint("take it out of the script")
            );
        }
    }
    parse_words(parser, words).map_err(|mut fail| {
        // "see `bsub --help`" is of no use where a script's author has the line before the eyes.
        let only_help = fail.error.hint.as_deref() == Some("see `bsub --help`");
        if only_help && !words_hold_option(line.text) {
            fail.error.hint =
                Some(format!("an option begins with - or --, such as {} --time=10", line.kind.prefix()));
        }
        fail
    })
}

fn words_hold_option(text: &str) -> bool {
    text.trim_start().starts_with('-')
}

/// Reads options from words.
pub fn parse_words(parser: &mut Command, words: Vec<String>) -> Result<Options, Fail> {
    let matches = parser.try_get_matches_from_mut(words).map_err(|e| crate::frame::usage("bsub", &e))?;
    super::foreign::refuse(&matches)?;
    Options::from_arg_matches(&matches).map_err(|e| crate::frame::usage("bsub", &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bsub::directives::find;
    use proto::duration::Limit;
    use proto::memory::Memory;

    fn read(script: &str) -> Result<Directives, Fail> {
        directives(&find(script).block, "job.sh")
    }

    fn options(words: &str) -> Options {
        parse_words(&mut line_parser(), words.split_whitespace().map(str::to_owned).collect()).unwrap()
    }

    #[test]
    fn several_options_a_line_and_both_prefixes_are_read() {
        let read =
            read("#!/bin/sh\n#SBATCH -J x --time=4:00\n#BATCH --mem 1G\n#SBATCH -c2 -n 3\ntrue\n").unwrap();
        let options = read.options;
        assert_eq!((options.job_name.as_deref(), options.time), (Some("x"), Some(Limit::Seconds(240))));
        assert_eq!(
            (options.mem, options.cpus_per_task, options.ntasks),
            (Some(Memory::Mib(1024)), Some(2), Some(3))
        );
        assert_eq!(read.warnings, Vec::<String>::new());
    }

    #[test]
    fn ours_wins_over_slurms_with_a_warning() {
        let read =
            read("#!/bin/sh\n#BATCH --time=10\n#SBATCH --time=20 --mem=1G\n#BATCH --mem=1G\n").unwrap();
        assert_eq!(read.options.time, Some(Limit::Seconds(600)));
        assert_eq!(read.warnings, ["job.sh: --time differs in #BATCH and #SBATCH lines: #BATCH counts"]);
    }

    #[test]
    fn an_error_names_the_line() {
        for (line, message) in [
            ("#SBATCH --time=xyz", "job.sh: line 2: --time: \"xyz\" is not a time limit"),
            ("#SBATCH --dependency=afterok:7", "job.sh: line 2: --dependency is not supported yet"),
            ("#BATCH --wrap=x", "job.sh: line 2: --wrap is for the command line only"),
            ("#BATCH --nonesuch", "job.sh: line 2: unknown option or argument \"--nonesuch\""),
            ("#BATCH word", "job.sh: line 2: unknown option or argument \"word\""),
            ("#BATCH 'a", "job.sh: line 2: #BATCH 'a: a quote (') is not closed"),
        ] {
            let fail = read(&format!("#!/bin/sh\n{line}\n")).expect_err(line);
            assert!(fail.error.message.starts_with(message), "{fail}");
            assert_eq!(fail.exit_code(), 2);
        }
    }

    #[test]
    fn a_stronger_layer_replaces_the_whole_family() {
        let weak = options("--mem-per-cpu=2G --gres=gpu:2 --cpus-per-gpu=4 --requeue --export=A=1 --time=5");
        let strong = options("--mem=1G --gpus=1 --cpus-per-task=3 --no-requeue --export=B=2");
        let both = over(weak.clone(), strong);
        assert_eq!((both.mem, both.mem_per_cpu), (Some(Memory::Mib(1024)), None));
        assert_eq!((both.gpus.map(|g| g.count), both.gres), (Some(1), None));
        assert_eq!((both.cpus_per_task, both.cpus_per_gpu), (Some(3), None));
        assert_eq!((both.requeue, both.no_requeue, both.export), (false, true, vec!["B=2".to_owned()]));
        assert_eq!(both.time, Some(Limit::Seconds(300)));
        assert_eq!(over(weak.clone(), Options::default()), weak);
    }

    #[test]
    fn the_last_of_a_repeated_option_counts_and_exports_add_up() {
        let read =
            read("#!/bin/sh\n#BATCH --time=1 --time=2 --export=A=1\n#BATCH --time=3 --export=B=2\n").unwrap();
        assert_eq!(read.options.time, Some(Limit::Seconds(180)));
        assert_eq!(read.options.export, ["A=1", "B=2"]);
    }
}
