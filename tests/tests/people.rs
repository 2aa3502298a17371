//! What people and their scripts see of a long queue and of odd names (field cases, family H).

use proto::api::{JobList, Submission, SubmissionBatch, SubmittedBatch, SubmittedResult};
use std::collections::BTreeSet;
use tests::{Cluster, ClusterOptions, User, small_job};

fn controller() -> Cluster {
    Cluster::without_nodes(ClusterOptions { nodes: Vec::new(), ..ClusterOptions::default() })
}

/// Submits so many held jobs as this user, in batches.
fn fill(cluster: &Cluster, user: &User, count: usize) {
    let mut api = cluster.api_as(user);
    for start in (0..count).step_by(1000) {
        let one = |n| Submission {
            hold: true,
            name: format!("job-{n}"),
            ..small_job("true", std::path::Path::new("/"))
        };
        let jobs = (start..count.min(start + 1000)).map(one).collect();
        let answer: SubmittedBatch = api.post("/v1/jobs/batch", &SubmissionBatch { jobs }).unwrap();
        assert!(answer.results.iter().all(|result| matches!(result, SubmittedResult::Job(_))), "{answer:?}");
    }
}

/// H-01.
#[test]
fn odd_names_are_in_every_listing_once_and_read_back_equal() {
    let (cluster, user) = (controller(), User::one());
    let odd = ["crazy|name", "a,b;c d", "back\\slash", "quote'\"`$(touch pwned)", "名前 ñ", "[x] %j"];
    for name in odd {
        cluster.run(&user, "bsub", &["-J", name, "--comment", "two\nlines", "--wrap", "true"]).ok();
    }
    // A name with a control character is refused, not stored.
    cluster.run(&user, "bsub", &["-J", "a\nb\te", "--wrap", "true"]).refused(2);
    cluster.shell(&user, "mkdir 'd|r' && cd 'd|r' && bsub -J in-dir --wrap true").ok();

    let want: BTreeSet<&str> = odd.into_iter().chain(["in-dir"]).collect();
    let json = cluster.run(&user, "bq", &["--json"]).json();
    let jobs = json["jobs"].as_array().unwrap();
    let names: BTreeSet<&str> = jobs.iter().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!((jobs.len(), &names), (want.len(), &want));
    let parsable = cluster.run(&user, "bq", &["-h", "--parsable", "-o", "id,name,state"]);
    let read_back: BTreeSet<String> = parsable
        .ok()
        .lines()
        .map(|line| {
            let fields = unescaped(line);
            assert_eq!(fields.len(), 3, "{line}");
            fields[1].clone()
        })
        .collect();
    assert_eq!(read_back.iter().map(String::as_str).collect::<BTreeSet<_>>(), want);
    // One line a job for people, too.
    assert_eq!(cluster.run(&user, "bq", &["-h", "-o", "id,name,comment"]).ok().lines().count(), want.len());
    assert!(!cluster.home(&user).join("pwned").exists());
}

/// The documented form: fields separated by `|`, and `\` before what is meant literally.
fn unescaped(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        let field = fields.last_mut().expect("one field at least");
        match c {
            '|' => fields.push(String::new()),
            '\\' => field.push(characters.next().expect("something follows a backslash")),
            c => field.push(c),
        }
    }
    fields
}

/// H-02, with the status of the command itself and not of the pipe's end.
#[test]
fn a_closed_pipe_is_no_crash() {
    let (cluster, user) = (controller(), User::one());
    fill(&cluster, &user, 5000);
    for pipe in [
        "bq | head -1",
        "bq --json | head -c 10",
        "bq --parsable | sed 1q",
        "bctl node list | true",
        "bsub --help | head -1",
        "bq --help | true",
        "bctl completions bash | head -1",
        "binfo --json | true",
        "bq 2>&- | head -1",
    ] {
        let ran = cluster.shell(&user, &format!("{pipe} >/dev/null; echo ${{PIPESTATUS[0]}}"));
        let status = ran.ok().trim();
        assert!(status == "0" || status == "141", "`{pipe}` ends with {status}: {}", ran.stderr);
        assert_eq!(ran.stderr, "", "`{pipe}`");
    }
    // A full disk is an error, told in one line.
    let full = cluster.shell(&user, "bq > /dev/full");
    assert_ne!(full.status, 0, "{full:?}");
    assert_eq!(full.stderr.lines().count(), 1, "{full:?}");
    let closed = cluster.shell(&user, "bq >&-");
    assert!(!closed.stderr.contains("panicked"), "{closed:?}");
    // A slow reader gets it all.
    assert_eq!(cluster.shell(&user, "bq -h | (read first; sleep 1; cat) | wc -l").ok().trim(), "4999");
}

/// H-06: exactly one document in one shape, for none, one and many jobs.
#[test]
fn json_is_one_document_of_one_shape() {
    let (cluster, user) = (controller(), User::one());
    let shape = |args: &[&str], list: &str| {
        let ran = cluster.run(&user, args[0], &args[1..]);
        ran.exits(0);
        let json = ran.json();
        assert!(json[list].is_array(), "`{}`: {json}", ran.line);
        json
    };
    assert_eq!(shape(&["bq", "--json"], "jobs")["jobs"].as_array().unwrap().len(), 0);
    let id = cluster.submit(&user, &["--hold"], "true").to_string();
    let array = cluster.submit(&user, &["--hold", "--array=1-5"], "true").to_string();
    let all = shape(&["bq", "--json"], "jobs");
    assert_eq!(
        all["jobs"].as_array().unwrap().len(),
        2,
        "an array that waits is one entry, with or without --json"
    );
    assert_eq!(cluster.run(&user, "bq", &["-h"]).ok().lines().count(), 2);
    let one = shape(&["bq", "--json", &id], "jobs")["jobs"][0].clone();
    let keys = "id name user tenant account pool state reasons exit_code signal attempt nodes gpus submitted_at started_at \
                ended_at time_limit_s";
    for key in keys.split_whitespace() {
        assert!(one.get(key).is_some(), "{key} in {one}");
        assert!(all["jobs"][0].get(key).is_some(), "{key} in {all}");
    }
    assert!(one["id"].is_i64() && one["exit_code"].is_null() && one["started_at"].is_null(), "{one}");
    assert!(one["submitted_at"].as_str().unwrap().ends_with('Z'), "{one}");
    shape(&["bq", "--json", &id, &array], "jobs");
    shape(&["bctl", "node", "list", "--json"], "nodes");
    shape(&["binfo", "--json"], "pools");
    shape(&["bcancel", "--json", &id], "results");
    // Partly an error: still one document, and the exit code tells.
    let ran = cluster.run(&user, "bcancel", &["--json", &array, "4711000"]);
    ran.exits(4);
    assert_eq!(ran.json()["results"].as_array().unwrap().len(), 2);
}

/// H-11: machine forms do not change with the caller's environment, and a broken one is no crash.
#[test]
fn the_callers_environment_does_not_change_what_machines_read() {
    let (cluster, user) = (controller(), User::one());
    cluster.submit(&user, &["--hold", "-J", "İstanbul"], "true");
    let id = cluster.submit(&user, &["--array=1-3", "--hold"], "true").to_string();
    let forms: [&[&str]; 4] = [
        &["bq", "--json"],
        &["bq", "--parsable"],
        &["bq", "--json", &id],
        &["bctl", "node", "list", "--json"],
    ];
    let fifo = cluster.home(&user).join("better-compute");
    std::fs::create_dir(&fifo).unwrap();
    nix::unistd::mkfifo(&fifo.join("client.toml"), nix::sys::stat::Mode::from_bits_truncate(0o644)).unwrap();
    let home = cluster.home(&user).display().to_string();
    let environments: [&[(&str, &str)]; 7] = [
        &[("LC_ALL", "nb_NO.UTF-8"), ("TZ", "Pacific/Kiritimati")],
        &[("LC_ALL", "tr_TR.UTF-8"), ("TZ", "garbage")],
        &[("LC_ALL", "C"), ("COLUMNS", "20"), ("LINES", "1")],
        &[("COLUMNS", "abc"), ("TERM", "nonesuch"), ("FORCE_COLOR", "1"), ("CLICOLOR_FORCE", "1")],
        &[
            ("SQUEUE_FORMAT", "%i"),
            ("SQUEUE_SORT", "x"),
            ("SLURM_TIME_FORMAT", "relative"),
            ("BQ_FORMAT", "id"),
        ],
        &[("BSUB_TIME", "garbage"), ("SBATCH_ARRAY_INX", "x"), ("NO_COLOR", "1")],
        &[("XDG_CONFIG_HOME", &home)],
    ];
    for form in forms {
        let plain = cluster.run(&user, form[0], &form[1..]).ok().to_owned();
        for environment in environments {
            let mut command = cluster.command(&user, form[0]);
            command.args(&form[1..]).envs(environment.iter().copied());
            let ran = tests::commands::run(&mut command, b"");
            assert_eq!(ran.ok(), plain, "{environment:?}");
        }
        if form.contains(&id.as_str()) {
            // The script is for its owner alone.
            continue;
        }
        // Nobody's home, and a caller whom the user database does not know.
        let mut command = cluster
            .command(&User { name: "nobody-at-all".into(), uid: 54321.into(), gid: 54321.into() }, form[0]);
        command.args(&form[1..]).env_remove("HOME").env_remove("USER").env_remove("LOGNAME").current_dir("/");
        assert_eq!(tests::commands::run(&mut command, b"").ok(), plain);
    }
    // Without BC_SERVER the configuration counts: what cannot be read is named, and nothing hangs.
    let mut command = cluster.command(&user, "bq");
    command.env_remove("BC_SERVER").env("XDG_CONFIG_HOME", &home);
    let ran = tests::commands::run(&mut command, b"");
    ran.refused(2).says("client.toml");
    std::fs::remove_file(fifo.join("client.toml")).unwrap();
    cluster.write(&user, "better-compute/client.toml", format!("server = \"{}\"\n", cluster.server()));
    let mut command = cluster.command(&user, "bq");
    command.env_remove("BC_SERVER").env("XDG_CONFIG_HOME", &home).args(["--json"]);
    let ran = tests::commands::run(&mut command, b"");
    let list: JobList = serde_json::from_str(ran.ok()).unwrap();
    assert_eq!(list.jobs.len(), 2);
}

/// H-03: a pipe has no width and no colours.
#[test]
fn a_pipe_gets_whole_values_without_colours() {
    let (cluster, user) = (controller(), User::one());
    let name = "n".repeat(150);
    cluster.run(&user, "bsub", &["--hold", "-J", &name, "--wrap", "true"]).ok();
    for environment in ["", "COLUMNS=20 ", "TERM=dumb ", "TERM=xterm-256color FORCE_COLOR=1 ", "LANG=C "] {
        let ran = cluster.shell(&user, &format!("{environment}bq | cat"));
        assert!(ran.ok().contains(&name) && !ran.stdout.contains('\x1b'), "{environment}: {}", ran.stdout);
    }
    // A terminal's width is kept to, ids and states whole.
    let narrow =
        cluster.shell(&user, "script -qec 'stty cols 60; bq -h' /dev/null < /dev/null | tr -d '\\r'");
    let line = narrow.ok().lines().find(|line| line.contains("nnn")).expect(&narrow.stdout);
    assert!(line.chars().count() <= 60 && line.contains("PD"), "{line}");
}
