use super::*;

#[test]
fn directives_after_the_first_command_are_named() {
    let script = "#!/bin/bash\nset -euo pipefail\n#SBATCH --time=4:00:00\n#SBATCH --mem=64G\ntrue\n";
    insta::assert_snapshot!(late(&directives::find(script), "late.sh").unwrap(), @"late.sh: lines 3, 4 not read: #SBATCH lines count only before the first command");
    assert_eq!(late(&directives::find("#!/bin/sh\n#BATCH --mem=1G\ntrue\n"), "x"), None);
}

#[test]
fn another_schedulers_script_is_answered_line_by_line() {
    let script = "#!/bin/sh\n#BSUB -J \"a[1-4]%2\"\n#BSUB -q short\n#BSUB -n 4\n\
                  #BSUB -R \"span[hosts=1] rusage[mem=8GB]\"\n#BSUB -W 00:30\n#BSUB -M 1000\n\
                  #BSUB -gpu \"num=1:mode=exclusive_process\"\n#BSUB -o out/x_%J_%I.out\n#BSUB -w \"done(123)\"\nhostname\n";
    let fail = foreign_lines(&directives::find(script), "lsf.sh").unwrap_err();
    assert_eq!(fail.exit_code(), 2);
    insta::assert_snapshot!(fail.error.message, @r#"
    lsf.sh: #BSUB lines are another scheduler's and are not read here; write instead
      line 2: #BSUB -J "a[1-4]%2" -> #BATCH --job-name=a --array=1-4%2
      line 3: #BSUB -q short -> #BATCH --pool=short
      line 4: #BSUB -n 4 -> #BATCH --ntasks=4
      line 5: #BSUB -R "span[hosts=1] rusage[mem=8GB]" -> #BATCH --nodes=1 --mem=8GB (on each node; LSF's may be for each task)
      line 6: #BSUB -W 00:30 -> #BATCH --time=00:30:00
      line 7: #BSUB -M 1000 -> #BATCH --mem=SIZE (LSF's unit of 1000 is the site's: write it with M or G)
      line 8: #BSUB -gpu "num=1:mode=exclusive_process" -> #BATCH --gpus=1
      line 9: #BSUB -o out/x_%J_%I.out -> #BATCH --output=out/x_%A_%a.out
      line 10: #BSUB -w "done(123)" -> (nothing: dependencies such as "done(123)" are not supported yet)
    "#);
}

#[test]
fn a_script_that_speaks_to_several_schedulers_is_taken_with_a_warning() {
    let script = "#!/bin/sh\n#BSUB -W 00:30\n#SBATCH --time=30\n#PBS -l walltime=00:30:00\ntrue\n";
    let warnings = foreign_lines(&directives::find(script), "all.sh").unwrap();
    assert_eq!(warnings, ["all.sh: #BSUB lines are not read here, the others are (line 2, 4)"]);
}

fn usage_error(line: &str) -> String {
    let argv = line.split(' ').map(Into::into).collect();
    let error = parse_command_line(argv).expect_err(line).error;
    format!("{}\nhint: {}", error.message, error.hint.unwrap_or_default())
}

#[test]
fn usage_errors_say_what_was_written_and_what_to_do() {
    insta::assert_snapshot!(usage_error("bsub --job-nam=x job.sh"), @r#"
    unknown option or argument "--job-nam"
    hint: did you mean --job-name?
    "#);
    insta::assert_snapshot!(usage_error("bsub --time=xyz job.sh"), @r#"
    --time: "xyz" is not a time limit: expected MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, DAYS-HOURS:MINUTES, DAYS-HOURS:MINUTES:SECONDS or UNLIMITED
    hint: see `bsub --help`
    "#);
    insta::assert_snapshot!(usage_error("bsub --mem=1,5G job.sh"), @r#"
    --mem: "1,5G" is not an amount of memory: expected a number of MiB, or one with K, M, G or T, such as 512M or 1.5G
    hint: see `bsub --help`
    "#);
    insta::assert_snapshot!(usage_error("bsub --array=0-4294967295 job.sh"), @r#"
    --array: "0-4294967295": index 4294967295 is over the largest index allowed, 99999999
    hint: see `bsub --help`
    "#);
    insta::assert_snapshot!(usage_error("bsub -c 0 job.sh"), @r#"
    --cpus-per-task: "0" is not a number from 1 to 1000000
    hint: see `bsub --help`
    "#);
    insta::assert_snapshot!(usage_error("bsub --gres=gpu:1g.10gb:1 job.sh"), @r#"
    --gres: "gpu:1g.10gb:1" asks for a part of a GPU (1g.10gb), which comes with MIG support: ask for whole GPUs, such as gpu:1
    hint: see `bsub --help`
    "#);
    insta::assert_snapshot!(usage_error("bsub --mem"), @"
    --mem needs a value
    hint: see `bsub --help`
    ");
}

#[test]
fn every_malformed_value_of_the_field_cases_is_refused_and_named() {
    for (option, values) in [
        ("time", &["", " ", "abc", "1:2:3:4", "-5", "5m", "1-", "1-:30", "99999999999999999999"][..]),
        ("mem", &["0M", "-1G", "1,5G", "1e3M", "1 G"]),
        (
            "array",
            &[
                "7-3",
                "0-9:0",
                "0-9%0",
                "0-9%-1",
                "1-2%3%",
                " 1-2",
                "1--2",
                "0-4294967295",
                "18446744073709551615",
                "1-1000000000",
                "",
                ",",
                "0x10",
                "-5",
            ],
        ),
    ] {
        for value in values {
            let argv = vec!["bsub".into(), format!("--{option}={value}").into(), "job.sh".into()];
            let fail = parse_command_line(argv).expect_err(value);
            assert_eq!(fail.exit_code(), 2);
            assert!(fail.error.message.contains(value) && fail.error.message.contains(option), "{fail}");
        }
    }
}

#[test]
fn what_follows_the_script_is_the_scripts() {
    let argv = ["bsub", "-c", "2", "job.sh", "--mem=1G", "-x", "--", "y"].map(Into::into).to_vec();
    let args = parse_command_line(argv).unwrap().unwrap();
    assert_eq!(args.script, ["job.sh", "--mem=1G", "-x", "--", "y"]);
    assert_eq!((args.options.cpus_per_task, args.options.mem), (Some(2), None));
    let argv = ["bsub", "-"].map(Into::into).to_vec();
    assert_eq!(parse_command_line(argv).unwrap().unwrap().script, ["-"]);
}
