//! What is accepted, refused, and said about it, through the real commands (field cases, family A).
//!
//! The parsers' own tables are tested in `cli` and `proto`; here is what only the whole path shows: that what was refused left no
//! job, that what was accepted means what it says, and that a script can tell one refusal from another.

use proto::State;
use proto::api::JobList;
use std::time::Instant;
use tests::proxy::Proxy;
use tests::{Cluster, ClusterOptions, SOON, User, until};

/// A controller without nodes: what is accepted stays pending.
fn controller() -> Cluster {
    Cluster::without_nodes(ClusterOptions { nodes: Vec::new(), ..ClusterOptions::default() })
}

fn count(cluster: &Cluster) -> usize {
    cluster.api().get::<JobList>("/v1/jobs?states=all").unwrap().jobs.len()
}

/// A-01.
#[test]
fn time_limits_keep_their_unit_and_unreadable_ones_leave_no_job() {
    let (cluster, user) = (controller(), User::one());
    let limits = [
        ("10", 600),
        ("4:00", 240),
        ("0:30", 30),
        ("1:00:00", 3600),
        ("2-12", 216_000),
        ("2-12:30", 217_800),
        ("2-12:30:45", 217_845),
    ];
    for (text, seconds) in limits {
        let id = cluster.submit(&user, &[&format!("--time={text}")], "true");
        assert_eq!(cluster.job(id).time_limit_s, Some(seconds), "--time={text}");
    }
    for text in ["", " ", "abc", "1:2:3:4", "-5", "5m", "1-", "1-:30", "99999999999999999999"] {
        let ran = cluster.run(&user, "bsub", &[&format!("--time={text}"), "--wrap", "true"]);
        ran.refused(2).says("--time");
    }
    assert_eq!(count(&cluster), limits.len());
}

/// A-03, A-10: what cannot run is refused with its own sentence, by file and through a pipe.
#[test]
fn scripts_that_cannot_run_are_refused_each_with_its_own_sentence() {
    let (cluster, user) = (controller(), User::one());
    let cases: [(&str, &[u8]); 8] = [
        ("crlf", b"#!/bin/bash\r\n#BATCH --job-name=crlf\r\n\r\necho hi\r\n"),
        ("cr", b"#!/bin/bash\recho hi\r"),
        ("directive", b"#!/bin/bash\n#BATCH --job-name=mix\r\necho hi\n"),
        ("none", b"echo hi\n"),
        ("tab", b"\t#!/bin/bash\necho hi\n"),
        ("bom", b"\xef\xbb\xbf#!/bin/bash\necho hi\n"),
        ("empty", b""),
        ("binary", b"\x7fELF\x02\x01\x01\0\0\0\0\0"),
    ];
    let mut sentences = std::collections::BTreeSet::new();
    for (name, text) in cases {
        cluster.write(&user, name, text);
        let by_file = cluster.shell(&user, &format!("bsub ./{name}"));
        by_file.refused(2);
        cluster.shell(&user, &format!("bsub - < {name}")).refused(2);
        let sentence = by_file.stderr.lines().next().unwrap().replace(&format!("./{name}"), "");
        assert!(sentences.insert(sentence.clone()), "{name} is told like another: {sentence}");
    }
    cluster.bsub(&user, &[], "\n\n").refused(2).says("empty");
    for (name, said) in [("/tmp", "directory"), ("nosuch.sh", "nosuch.sh")] {
        let ran = cluster.shell(&user, &format!("bsub {name}"));
        assert_eq!(ran.stdout, "");
        assert_ne!(ran.status, 0);
        ran.says(said);
    }
    assert_eq!(count(&cluster), 0);
}

/// A-04: fractions are exact, and what is stored is what was asked.
#[test]
fn memory_is_stored_as_asked() {
    let (cluster, user) = (controller(), User::one());
    for (text, mib) in
        [("0.5G", 512), ("1.5G", 1536), ("512M", 512), ("512m", 512), ("0.0001M", 1), ("100", 100)]
    {
        let id = cluster.submit(&user, &[&format!("--mem={text}")], "true");
        assert_eq!(cluster.job(id).mem_mib, mib, "--mem={text}");
    }
    let stored = count(&cluster);
    for text in ["-1G", "1,5G", "1e3M", "1 G", "G", ""] {
        cluster.run(&user, "bsub", &[&format!("--mem={text}"), "--wrap", "true"]).refused(2);
    }
    assert_eq!(count(&cluster), stored);
}

/// A-06, seen by the job itself.
#[test]
fn the_job_sees_the_environment_that_was_asked_for() {
    let (cluster, user) = (Cluster::one_node(), User::one());
    let said = |script: &str| {
        let ran = cluster.shell(&user, script);
        ran.exits(0);
        cluster.read(&user, "said").trim().to_owned()
    };
    let all = "FOO=outer bsub -W -o said --export=ALL,FOO=inner,PORT=29999,EQ=a=b=c --wrap 'echo \"$FOO|$PORT|$EQ|${HOME:+home}\"'";
    assert_eq!(said(all), "inner|29999|a=b=c|home");
    let none = said("SECRET=x FOO=y bsub -W -o said --export=NONE --wrap 'env | sort'");
    assert!(!none.contains("SECRET") && !none.contains("FOO="), "{none}");
    for name in ["PATH=", "HOME=", "USER=bctest1", "BC_JOB_ID=", "SLURM_JOB_ID="] {
        assert!(none.lines().any(|line| line.starts_with(name)), "{name} in {none}");
    }
    let one =
        said("FOO=x BAR=y bsub -W -o said --export=FOO --wrap 'echo \"$FOO|$BAR|$(command -v hostname)\"'");
    assert!(one.starts_with("x||/"), "{one}");
    assert_eq!(said("bsub -W -o said --export=A=1 --export=B=2 --wrap 'echo \"$A|$B\"'"), "1|2");
    let missing = cluster.shell(&user, "bsub -W -o said --export=MISSING,A=1 --wrap 'echo $A'");
    missing.exits(0).says("MISSING");
    // A caller's own SLURM_JOB_ID (bsub within a job) does not become the new job's.
    let nested = said(
        "SLURM_JOB_ID=77 BC_JOB_ID=77 CUDA_VISIBLE_DEVICES=0 bsub -W -o said --wrap 'echo \"$SLURM_JOB_ID|$CUDA_VISIBLE_DEVICES\"'",
    );
    assert!(!nested.starts_with("77|") && !nested.ends_with("|0"), "{nested}");
}

/// A-08.
#[test]
fn directives_after_the_first_command_are_named() {
    let (cluster, user) = (controller(), User::one());
    cluster.write(
        &user,
        "late.sh",
        "#!/bin/bash\nset -euo pipefail\n#SBATCH --time=4:00:00\n#BATCH --mem=64G\ntrue\n",
    );
    let late = cluster.shell(&user, "bsub late.sh");
    late.says("3").says("4");
    cluster.write(&user, "gaps.sh", "#!/bin/bash\n\n# note\n#BATCH --mem=1G\n\n#SBATCH --time=5\ntrue\n");
    let id: i64 = cluster.shell(&user, "bsub --parsable gaps.sh").ok().trim().parse().unwrap();
    let job = cluster.job(id);
    assert_eq!((job.mem_mib, job.time_limit_s), (1024, Some(300)));
    cluster.write(&user, "heredoc.sh", "#!/bin/bash\ncat <<E\n#BATCH --mem=999G\nE\n");
    let heredoc = cluster.shell(&user, "bsub --parsable heredoc.sh");
    if heredoc.status == 0 {
        assert_ne!(cluster.job(heredoc.stdout.trim().parse().unwrap()).mem_mib, 999 << 10);
    }
    heredoc.says("3");
}

/// A-11: the request arrives, the reply is lost; whoever asks again makes no second job.
#[test]
fn a_lost_reply_makes_no_second_job() {
    let (cluster, user) = (controller(), User::one());
    let proxy = Proxy::start(&cluster.dir().join("proxy.sock"), &cluster.socket(), &user);
    let bsub = |args: &[&str], script: &str| {
        let mut command = cluster.command(&user, "bsub");
        command.env("BC_SERVER", proxy.server()).args(args);
        tests::commands::run(&mut command, format!("#!/bin/sh\n{script}\n").as_bytes())
    };
    proxy.lose(2);
    let once = bsub(&["--parsable", "-J", "once"], "true");
    let id: i64 = once.ok().trim().parse().unwrap();
    assert_eq!(proxy.lost(), 2, "the replies were lost");
    assert_eq!((count(&cluster), cluster.job(id).name.as_str()), (1, "once"));

    // One key from three processes at once, and again after a restart of the controller.
    let script = "#!/bin/sh\ntrue\n";
    cluster.write(&user, "job.sh", script);
    cluster.write(&user, "other.sh", "#!/bin/sh\nfalse\n");
    let racing =
        cluster.shell(&user, "for i in 1 2 3; do bsub --parsable --idempotency-key=K1 job.sh & done; wait");
    let ids: std::collections::BTreeSet<&str> = racing.ok().lines().collect();
    assert_eq!((racing.stdout.lines().count(), ids.len(), count(&cluster)), (3, 1, 2), "{racing:?}");
    let mut cluster = cluster;
    cluster.kill_ctld();
    cluster.start_ctld();
    cluster.ready();
    let again = cluster.shell(&user, "bsub --parsable --idempotency-key=K1 job.sh");
    assert!(ids.contains(again.ok().trim()), "{again:?}");
    cluster.shell(&user, "bsub --idempotency-key=K1 other.sh").refused(6);
    // The key is the user's own.
    cluster.write(&User::two(), "job.sh", script);
    let theirs = cluster.shell(&User::two(), "bsub --parsable --idempotency-key=K1 job.sh");
    assert!(!ids.contains(theirs.ok().trim()), "{theirs:?}");
    assert_eq!(count(&cluster), 3);
}

/// A-11: when no answer ever comes, `bsub` says that the outcome is unknown, and under which key to ask.
#[test]
fn a_client_that_gives_up_says_that_the_outcome_is_unknown() {
    let (cluster, user) = (controller(), User::one());
    let proxy = Proxy::start(&cluster.dir().join("proxy.sock"), &cluster.socket(), &user);
    proxy.lose(u32::MAX);
    let mut command = cluster.command(&user, "bsub");
    command.env("BC_SERVER", proxy.server()).args(["--parsable", "--wrap", "true"]);
    let ran = tests::commands::run(&mut command, b"");
    ran.refused(7).says("outcome unknown");
    let key = ran
        .stderr
        .split("--idempotency-key=")
        .nth(1)
        .expect("the key is named")
        .split([' ', ';'])
        .next()
        .unwrap();
    assert_eq!(count(&cluster), 1);
    // The same command again: its environment, which names the server, is a part of what was submitted.
    proxy.lose(0);
    let mut command = cluster.command(&user, "bsub");
    command.env("BC_SERVER", proxy.server());
    command.args(["--parsable", &format!("--idempotency-key={key}"), "--wrap", "true"]);
    let found = tests::commands::run(&mut command, b"");
    let id: i64 = found.ok().trim().parse().unwrap();
    assert_eq!((count(&cluster), cluster.job(id).state), (1, State::Pending), "{ran:?}\n{found:?}");
}

/// A-13.
#[test]
fn array_specifications_are_taken_or_refused_within_a_second() {
    let (cluster, user) = (controller(), User::one());
    let indices = |text: &str| {
        let id = cluster.submit(&user, &[&format!("--array={text}")], "true");
        cluster.jobs(id)[0].array.clone().expect("an array").indices.to_string()
    };
    assert_eq!(indices("0-9"), "0-9");
    assert_eq!(indices("5,1,3"), "1,3,5");
    assert_eq!(indices("1-3,2-5"), "1-5");
    assert_eq!(indices("0-99999,0-99999"), "0-99999");
    assert_eq!(indices("7"), "7");
    let steps = cluster.submit(&user, &["--array=0-9:3"], "true");
    let list: JobList = cluster.api().get(&format!("/v1/jobs?ids={steps}&tasks=true")).unwrap();
    assert_eq!(list.jobs.iter().filter_map(|job| job.task).collect::<Vec<_>>(), [0, 3, 6, 9]);

    let before = count(&cluster);
    let bad = [
        "7-3",
        "0-9:0",
        "0-9%-1",
        "1-2%3%",
        "1--2",
        "0-4294967295",
        "18446744073709551615",
        "1-1000000000",
        "",
        ",",
        "0x10",
        "-5",
    ];
    for text in bad {
        let began = Instant::now();
        cluster.run(&user, "bsub", &[&format!("--array={text}"), "--wrap", "true"]).refused(2);
        assert!(began.elapsed().as_secs() < 5, "--array={text} took {:?}", began.elapsed());
    }
    assert_eq!(count(&cluster), before, "no part of a refused array is there");

    // What is left of a pending array is shown as ranges, for people and for machines.
    let id = cluster.submit(&user, &["--array=60-98"], "true");
    cluster.run(&user, "bcancel", &[&format!("{id}_90"), &format!("{id}_95")]).ok();
    let shown = cluster.run(&user, "bq", &["-h", "-o", "id", "-j", &id.to_string()]);
    assert!(shown.ok().contains(&format!("{id}_[60-89,91-94,96-98]")), "{}", shown.stdout);
    let json = cluster.run(&user, "bq", &["--json", "-j", &id.to_string()]).json();
    let pending: Vec<&str> =
        json["jobs"].as_array().unwrap().iter().filter_map(|job| job["array"]["pending"].as_str()).collect();
    assert!(pending.contains(&"60-89,91-94,96-98"), "{json}");
}

/// A-14, H-06: exit codes fall into their groups, stdout stays empty, `--json` is one document with a stable code.
#[test]
fn a_script_can_tell_one_refusal_from_another() {
    let (mut cluster, user) = (controller(), User::one());
    let held = cluster.submit(&User::two(), &["--hold"], "true").to_string();
    cluster.run(&user, "bsub", &["--idempotency-key=k", "--wrap", "true"]).ok();
    let cases: [(&str, &[&str], i32, &str, bool); 7] = [
        ("bsub", &["--no-such-option", "--wrap", "true"], 2, "INVALID_ARGUMENT", false),
        ("bsub", &["--dependency=afterok:1", "--wrap", "true"], 2, "INVALID_ARGUMENT", false),
        ("bsub", &["--array=1-1000000000", "--wrap", "true"], 2, "INVALID_ARGUMENT", false),
        ("bsub", &["-p", "nonesuch", "--wrap", "true"], 2, "INVALID_ARGUMENT", false),
        ("bsub", &["--idempotency-key=k", "--wrap", "false"], 6, "CONFLICT", false),
        ("bq", &["4711000"], 4, "NOT_FOUND", false),
        ("bq", &["-t", "nonesuch"], 2, "INVALID_ARGUMENT", false),
    ];
    for (program, args, code, name, retryable) in cases {
        cluster.run(&user, program, args).refused(code);
        let mut with_json = vec!["--json"];
        with_json.extend(args);
        let ran = cluster.run(&user, program, &with_json);
        ran.exits(code);
        let error = &ran.json()["error"];
        assert_eq!(
            (error["code"].as_str(), error["retryable"].as_bool()),
            (Some(name), Some(retryable)),
            "{ran:?}"
        );
    }
    cluster.run(&user, "bctl", &["release", &held]).refused(5);
    cluster.run(&user, "bctl", &["drain", "n1", "--reason", "x"]).refused(5);
    assert_eq!(count(&cluster), 2);
    // Nobody there: nothing was sent, so the outcome is known.
    cluster.kill_ctld();
    std::fs::remove_file(cluster.socket()).unwrap();
    cluster.run(&user, "bsub", &["--wrap", "true"]).refused(3);
    let ran = cluster.run(&user, "bsub", &["--json", "--wrap", "true"]);
    ran.exits(3);
    assert_eq!(ran.json()["error"]["code"], "UNAVAILABLE");
    cluster.run(&user, "bq", &[]).refused(3);
}

/// A-16.
#[test]
fn another_schedulers_lines_and_options_are_refused_by_name() {
    let (cluster, user) = (controller(), User::one());
    let lsf = "#!/bin/sh\n#BSUB -J \"a[1-4]%2\"\n#BSUB -q short\n#BSUB -W 00:30\n#BSUB -o out/x_%J_%I.out\nhostname\n";
    cluster.write(&user, "lsf.sh", lsf);
    cluster.shell(&user, "bsub < lsf.sh").refused(2).says("#BSUB");
    cluster.shell(&user, "bsub lsf.sh").refused(2).says("#BSUB");
    // -W is --wait here, whose own failures are 240 and more.
    cluster.shell(&user, "bsub -W 48:00 sleep 5").refused(242).says("--time=2-00:00:00");
    cluster.shell(&user, "bsub -I bash").refused(2);
    cluster.shell(&user, "bsub -o out_%J_%I --wrap true").refused(2).says("%I");
    assert_eq!(count(&cluster), 0);
    // Without arguments, at a terminal: a hint, and no waiting for a script.
    let terminal = cluster.shell(&user, "script -qec bsub /dev/null < /dev/null");
    assert!(terminal.stdout.contains("script"), "{terminal:?}");
    assert_eq!(terminal.status, 2, "{terminal:?}");
}

/// H-04: an interrupt leaves the job alone, says how to cancel it, and ends the waiting at once.
#[test]
fn an_interrupted_wait_leaves_the_job_and_says_how_to_cancel_it() {
    let (cluster, user) = (controller(), User::one());
    let mut command = cluster.command(&user, "bsub");
    let waiting = tests::commands::Running::start(command.args(["--wait", "--wrap", "true"]), b"");
    let id = until("the job", SOON, || {
        let list: JobList = cluster.api().get("/v1/jobs").unwrap();
        list.jobs.first().map(|job| job.id)
    });
    // It has had its answer when its next request is there: a wait.
    until("the wait", SOON, || {
        let metrics = cluster.api().get_text("/metrics").unwrap();
        let open = metrics
            .lines()
            .find(|line| line.starts_with("better_compute_api_connections "))?
            .rsplit(' ')
            .next()?
            .parse::<f64>()
            .ok()?;
        (open >= 2.0).then_some(())
    });
    tests::processes::kill(waiting.pid(), nix::sys::signal::Signal::SIGINT);
    let ran = waiting.finish(SOON);
    assert_eq!(ran.status, 130, "{ran:?}");
    ran.says("bcancel").says(&id.to_string());
    assert_eq!(cluster.job(id).state, State::Pending);
    cluster.run(&user, "bcancel", &[&id.to_string()]).ok();
}
