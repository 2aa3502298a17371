//! The commands as processes: what is on stdout and stderr and which exit status, against a pretended controller.
//!
//! The field cases of submission (A) and of the command line (H) that need a process but no cluster.

mod controller;

use controller::{Act, Controller, command, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

const SCRIPT: &str = "#!/bin/sh\ntrue\n";

fn created() -> Act {
    Act::Say(201, r#"{"id":7,"replayed":false}"#.to_owned())
}

fn refused(status: u16, code: &str, retryable: bool) -> Act {
    let body = format!(r#"{{"error":{{"code":"{code}","message":"said so","retryable":{retryable}}}}}"#);
    Act::Say(status, body)
}

fn job(id: i64, state: &str, exit: &str) -> String {
    format!(
        r#"{{"id":{id},"task":null,"display_id":"{id}","name":"a|b\nc","user":"alice","tenant":"t","account":null,"pool":"main",
        "state":"{state}","reasons":[],"exit_code":{exit},"signal":null,"attempt":1,"nodes":[],"gpus":[],"cpus":1,"mem_mib":1,
        "gpu_count":0,"gpu_type":null,"node_count":1,"priority":1,"submitted_at":"2026-11-30T14:00:00Z","begin_at":null,
        "started_at":null,"ended_at":null,"run_s":null,"time_limit_s":null}}"#
    )
}

fn jobs(all: impl Iterator<Item = String>) -> Act {
    Act::Say(200, format!(r#"{{"jobs":[{}],"truncated":false}}"#, all.collect::<Vec<_>>().join(",")))
}

#[test]
fn a_submission_prints_its_id_in_slurms_words() {
    for (words, out) in [
        (&[][..], "Submitted batch job 7\n"),
        (&["--parsable"], "7\n"),
        (&["--quiet"], ""),
        (&["--json"], "{\"id\":7,\"replayed\":false}\n"),
    ] {
        let controller = Controller::following(vec![created()]);
        let mut bsub = command("bsub", words);
        bsub.env("BC_SERVER", controller.socket());
        let ended = run(bsub, SCRIPT);
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), out, ""), "{words:?}");
        assert_eq!(controller.asked()[0].line, "POST /v1/jobs HTTP/1.1");
    }
}

#[test]
fn a_researchers_script_is_taken_as_it_is() {
    let script = "#!/bin/bash\n#SBATCH --job-name=train   # the name\n#SBATCH -p gpu -A proj\n\n#SBATCH --nodes=2 --ntasks-per-node=4\n\
                  #SBATCH --cpus-per-task=2\n#SBATCH --mem=1.5G\n#SBATCH --gres=gpu:a100:1\n#SBATCH --time=1-12:30\n\
                  #SBATCH -o logs/%x-%j.out -e logs/%x-%j.err\n#SBATCH --array=0-9%2\n#SBATCH --signal=B:USR2@90\n\
                  #SBATCH --open-mode=append --no-requeue --export=ALL\n\nsrun python train.py\n";
    let controller = Controller::following(vec![created()]);
    let mut bsub = command("bsub", &["--idempotency-key=k", "--time=30", "-", "one", "--two"]);
    bsub.env("BC_SERVER", controller.socket()).env("SBATCH_PARTITION", "other").env("FOO", "bar");
    assert_eq!(run(bsub, script).code, Some(0));
    let body: serde_json::Value = serde_json::from_str(&controller.asked()[0].body).unwrap();
    for (key, want) in [
        ("idempotency_key", serde_json::json!("k")),
        ("name", "train".into()),
        // The environment wins over the script, the command line over both.
        ("pool", "other".into()),
        ("account", "proj".into()),
        ("nodes", 2.into()),
        ("ntasks", 8.into()),
        ("cpus_per_task", 2.into()),
        ("cpus", 8.into()),
        ("mem_mib", 1536.into()),
        ("gpus", 1.into()),
        ("gpu_type", "a100".into()),
        ("time_limit_s", 1800.into()),
        ("output", "logs/%x-%j.out".into()),
        ("error", "logs/%x-%j.err".into()),
        ("array", serde_json::json!({"indices": "0-9", "throttle": 2})),
        ("warn", serde_json::json!({"signal": libc::SIGUSR2, "before_s": 90, "script_only": true})),
        ("open_mode", "append".into()),
        ("requeue", false.into()),
        ("args", serde_json::json!(["one", "--two"])),
        ("script", script.into()),
    ] {
        assert_eq!(body[key], want, "{key}");
    }
    assert_eq!(body["env"]["FOO"], "bar");
}

#[test]
fn every_refusal_has_its_exit_code_and_an_empty_stdout() {
    for (act, code) in [
        (refused(400, "INVALID_ARGUMENT", false), 2),
        (refused(413, "TOO_LARGE", false), 2),
        (refused(404, "NOT_FOUND", false), 4),
        (refused(403, "PERMISSION_DENIED", false), 5),
        (refused(409, "CONFLICT", false), 6),
        (refused(409, "QUOTA_EXCEEDED", false), 6),
        (refused(500, "INTERNAL", false), 1),
    ] {
        let controller = Controller::following(vec![act]);
        let mut bsub = command("bsub", &[]);
        bsub.env("BC_SERVER", controller.socket());
        let ended = run(bsub, SCRIPT);
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(code), "", "bsub: said so\n"));
    }
    let away = run(command("bsub", &[]), SCRIPT);
    assert_eq!((away.code, away.out.as_str()), (Some(3), ""));
    let usage = run(command("bsub", &["--mem=x"]), SCRIPT);
    assert_eq!((usage.code, usage.out.as_str()), (Some(2), ""));
    let waiting = run(command("bsub", &["--wait"]), SCRIPT);
    assert_eq!((waiting.code, waiting.out.as_str()), (Some(243), ""));
}

#[test]
fn with_json_an_error_is_one_document_with_a_stable_code() {
    for (program, words, code, name) in [
        ("bsub", &["--json", "--mem=x"][..], 2, "INVALID_ARGUMENT"),
        ("bsub", &["--json", "--nonesuch"], 2, "INVALID_ARGUMENT"),
        ("bsub", &["--json"], 3, "UNAVAILABLE"),
        ("bq", &["--json"], 3, "UNAVAILABLE"),
        ("bq", &["--json", "--start"], 2, "INVALID_ARGUMENT"),
        ("bcancel", &["--json"], 2, "INVALID_ARGUMENT"),
        ("binfo", &["--json"], 3, "UNAVAILABLE"),
        ("bctl", &["check", "--json"], 3, "UNAVAILABLE"),
    ] {
        let ended = run(command(program, words), SCRIPT);
        let document: serde_json::Value = serde_json::from_str(&ended.out).expect(&ended.out);
        assert_eq!(
            (ended.code, &document["error"]["code"]),
            (Some(code), &name.into()),
            "{program} {words:?}"
        );
        assert_eq!((document["error"]["retryable"].as_bool(), ended.err.as_str()), (Some(code == 3), ""));
    }
}

#[test]
fn the_scripts_own_arguments_change_nothing_about_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("job.sh");
    std::fs::write(&script, SCRIPT).unwrap();
    let ended = run(command("bsub", &[script.to_str().unwrap(), "--json", "--wait"]), "");
    assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""));
}

#[test]
fn a_reply_that_is_lost_is_asked_for_again_under_the_same_key() {
    let controller = Controller::following(vec![Act::HangUp, refused(503, "UNAVAILABLE", true), created()]);
    let mut bsub = command("bsub", &[]);
    bsub.env("BC_SERVER", controller.socket());
    let ended = run(bsub, SCRIPT);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "Submitted batch job 7\n"));
    let asked = controller.asked();
    assert!(asked.len() == 3 && asked.iter().all(|one| one.body == asked[0].body));
}

#[test]
fn waiting_becomes_the_jobs_exit_status() {
    let wait = |state, exit| jobs([job(7, state, exit)].into_iter());
    let controller =
        Controller::following(vec![created(), wait("running", "null"), Act::HangUp, wait("failed", "3")]);
    let mut bsub = command("bsub", &["--wait"]);
    bsub.env("BC_SERVER", controller.socket());
    let ended = run(bsub, SCRIPT);
    assert_eq!((ended.code, ended.out.as_str()), (Some(3), "Submitted batch job 7\n"));
    assert!(ended.err.contains("job 7 goes on, and is asked for again"), "{}", ended.err);
    assert!(controller.asked()[1].line.starts_with("GET /v1/jobs/7/wait?timeout_s="));
}

#[test]
fn an_interrupt_leaves_the_job_alone_and_says_how_to_cancel_it() {
    let controller = Controller::following(vec![created(), Act::Silence]);
    let mut bsub = command("bsub", &["--wait", "--wrap", "sleep 100"]);
    let mut child = bsub.env("BC_SERVER", controller.socket()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "Submitted batch job 7\n");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let ended = controller::ended(child.wait_with_output().unwrap());
    assert_eq!(
        (ended.code, ended.err.as_str()),
        (Some(130), "bsub: job 7 goes on; to cancel it: bcancel 7\n")
    );
}

#[test]
fn an_interrupt_before_the_answer_names_the_key() {
    let controller = Controller::following(vec![Act::Silence]);
    let mut bsub = command("bsub", &["--wait", "--idempotency-key=k", "-v", "--wrap", "true"]);
    let mut child = bsub.env("BC_SERVER", controller.socket()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    // The line comes once the interrupt would be seen.
    let mut text = String::new();
    stderr.read_line(&mut text).unwrap();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    stderr.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(text.contains("may have been submitted") && text.contains("--idempotency-key=k"), "{text}");
}

#[test]
fn bsub_alone_on_a_terminal_says_so_instead_of_hanging() {
    let terminal = nix::pty::openpty(None, None).unwrap();
    let mut bsub = command("bsub", &[]);
    let ended = controller::ended(bsub.stdin(Stdio::from(terminal.slave)).output().unwrap());
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
    assert!(ended.err.starts_with("bsub: no script given\nhint: name a script"), "{}", ended.err);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for words in [&["--json"][..], &["--parsable"], &["-t", "all"]] {
        let controller = Controller::following(vec![jobs((1..=5000).map(|id| job(id, "pending", "null")))]);
        let mut bq = command("bq", words);
        let mut child = bq.env("BC_SERVER", controller.socket()).spawn().unwrap();
        let mut start = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut start).unwrap();
        let ended = controller::ended(child.wait_with_output().unwrap());
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{words:?}");
    }
}

#[test]
fn a_full_disk_is_one_line_and_a_failure() {
    for words in [&[][..], &["--json"], &["--help"]] {
        let controller = Controller::following(vec![jobs([job(1, "pending", "null")].into_iter())]);
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut bq = command("bq", words);
        bq.env("BC_SERVER", controller.socket()).stdout(Stdio::from(full));
        let ended = controller::ended(bq.output().unwrap());
        assert_eq!(ended.code, Some(1), "{words:?}");
        assert_eq!(ended.err, "bq: cannot write the output: no space left on device\n");
    }
}

#[test]
fn the_callers_environment_changes_no_machine_form() {
    let odd = [
        ("LC_ALL", "tr_TR.UTF-8"),
        ("TZ", "garbage"),
        ("COLUMNS", "abc"),
        ("TERM", "dumb"),
        ("FORCE_COLOR", "1"),
        ("CLICOLOR_FORCE", "1"),
        ("SQUEUE_FORMAT", "%Z"),
        ("SLURM_TIME_FORMAT", "relative"),
        ("BSUB_JSON", "1"),
        ("XDG_CONFIG_HOME", "/dev/null"),
    ];
    for words in [&["--json"][..], &["--parsable"], &[]] {
        let of = |variables: &[(&str, &str)]| {
            let controller = Controller::following(vec![jobs([job(1, "pending", "null")].into_iter())]);
            let mut bq = command("bq", words);
            bq.env("BC_SERVER", controller.socket()).envs(variables.iter().copied());
            let ended = run(bq, "");
            assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
            ended.out
        };
        let plain = of(&[]);
        assert_eq!(of(&odd), plain, "{words:?}");
        assert!(!plain.contains('\u{1b}'));
        assert!(words == ["--json"] || plain.lines().count() == 2, "one line a job: {plain}");
    }
}

#[test]
fn the_configuration_names_the_controller_and_a_broken_one_is_named() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("better-compute/client.toml");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    let controller = Controller::following(vec![jobs(std::iter::empty())]);
    let bq = || {
        let mut bq = command("bq", &["-h"]);
        bq.env_remove("BC_SERVER").env("XDG_CONFIG_HOME", home.path());
        bq
    };
    std::fs::write(&file, format!("server = \"unix://{}\"\n", controller.socket().display())).unwrap();
    assert_eq!(run(bq(), "").code, Some(0));
    std::fs::write(&file, "sever = 1\n").unwrap();
    let broken = run(bq(), "");
    assert_eq!(broken.code, Some(2));
    assert!(broken.err.starts_with(&format!("bq: {}: line 1: ", file.display())), "{}", broken.err);
}

#[test]
fn cancelling_reports_each_id_and_exits_with_the_first_error() {
    let results = r#"{"results":[{"id":"7","outcome":"done"},{"id":"8","outcome":"already"},
        {"id":"9","outcome":"error","error":{"code":"NOT_FOUND","message":"no job has the id 9","retryable":false}}]}"#;
    let controller = Controller::following(vec![Act::Say(200, results.to_owned())]);
    let mut bcancel = command("bcancel", &["7", "8,9", "-v"]);
    bcancel.env("BC_SERVER", controller.socket());
    let ended = run(bcancel, "");
    let err = "bcancel: job 7: done\nbcancel: job 8: nothing to do\nbcancel: no job has the id 9\n";
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(4), "", err));
    assert!(controller.asked()[0].body.starts_with(r#"{"ids":["7","8","9"]"#));
}

#[test]
fn bashs_completions_can_be_sourced_and_name_every_option() {
    let script = run(command("bctl", &["completions", "bash"]), "").out;
    let mut bash = std::process::Command::new("bash");
    bash.args(["-euc", "source /dev/stdin; complete -p bsub bq bcancel binfo bctl"]);
    bash.stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = run(bash, &script);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    for command in cli::commands() {
        for long in command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(|arg| arg.get_long())
        {
            assert!(script.contains(&format!("--{long} ")), "{} --{long}", command.get_name());
        }
    }
    for other in ["zsh", "fish"] {
        let ended = run(command("bctl", &["completions", other]), "");
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
        assert!(ended.out.contains("bsub") && ended.out.contains("bctl"));
    }
}
