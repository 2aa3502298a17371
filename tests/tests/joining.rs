//! A node on another machine, as far as one machine can show it: over TCP and TLS, from the token to a job's end.

use noded::address::Address;
use noded::credentials::Place;
use noded::renewal::renew;
use proto::State;
use proto::api::Connection;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use tests::programs::program;
use tests::{Cluster, ClusterOptions, SOON, User, until};

/// A port that nobody has just now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A controller that listens for nodes at this port, whose one node is configured to come over the network.
fn listening(port: u16) -> Cluster {
    let ctld = format!("listen = \"127.0.0.1:{port}\"\nlisten_names = [\"localhost\"]\n");
    let cluster = Cluster::without_nodes(ClusterOptions { ctld, ..ClusterOptions::default() });
    let config = cluster.dir().join("n1.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace(&cluster.server(), &format!("https://localhost:{port}"))).unwrap();
    cluster
}

fn join(cluster: &Cluster, controller: &str, token: &Path) -> Output {
    let config = cluster.dir().join("n1.toml");
    let mut command = Command::new(program("noded"));
    command.args(["join", "--controller", controller, "--token-file"]).arg(token);
    command.arg("--config").arg(config).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_node_joins_with_a_token_runs_jobs_over_tls_renews_and_is_shut_out_when_it_is_revoked() {
    let port = free_port();
    let mut cluster = listening(port);
    let (root, user) = (User::root(), User::one());
    let controller = format!("https://localhost:{port}");
    let token = cluster.dir().join("token");
    let ask = |cluster: &Cluster, words: &[&str]| {
        let ran = cluster.run(&root, "bctl", &[&["node", "token"], words].concat());
        std::fs::write(&token, ran.ok()).unwrap();
    };

    // A token of another cluster's, or one that was tampered with, reaches nobody.
    ask(&cluster, &[]);
    let good = std::fs::read_to_string(&token).unwrap();
    std::fs::write(&token, format!("{}{}\n", &good.trim_end()[..good.trim_end().len() - 64], "0".repeat(64)))
        .unwrap();
    let refused = join(&cluster, &controller, &token);
    assert!(!refused.status.success() && said(&refused).contains("another authority"), "{}", said(&refused));
    std::fs::write(&token, &good).unwrap();

    let joined = join(&cluster, &controller, &token);
    assert!(joined.status.success(), "{}", said(&joined));
    assert!(said(&joined).contains(&format!("set controller = \"{controller}\"")), "{}", said(&joined));
    assert_eq!(cluster.node("n1").connection, Connection::Disconnected);
    let again = join(&cluster, &controller, &token);
    assert!(said(&again).contains("has joined already"), "{}", said(&again));

    cluster.start_node(0);
    cluster.nodes_connected();
    let id = cluster.submit(&user, &["-o", "out"], "echo over the network");
    assert_eq!(cluster.ended(id).state, State::Completed);
    assert_eq!(cluster.read(&user, "out"), "over the network\n");
    let shown = cluster.run(&user, "bctl", &["node", "certificates", "--noheader"]);
    assert!(shown.ok().starts_with("n1 "), "{}", shown.stdout);

    // The daemon's own way to renew, early: as if a quarter of the certificate's time were over.
    cluster.sql("UPDATE node_certificates SET issued_at = issued_at - interval '10 days'");
    let place = Place::below(&cluster.dir().join("nodes/n1"));
    let certificate = || std::fs::read_to_string(place.dir().join("cert.pem")).unwrap();
    let before = certificate();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(renew(&[Address::parse(&controller).unwrap()], &place)).unwrap();
    assert_ne!(certificate(), before);
    assert_eq!(cluster.node("n1").connection, Connection::Connected, "the session goes on");
    cluster.kill_node(0);
    cluster.start_node(0);
    cluster.nodes_connected();

    cluster.run(&user, "bctl", &["node", "revoke", "n1"]).refused(5);
    cluster.run(&root, "bctl", &["node", "revoke", "n1"]).ok();
    until("the session is closed", SOON, || {
        (cluster.node("n1").connection == Connection::Disconnected).then_some(())
    });
    let log = cluster.dir().join("log/n1.log");
    until("the daemon says why", SOON, || {
        std::fs::read_to_string(&log).unwrap().contains("certificate is revoked").then_some(())
    });

    // With its old directory out of the way and a token for it, the same node comes back.
    cluster.kill_node(0);
    std::fs::remove_dir_all(cluster.dir().join("nodes/n1/tls")).unwrap();
    ask(&cluster, &["--node", "n1", "--ttl", "5m"]);
    let joined = join(&cluster, &controller, &token);
    assert!(joined.status.success(), "{}", said(&joined));
    cluster.start_node(0);
    cluster.nodes_connected();
}
