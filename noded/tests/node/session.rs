//! The session: what is sent again, what is forgotten, what a whole target does.

use crate::fake_ctld::FakeCtld;
use crate::site::Site;
use noded::address::Address;
use noded::credentials::Place;
use proto::session::{EndCause, Hello, Inventory, PROTOCOL};

#[tokio::test]
async fn the_node_says_who_it_is_and_what_it_has() {
    let site = Site::new().await;
    let hello = site.ctld.book(|b| b.hellos[0].clone());
    assert_eq!((hello.protocol, hello.node.as_str(), hello.pool.as_str()), (PROTOCOL, "n1", "main"));
    assert_eq!((hello.inventory.cpus, hello.inventory.mem_mib), (64, 65536));
    assert!(["v1", "v2", "hybrid"].contains(&hello.cgroup_mode.as_str()), "{hello:?}");
    assert_eq!(hello.boot_id.len(), 36);
}

#[tokio::test]
async fn what_is_not_acknowledged_is_reported_again_and_what_is_acknowledged_forgotten() {
    let mut site = Site::new().await;
    site.ctld.book(|b| b.deaf = true);
    let (id, first) = site.script("exit 5").await;
    site.kill_noded();
    site.ctld.book(|b| b.ended.clear());
    site.start().await;
    let again = site.ctld.ended(id).await;
    assert_eq!((again.cause, again.exit_code, &again.usage), (first.cause, first.exit_code, &first.usage));
    assert!(again.age_us >= first.age_us);
    site.ctld.book(|b| {
        b.deaf = false;
        b.ended.clear();
    });
    site.kill_noded();
    site.start().await;
    site.ctld.ended(id).await;
    // Acknowledged now; one that comes after is known to follow it.
    site.script("true").await;
    site.clean().await;
    site.ctld.book(|b| b.ended.clear());
    site.kill_noded();
    // The controller asks for it again, having lost its memory: it ran, and does not run again.
    site.ctld.book(|b| b.started.clear());
    site.start().await;
    assert_eq!(site.ctld.ended(id).await.cause, EndCause::Refused);
}

#[tokio::test]
async fn a_whole_target_ends_what_it_does_not_name_and_misses_what_is_not_here() {
    let mut site = Site::new().await;
    let (kept, dropped) = (site.job("sleep 3000"), site.job("sleep 3000"));
    let (kept_id, dropped_id) = (kept.allocation_id, dropped.allocation_id);
    site.ctld.run(vec![kept, dropped]);
    site.ctld.started(kept_id).await;
    site.ctld.started(dropped_id).await;
    site.kill_noded();
    site.ctld.book(|b| {
        b.wanted.remove(&dropped_id);
        b.started.remove(&dropped_id);
        b.started.insert(777, Default::default());
    });
    site.start().await;
    assert_eq!(site.ctld.ended(dropped_id).await.cause, EndCause::Stopped);
    assert_eq!(site.ctld.ended(777).await.cause, EndCause::Lost);
    assert!(site.ctld.book(|b| !b.ended.contains_key(&kept_id)));
    assert!(!site.processes(kept_id).is_empty());
    site.ctld.stop(kept_id, 0);
    site.ctld.ended(kept_id).await;
}

#[tokio::test]
async fn an_assignment_that_comes_twice_runs_once() {
    let mut site = Site::new().await;
    let job = site.job("echo ran >> ran; until [ -e go ]; do sleep 0.02; done");
    let id = job.allocation_id;
    site.ctld.run(vec![job.clone()]);
    site.ctld.run(vec![job.clone(), job.clone()]);
    site.file(&site.path("alice/ran")).await;
    site.ctld.run(vec![job]);
    std::fs::write(site.path("alice/go"), "").unwrap();
    assert_eq!(site.ctld.ended(id).await.exit_code, Some(0));
    assert_eq!(std::fs::read_to_string(site.path("alice/ran")).unwrap(), "ran\n");
}

#[tokio::test]
async fn a_stop_of_what_was_never_here_is_answered() {
    let site = Site::new().await;
    site.ctld.stop(4711, 5);
    let ended = site.ctld.ended(4711).await;
    assert_eq!((ended.cause, ended.started_age_us), (EndCause::Stopped, None));
}

#[tokio::test]
async fn a_second_noded_on_the_same_state_or_name_is_refused() {
    let site = Site::new().await;
    let output = site.command().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("is in use by another noded"), "{said}");
    let config = site.path("noded.toml");
    let text = std::fs::read_to_string(&config).unwrap().replace("/state\"", "/other\"");
    std::fs::write(site.path("other.toml"), text).unwrap();
    let program = site.command().get_program().to_owned();
    let output =
        std::process::Command::new(program).arg("--config").arg(site.path("other.toml")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("another noded runs here under the name \"n1\""),
        "{said}"
    );
}

#[tokio::test]
async fn the_command_line_says_what_is_wrong_with_a_configuration() {
    let site = Site::prepare();
    let program = site.command().get_program().to_owned();
    let run = |args: &[&str]| {
        let output = std::process::Command::new(&program).args(args).output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout),
        )
    };
    let config = site.path("bad.toml");
    std::fs::write(&config, "poool = \"x\"\n").unwrap();
    let shown = config.to_str().unwrap();
    let (code, said) = run(&["--config", shown, "--check-config"]);
    assert_eq!(
        (code, said),
        (Some(2), format!("noded: {shown}:1: unknown key \"poool\": did you mean \"pool\"?\n"))
    );
    std::fs::write(&config, "").unwrap();
    assert_eq!(run(&["--config", shown, "--check-config"]), (Some(0), String::new()));
    assert!(run(&["--version"]).1.starts_with("noded "));
}

#[tokio::test]
async fn of_several_controllers_the_next_is_turned_to_when_one_is_away_ends_the_session_or_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let sockets = ["none", "a", "b"].map(|name| dir.path().join(name));
    let (a, b) = (FakeCtld::start(&sockets[1]), FakeCtld::start(&sockets[2]));
    let place = Place::below(dir.path());
    let hello = Hello {
        protocol: PROTOCOL,
        node: "n1".to_owned(),
        pool: "main".to_owned(),
        version: String::new(),
        boot_id: String::new(),
        journal_id: String::new(),
        cgroup_mode: String::new(),
        inventory: Inventory { cpus: 1, mem_mib: 64, disk_mib: 0, gpus: Vec::new() },
    };
    let keeping =
        tokio::spawn(noded::session::keep(sockets.map(Address::Unix).to_vec(), place, hello, |_| {}));
    a.until("the first that is there has the session", |b| (b.hellos.len() == 1).then_some(())).await;
    assert_eq!(b.book(|b| b.hellos.len()), 0);
    a.book(|b| {
        b.refuse = Some("it is stopping".to_owned());
        b.end_session();
    });
    b.until("the next has it", |b| (b.hellos.len() == 1).then_some(())).await;
    b.book(|b| b.end_session());
    b.until("it comes back to the one that takes it", |b| (b.hellos.len() == 2).then_some(())).await;
    assert_eq!(a.book(|b| b.hellos.len()), 2, "asked on the way, and refused");
    keeping.abort();
}
