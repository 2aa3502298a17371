use super::sample::job;
use super::*;
use clap::Parser;
use proto::api::{ArrayView, BriefJob, BriefList, Job, JobDetail, Usage};
use proto::{Check, Condition, Reason, State};

fn queue() -> Vec<Job> {
    vec![
        Job {
            state: State::Running,
            run_s: Some(3725),
            nodes: vec!["node1".to_owned(), "node2".to_owned()],
            node_count: 2,
            started_at: Some("2026-11-30T14:00:01Z".parse().unwrap()),
            attempt: 1,
            ..job(7)
        },
        Job {
            name: "crazy|name".to_owned(),
            display_id: "12_[4-9%2]".to_owned(),
            reasons: vec![Condition::new(Reason::Unschedulable, "no node has 8 CPUs free")],
            time_limit_s: None,
            priority: 5,
            ..job(12)
        },
        Job {
            name: "a\tb".to_owned(),
            state: State::Failed,
            exit_code: Some(3),
            reasons: vec![Condition::plain(Reason::NonZeroExitCode)],
            run_s: Some(2),
            comment: Some("two\nlines".to_owned()),
            ..job(9)
        },
    ]
}

fn body(jobs: Vec<Job>) -> Vec<u8> {
    serde_json::to_vec(&JobList { jobs, truncated: false }).unwrap()
}

fn shown(words: &[&str], jobs: Vec<Job>) -> String {
    let args = BqArgs::try_parse_from([&["bq"], words].concat()).unwrap();
    let body = body(jobs);
    render(&args, &body, None).unwrap().text
}

#[test]
fn the_plain_list_is_squeues() {
    insta::assert_snapshot!(shown(&[], queue()), @r"
         JOBID POOL NAME       USER  ST    TIME NODES NODELIST(REASON)
             7 main train      alice R  1:02:05     2 node1,node2
    12_[4-9%2] main crazy|name alice PD    0:00     1 (Unschedulable)
             9 main a\tb       alice F     0:02     1 (NonZeroExitCode)
    ");
    insta::assert_snapshot!(shown(&["-l"], queue()), @r"
         JOBID POOL NAME       USER  STATE      TIME TIME_LIMIT NODES NODELIST(REASON)
             7 main train      alice running 1:02:05    1:00:00     2 node1,node2
    12_[4-9%2] main crazy|name alice pending    0:00  UNLIMITED     1 (Unschedulable)
             9 main a\tb       alice failed     0:02    1:00:00     1 (NonZeroExitCode)
    ");
    insta::assert_snapshot!(shown(&["-h"], vec![]), @"");
    insta::assert_snapshot!(shown(&[], vec![]), @"JOBID POOL NAME USER ST TIME NODES NODELIST(REASON)");
}

#[test]
fn columns_are_chosen_by_name_or_by_slurms_letter() {
    insta::assert_snapshot!(shown(&["-o", "id,state,reason,time_limit_s,comment"], queue()), @r"
         JOBID STATE   REASON          TIME_LIMIT_S COMMENT
             7 running None                    3600
    12_[4-9%2] pending Unschedulable
             9 failed  NonZeroExitCode         3600 two\nlines
    ");
    insta::assert_snapshot!(shown(&["-o", "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"], queue()), @r"
         JOBID      POOL     NAME     USER ST       TIME  NODES NODELIST(REASON)
             7      main    train    alice  R    1:02:05      2 node1,node2
    12_[4-9%2]      main crazy|na    alice PD       0:00      1 (Resources)
             9      main     a\tb    alice  F       0:02      1 (NonZeroExitCode)
    ");
    insta::assert_snapshot!(shown(&["-h", "-o", "%i|%T|%l|%r"], queue()), @"
    7|RUNNING|1:00:00|None
    12_[4-9%2]|PENDING|UNLIMITED|Resources
    9|FAILED|1:00:00|NonZeroExitCode
    ");
}

#[test]
fn the_parsable_form_can_be_taken_apart_whatever_a_name_holds() {
    insta::assert_snapshot!(shown(&["--parsable"], queue()), @r"
    id|name|user|account|pool|state|reason|node_count|nodes|cpus|mem_mib|gpu_count|priority|submitted_at|started_at|ended_at|run_s|time_limit_s|exit_code|signal
    7|train|alice||main|running|None|2|node1,node2|1|1024|0|1000|2026-11-30T14:00:00Z|2026-11-30T14:00:01Z||3725|3600||
    12_[4-9%2]|crazy\|name|alice||main|pending|Unschedulable|1||1|1024|0|5|2026-11-30T14:00:00Z||||||
    9|a\tb|alice||main|failed|NonZeroExitCode|1||1|1024|0|1000|2026-11-30T14:00:00Z|||2|3600|3|
    ");
    insta::assert_snapshot!(shown(&["--parsable", "-h", "-o", "id,name"], queue()), @r"
    7|train
    12_[4-9%2]|crazy\|name
    9|a\tb
    ");
}

#[test]
fn jobs_are_sorted_by_numbers_as_numbers() {
    let first = |sort: &str| {
        shown(&["-h", "-o", "job_id", "-S", sort], queue()).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(first("id"), "7 9 12");
    assert_eq!(first("-id"), "12 9 7");
    assert_eq!(first("-p,i"), "7 9 12");
    assert_eq!(first("priority,-id"), "12 9 7");
    assert_eq!(first("%t,id"), "12 7 9");
}

#[test]
fn what_is_no_column_is_refused_with_the_nearest() {
    let message = |words: &[&str]| {
        let args = BqArgs::try_parse_from([&["bq"], words].concat()).unwrap();
        let error = render(&args, &body(vec![]), None).err().expect("refused").error;
        format!("{}\nhint: {}", error.message, error.hint.unwrap())
    };
    insta::assert_snapshot!(message(&["-o", "id,stat"]), @r#"
    --format: there is no column "stat"
    hint: "state" is one; bq(1) lists all
    "#);
    insta::assert_snapshot!(message(&["-o", "%i %Z"]), @"
    --format: %Z is not supported
    hint: there are %i %A %F %K %j %u %a %P %T %t %r %R %N %D %c %C %m %d %b %Q %M %l %L %V %S %e %k
    ");
    insta::assert_snapshot!(message(&["-o", "%i %.18"]), @r#"
    --format: "%i %.18" ends in an unfinished field
    hint: a field is %[[.]WIDTH]LETTER, such as %.18i
    "#);
    insta::assert_snapshot!(message(&["-S", "colour"]), @r#"
    --sort: there is no column "colour"
    hint: there are id, job_id, array_job_id, task, name, user, tenant, account, pool, state, slurm_state, st, reason, slurm_reason, nodelist_reason, nodelist_slurm_reason, nodes, node_count, cpus, cpus_total, mem_mib, mem, disk_mib, disk, gpu_count, gpu_type, gpus, tres_per_node, priority, time, time_limit, time_left, run_s, time_limit_s, submitted_at, begin_at, started_at, ended_at, submit_time, start_time, end_time, exit_code, signal, attempt, comment
    "#);
}

#[test]
fn filters_become_a_query() {
    let query =
        |words: &[&str]| path("/v1/jobs", &BqArgs::try_parse_from([&["bq"], words].concat()).unwrap());
    assert_eq!(query(&[]).unwrap(), "/v1/jobs");
    assert_eq!(
        query(&["-t", "PD,R", "-u", "a,b", "-r"]).unwrap(),
        "/v1/jobs?states=pending%2Crunning%2Cbooked&users=a%2Cb&tasks=true"
    );
    assert_eq!(
        query(&["-j", "12,13_[1,3-4],14_2", "-t", "ALL"]).unwrap(),
        "/v1/jobs?ids=12%2C13_%5B1%2C3-4%5D%2C14_2&states=all"
    );
    assert_eq!(query(&["-j", "x"]).unwrap_err().exit_code(), 2);
    assert!(
        BqArgs::try_parse_from(["bq", "-t", "RUNNIN"]).unwrap_err().to_string().contains("unknown state")
    );
}

#[test]
fn the_brief_list_shows_the_same_in_every_column_that_asks_for_it() {
    for kind in columns::all().iter().filter(|kind| kind.brief()) {
        for words in
            [&["-o", kind.name][..], &["-o", "id", "-S", kind.name], &["--parsable", "-o", kind.name]]
        {
            let args = BqArgs::try_parse_from([&["bq"], words].concat()).unwrap();
            let layout = Layout::of(&args).unwrap();
            assert!(layout.brief(), "{words:?}");
            let jobs = queue().into_iter().map(BriefJob::from).collect();
            let brief = serde_json::to_vec(&BriefList { jobs, truncated: true }).unwrap();
            let shown = layout.render(&args, &brief, None).unwrap();
            assert_eq!(shown.text, render(&args, &body(queue()), None).unwrap().text, "{words:?}");
            assert!(shown.truncated);
        }
    }
}

#[test]
fn a_list_is_brief_where_nothing_shown_or_sorted_by_needs_more() {
    let brief = |words: &[&str]| {
        Layout::of(&BqArgs::try_parse_from([&["bq"], words].concat()).unwrap()).unwrap().brief()
    };
    for words in [&[][..], &["-l"], &["-o", "%.18i %.9P %t %R"], &["-S", "-t"]] {
        assert!(brief(words), "{words:?}");
    }
    for words in
        [&["--parsable"][..], &["-o", "id,comment"], &["-o", "%i %k"], &["-S", "priority"], &["-S", "V"]]
    {
        assert!(!brief(words), "{words:?}");
    }
}

#[test]
fn slurms_options_that_are_not_ours_are_refused_by_name() {
    for line in ["bq --start", "bq -i 5", "bq --iterate=5", "bq -O jobid", "bq --yaml", "bq -s"] {
        let matches = args::parser().try_get_matches_from(line.split(' ')).expect(line);
        assert!(
            args::refuse(&matches).unwrap_err().error.message.ends_with("is not supported yet"),
            "{line}"
        );
    }
    args::parser().debug_assert();
}

#[test]
fn a_job_is_shown_in_full() {
    let mut running = queue().remove(0);
    running.signal = Some(9);
    running.gpu_count = 2;
    running.gpu_type = Some("a100-80gb".to_owned());
    running.detail = Some(Box::new(JobDetail {
        uid: 1000,
        gid: 1000,
        args: vec!["a b".to_owned()],
        chdir: "/home/alice".to_owned(),
        output: "/home/alice/slurm-7.out".to_owned(),
        error: "/home/alice/slurm-7.out".to_owned(),
        input: "/dev/null".to_owned(),
        submit_host: "login".to_owned(),
        requeue: true,
        usage: Some(Usage { cpu_us: 1_500_000, mem_peak_bytes: Some(3 << 20), oom_kills: 1 }),
        script: None,
    }));
    let text = record::record(&running);
    // Times are local: their lines are looked at apart.
    let text: String = text
        .lines()
        .filter(|l| !l.starts_with("Submitted") && !l.starts_with("Started"))
        .map(|l| format!("{l}\n"))
        .collect();
    insta::assert_snapshot!(text, @"
    Job:          7
    Name:         train
    User:         alice (1000), tenant default
    Pool:         main
    State:        running
    Exit:         signal 9 (KILL)
    Asks for:     1 CPU, 1G, 2 a100-80gb GPUs on each of 2 nodes
    Nodes:        node1,node2
    Priority:     1000
    Ran:          01:02:05
    Time limit:   01:00:00
    Directory:    /home/alice
    Arguments:    'a b'
    Output:       /home/alice/slurm-7.out
    From:         login
    Requeue:      yes
    Used:         1.500 s of CPU, 3.0 MiB of memory at most, one process killed for memory
    ");
}

#[test]
fn an_array_and_its_waiting_are_explained_with_both_numbers() {
    let mut array = queue().remove(1);
    array.array = Some(ArrayView {
        indices: "0-9".parse().unwrap(),
        pending: "4-9".parse().unwrap(),
        throttle: Some(2),
    });
    array.reasons[0].checks = vec![
        Check { place: "node1".to_owned(), resource: "cpus".to_owned(), asked: 8, free: 2, total: 8 },
        Check { place: "node2".to_owned(), resource: "gpus".to_owned(), asked: 1, free: 0, total: 0 },
    ];
    insta::assert_snapshot!(record::why(&array), @"
    job 12_[4-9%2] (crazy|name) is pending
      Unschedulable: no node has 8 CPUs free
        node1: cpus asked 8, free 2, in all 8
        node2: gpus asked 1, free 0, in all 0, so it never fits here
    ");
    assert!(record::record(&array).contains("Array:        0-9, at most 2 at once\nNot started:  4-9\n"));
}

#[test]
fn a_terminal_gets_a_table_that_fits() {
    let args = BqArgs::try_parse_from(["bq"]).unwrap();
    let mut jobs = queue();
    jobs[0].name = "a name that is much too long for any terminal of this width".to_owned();
    let body = body(jobs);
    let narrow = render(&args, &body, Some(60)).unwrap().text;
    assert!(narrow.lines().all(|line| crate::text::width(line) <= 60), "{narrow}");
    let piped = render(&args, &body, None).unwrap().text;
    assert!(piped.contains("much too long for any terminal of this width"));
}

#[test]
fn the_manual_names_every_column() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../man/bq.1.in")).unwrap();
    let words: Vec<&str> = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    for kind in columns::all() {
        assert!(words.contains(&kind.name), "{}", kind.name);
        assert!(kind.letter.is_none_or(|letter| page.contains(&format!("%{letter}"))), "{}", kind.name);
    }
}
