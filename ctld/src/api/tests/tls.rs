//! The nodes' door over real TLS: who gets in, who does not, and what a stranger can hold up.

use super::door::{Answer, Door, PATIENCE};
use crate::api::{Limits, serve_nodes};
use crate::node_tls::NodeTls;
use crate::pki;
use crate::store::node_certificates::authorities;
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use proto::session::{ControllerMessage, Hello, Inventory, NodeMessage, PROTOCOL};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use sqlx::PgPool;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};

/// A controller with a door for nodes.
struct Site {
    door: Door,
    address: SocketAddr,
    db: PgPool,
}

/// A node: its key, and its certificate once it has one.
struct Node {
    key: KeyPair,
    certificate: Option<String>,
}

impl Node {
    fn new() -> Node {
        Node { key: KeyPair::generate().unwrap(), certificate: None }
    }

    fn request(&self) -> String {
        CertificateParams::default().serialize_request(&self.key).unwrap().pem().unwrap()
    }
}

impl Site {
    async fn open(db: PgPool) -> Site {
        Site::open_within(db, Limits::default()).await
    }

    async fn open_within(db: PgPool, limits: Limits) -> Site {
        let door = Door::open(db.clone()).await;
        door.app.clock.anchor_to(&db).await.unwrap();
        let tls = Arc::new(NodeTls::prepare(&door.app, vec!["localhost".into()]).await.unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve_nodes(door.app.clone(), listener, tls, limits));
        Site { door, address, db }
    }

    /// A join token's secret.
    async fn secret(&self, node: Option<&str>, ttl_s: u64) -> String {
        let answer = self
            .door
            .ask("POST", "/v1/node-tokens", &json!({"node": node, "ttl_s": ttl_s}).to_string())
            .await;
        assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
        let token: proto::join_token::JoinToken = answer.json["token"].as_str().unwrap().parse().unwrap();
        let known = authorities(&self.db).await.unwrap();
        assert_eq!(token.fingerprint, known[0].fingerprint().unwrap());
        token.secret
    }

    async fn connect(&self, node: &Node) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        for authority in authorities(&self.db).await.unwrap() {
            roots.add(authority.der().unwrap()).unwrap();
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let config = match &node.certificate {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
                let key = PrivateKeyDer::try_from(node.key.serialize_der()).unwrap();
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Asks over a connection of its own; an error where TLS refuses the node.
    async fn ask(&self, node: &Node, method: &str, path: &str, body: Value) -> Result<Answer, String> {
        let stream = self.connect(node).await.map_err(|e| e.to_string())?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        tokio::spawn(connection);
        let request = Request::builder().method(method).uri(path).header("host", "ctld");
        let request = request.header("content-type", "application/json");
        let request = request.body(Full::<axum::body::Bytes>::from(body.to_string())).unwrap();
        let response = tokio::time::timeout(PATIENCE, sender.send_request(request)).await.unwrap();
        let response = response.map_err(|e| format!("{e:?}"))?;
        let status = response.status();
        let text =
            String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Answer { status, retry_after: None, position: None, text, json })
    }

    async fn join(&self, node: &Node, name: &str, secret: &str) -> Answer {
        let body = json!({"secret": secret, "node": name, "pool": "main", "request": node.request()});
        self.ask(node, "POST", "/v1/node-join", body).await.unwrap()
    }

    /// A node that has joined.
    async fn joined(&self, name: &str) -> Node {
        let mut node = Node::new();
        let answer = self.join(&node, name, &self.secret(None, 60).await).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        node.certificate = Some(answer.json["certificate"].as_str().unwrap().to_owned());
        node
    }

    /// Whether the node may renew, which needs a certificate that is good.
    async fn renew(&self, node: &Node) -> Result<Answer, String> {
        self.ask(node, "POST", "/v1/node-renewal", json!({"request": node.request()})).await
    }

    async fn session(&self, node: &Node, name: &str) -> Session {
        let stream = self.connect(node).await.unwrap();
        let (mut session, _) = client_async("ws://ctld/v1/node-session", stream).await.unwrap();
        let hello = NodeMessage::Hello(Hello {
            protocol: PROTOCOL,
            node: name.into(),
            pool: "main".into(),
            version: "test".into(),
            boot_id: "boot".into(),
            journal_id: "journal".into(),
            cgroup_mode: "v1".into(),
            inventory: Inventory { cpus: 1, mem_mib: 64, disk_mib: 0, gpus: vec![] },
        });
        session.send(Message::text(serde_json::to_string(&hello).unwrap())).await.unwrap();
        session
    }

    /// Days pass.
    async fn pass(&self, days: i32) {
        sqlx::raw_sql(
            "INSERT INTO compute_sim_clock (id, ts) VALUES (1, compute_now()) ON CONFLICT DO NOTHING;
             CREATE OR REPLACE FUNCTION compute_now() RETURNS timestamptz LANGUAGE sql STABLE
                 AS $$ SELECT ts FROM compute_sim_clock WHERE id = 1 $$",
        )
        .execute(&self.db)
        .await
        .unwrap();
        sqlx::query("UPDATE compute_sim_clock SET ts = ts + make_interval(days => $1)")
            .bind(days)
            .execute(&self.db)
            .await
            .unwrap();
        self.door.app.clock.anchor_to(&self.db).await.unwrap();
    }
}

type Session = WebSocketStream<TlsStream<TcpStream>>;

/// The next message, `None` at the session's end.
async fn next(session: &mut Session) -> Option<ControllerMessage> {
    loop {
        match tokio::time::timeout(PATIENCE, session.next()).await.expect("the controller says something") {
            Some(Ok(Message::Text(text))) => return Some(serde_json::from_str(&text).unwrap()),
            Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
            Some(Ok(_)) => {}
        }
    }
}

fn code(answer: &Answer) -> (u16, &str) {
    (answer.status.as_u16(), answer.error().0)
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_joined_has_its_session_and_is_known_as_disconnected_before(db: PgPool) {
    let site = Site::open(db).await;
    let node = site.joined("n1").await;
    let shown = site.door.get("/v1/nodes/n1").await.json;
    assert_eq!(shown["nodes"][0]["connection"], "disconnected");
    let mut session = site.session(&node, "n1").await;
    assert!(matches!(next(&mut session).await, Some(ControllerMessage::Welcome { .. })));
    assert_eq!(site.door.get("/v1/nodes/n1").await.json["nodes"][0]["connection"], "connected");
}

/// It was given up on before its machine was even set up: with a new token it has its time to come again.
#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_never_came_counts_from_its_newest_certificate(db: PgPool) {
    let site = Site::open(db.clone()).await;
    site.joined("n1").await;
    sqlx::query("UPDATE nodes SET unreachable_at = compute_now()").execute(&db).await.unwrap();
    crate::store::liveness::look(&db).await.unwrap();
    let n1 = async || site.door.get("/v1/nodes/n1").await.json["nodes"][0].clone();
    assert_eq!((&n1().await["connection"], &n1().await["eligible"]), (&json!("unreachable"), &json!(false)));
    let again = site.join(&Node::new(), "n1", &site.secret(Some("n1"), 60).await).await;
    assert_eq!(again.status, StatusCode::OK, "{again:?}");
    assert_eq!((&n1().await["connection"], &n1().await["eligible"]), (&json!("disconnected"), &json!(true)));
    assert!(crate::store::liveness::look(&db).await.unwrap().unreachable.is_empty(), "it has forty seconds");
}

#[sqlx::test(migrations = "../migrations")]
async fn without_a_certificate_only_joining_is_answered_and_users_are_not_served_at_all(db: PgPool) {
    let site = Site::open(db).await;
    let stranger = Node::new();
    assert_eq!(code(&site.renew(&stranger).await.unwrap()), (403, "PERMISSION_DENIED"));
    let session = site.ask(&stranger, "GET", "/v1/node-session", json!({})).await.unwrap();
    assert_eq!(code(&session), (403, "PERMISSION_DENIED"));
    let node = site.joined("n1").await;
    for path in ["/v1/jobs", "/v1/nodes", "/v1/node-tokens", "/metrics"] {
        for who in [&stranger, &node] {
            assert_eq!(
                code(&site.ask(who, "GET", path, json!({})).await.unwrap()),
                (404, "NOT_FOUND"),
                "{path}"
            );
        }
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_certificate_of_another_authority_does_not_pass_tls(db: PgPool) {
    let site = Site::open(db).await;
    let mut node = Node::new();
    let now = site.door.app.clock.now().unwrap();
    // Of the same name and number as ours.
    let foreign = pki::make_authority(1, &site.door.app.config.cluster, now).unwrap();
    let request = pki::read_request(&node.request()).unwrap();
    let issued = foreign.sign_node(&request, "n1", now, chrono::TimeDelta::days(1)).unwrap();
    node.certificate = Some(issued.certificate);
    let error = site.renew(&node).await.unwrap_err();
    assert!(error.contains("Alert"), "{error}");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_certificate_of_ours_that_the_database_does_not_know_is_refused(db: PgPool) {
    let site = Site::open(db.clone()).await;
    let mut node = Node::new();
    let now = site.door.app.clock.now().unwrap();
    let ours = authorities(&db).await.unwrap().remove(0);
    let request = pki::read_request(&node.request()).unwrap();
    node.certificate =
        Some(ours.sign_node(&request, "n1", now, chrono::TimeDelta::days(1)).unwrap().certificate);
    assert_eq!(code(&site.renew(&node).await.unwrap()), (403, "PERMISSION_DENIED"));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_cannot_pass_for_another(db: PgPool) {
    let site = Site::open(db).await;
    let (node, other) = (site.joined("n1").await, site.joined("n2").await);
    let mut own = site.session(&other, "n2").await;
    assert!(matches!(next(&mut own).await, Some(ControllerMessage::Welcome { .. })));
    let mut session = site.session(&node, "n2").await;
    let Some(ControllerMessage::Refused { message }) = next(&mut session).await else {
        panic!("not refused")
    };
    assert!(message.contains("node \"n1\"'s") && message.contains("\"n2\""), "{message}");
    assert_eq!(site.door.get("/v1/nodes/n2").await.json["nodes"][0]["connection"], "connected");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_certificate_is_good_until_its_end_by_the_databases_clock_and_is_renewed_before(db: PgPool) {
    let site = Site::open(db).await;
    let mut node = site.joined("n1").await;
    let first = node.certificate.clone().unwrap();
    let again = site.renew(&node).await.unwrap();
    assert_eq!(
        again.json["certificate"], first,
        "a fresh one is not renewed: the last answer may have been lost"
    );
    site.pass(25).await;
    let renewed = site.renew(&node).await.unwrap().json["certificate"].as_str().unwrap().to_owned();
    assert_ne!(renewed, first);
    assert!(site.renew(&node).await.is_ok(), "the old one stays good");
    site.pass(6).await;
    let error = site.renew(&node).await.unwrap_err();
    assert!(error.contains("CertificateExpired"), "{error}");
    node.certificate = Some(renewed);
    assert_eq!(site.renew(&node).await.unwrap().status, StatusCode::OK);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_a_controller_shows_is_valid_for_a_node_whose_clock_is_a_day_behind(db: PgPool) {
    let site = Site::open(db.clone()).await;
    let ours = authorities(&db).await.unwrap().remove(0);
    let now = site.door.app.clock.now().unwrap();
    let shown = ours.sign_server(&["localhost".to_owned()], now).unwrap();
    for der in &shown.chain {
        let (_, parsed) = x509_parser::parse_x509_certificate(der).unwrap();
        let from = parsed.validity().not_before.timestamp();
        assert!((now.timestamp() - from - 86_400).abs() < 60, "valid from {from}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_revoked_certificate_closes_its_session_and_is_refused_from_then_on(db: PgPool) {
    let site = Site::open(db).await;
    let node = site.joined("n1").await;
    let mut session = site.session(&node, "n1").await;
    assert!(matches!(next(&mut session).await, Some(ControllerMessage::Welcome { .. })));
    let revoked = site.door.ask("POST", "/v1/nodes/n1/revoke", "").await;
    assert_eq!(revoked.status, StatusCode::OK, "{revoked:?}");
    assert!(revoked.json["certificates"][0]["revoked_by"].is_string());
    while next(&mut session).await.is_some() {}
    assert_eq!(code(&site.renew(&node).await.unwrap()), (403, "PERMISSION_DENIED"));
    let refused = site.ask(&node, "GET", "/v1/node-session", json!({})).await.unwrap();
    assert!(refused.error().1.contains("revoked"), "{refused:?}");
    assert_eq!(site.door.get("/v1/nodes/n1").await.json["nodes"][0]["connection"], "disconnected");
    // With a token for it, the same node joins again, with another key.
    let anew = Node::new();
    let unnamed = site.secret(None, 60).await;
    assert_eq!(code(&site.join(&anew, "n1", &unnamed).await), (409, "CONFLICT"));
    let answer = site.join(&anew, "n1", &site.secret(Some("n1"), 60).await).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    // What was refused has not used the other token up.
    assert_eq!(site.join(&anew, "n9", &unnamed).await.status, StatusCode::OK);
    if super::door::can_be_nobody() {
        let refused = site.door.ask_as_nobody("POST", "/v1/nodes/n1/revoke", "").await;
        assert_eq!(code(&refused), (403, "PERMISSION_DENIED"));
        let refused = site.door.ask_as_nobody("POST", "/v1/node-tokens", "{\"ttl_s\": 60}").await;
        assert_eq!(code(&refused), (403, "PERMISSION_DENIED"));
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_token_is_good_once_for_its_node_and_for_its_time(db: PgPool) {
    let site = Site::open(db).await;
    let (node, other) = (Node::new(), Node::new());
    let secret = site.secret(Some("n1"), 60).await;
    assert_eq!(code(&site.join(&node, "n2", &secret).await), (403, "PERMISSION_DENIED"));
    let first = site.join(&node, "n1", &secret).await;
    assert_eq!(first.status, StatusCode::OK);
    let again = site.join(&node, "n1", &secret).await;
    assert_eq!(again.json["certificate"], first.json["certificate"], "the answer may have been lost");
    let refused = site.join(&other, "n1", &secret).await;
    assert_eq!(code(&refused), (403, "PERMISSION_DENIED"));
    assert!(refused.error().1.contains("has been used"), "{refused:?}");
    assert_eq!(code(&site.join(&other, "n3", &"0".repeat(64)).await), (403, "PERMISSION_DENIED"));
    let late = site.secret(None, 60).await;
    site.pass(1).await;
    let refused = site.join(&other, "n3", &late).await;
    assert!(refused.error().1.contains("expired"), "{refused:?}");
    let none: i64 = sqlx::query_scalar("SELECT count(*) FROM nodes WHERE name <> 'n1'")
        .fetch_one(&site.db)
        .await
        .unwrap();
    assert_eq!(none, 0, "a refused join leaves no node");
}

#[sqlx::test(migrations = "../migrations")]
async fn of_two_who_use_a_token_at_once_one_joins(db: PgPool) {
    let site = Site::open(db).await;
    for round in 0..8 {
        let secret = site.secret(None, 60).await;
        let nodes = [Node::new(), Node::new()];
        let names = [format!("a{round}"), format!("b{round}")];
        let (one, other) =
            tokio::join!(site.join(&nodes[0], &names[0], &secret), site.join(&nodes[1], &names[1], &secret));
        let mut statuses = [one.status.as_u16(), other.status.as_u16()];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 403], "{one:?} {other:?}");
    }
    let counts: (i64, i64) =
        sqlx::query_as("SELECT (SELECT count(*) FROM nodes), (SELECT count(*) FROM node_certificates)")
            .fetch_one(&site.db)
            .await
            .unwrap();
    assert_eq!(counts, (8, 8));
}

#[sqlx::test(migrations = "../migrations")]
async fn two_controllers_that_begin_at_once_have_one_authority(db: PgPool) {
    let doors = [Door::open(db.clone()).await, Door::over(db.clone(), Limits::default())];
    for door in &doors {
        door.app.clock.anchor_to(&db).await.unwrap();
    }
    let prepare = |door: &Door| {
        let app = door.app.clone();
        async move { NodeTls::prepare(&app, vec!["localhost".into()]).await.map(drop) }
    };
    for _ in 0..20 {
        let (one, other) = tokio::join!(tokio::spawn(prepare(&doors[0])), tokio::spawn(prepare(&doors[1])));
        one.unwrap().unwrap();
        other.unwrap().unwrap();
        assert_eq!(authorities(&db).await.unwrap().len(), 1);
        sqlx::query("DELETE FROM certificate_authorities").execute(&db).await.unwrap();
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn plain_text_and_a_stalled_handshake_are_closed_and_hold_nobody_up(db: PgPool) {
    let limits = Limits { connections: 2, handshake_within: Duration::from_millis(300), ..Limits::default() };
    let site = Site::open_within(db, limits).await;
    // A stalled one and a plain one, which take all the room there is.
    let mut stalled = TcpStream::connect(site.address).await.unwrap();
    let mut plain = TcpStream::connect(site.address).await.unwrap();
    plain.write_all(b"GET /v1/node-session HTTP/1.1\r\nhost: ctld\r\n\r\n").await.unwrap();
    // A third waits for its turn, and gets it.
    let joining = site.joined("n1");
    let (_, closed) = tokio::join!(joining, async {
        let mut answers = Vec::new();
        for stream in [&mut stalled, &mut plain] {
            let mut answer = Vec::new();
            let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
            assert!(read.is_ok(), "still open");
            answers.push(answer);
        }
        answers
    });
    assert!(closed.iter().all(|answer| !answer.starts_with(b"HTTP")), "{closed:?}");
}
