use super::connect::CONNECT_RETRY;
use super::*;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Instant;

/// What the pretended controller does with a request.
enum Act {
    /// Answers and keeps the connection.
    Say(&'static str),
    /// Reads the request and hangs up.
    HangUp,
    /// Reads the request and never answers.
    Silence,
}
use Act::{HangUp, Say, Silence};

/// A controller that follows a script, one act a request, and gives back the bodies it was sent.
fn controller(path: &Path, acts: Vec<Act>) -> std::thread::JoinHandle<Vec<String>> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let mut bodies = Vec::new();
        let mut open = None;
        let mut kept = Vec::new();
        for act in acts {
            let mut stream = match open.take() {
                Some(stream) => stream,
                None => BufReader::new(listener.accept().unwrap().0),
            };
            bodies.push(read_request(&mut stream));
            match act {
                Say(answer) => {
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                    open = Some(stream);
                }
                HangUp => drop(stream),
                Silence => kept.push(stream),
            }
        }
        bodies
    })
}

fn read_request(stream: &mut impl BufRead) -> String {
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

fn answer(status: &str, headers: &str, body: &str) -> &'static str {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()).leak()
}

/// Posts `body` to a controller that follows the script.
fn post(acts: Vec<Act>, total: Duration) -> (Result<Bytes, Fail>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let thread = controller(&socket, acts);
    let mut client = Client::new(Servers::one(socket, "a test"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let body = Bytes::from_static(b"{\"key\":\"k\"}");
    let result = runtime.block_on(retry::post(&mut client, "/v1/jobs", body, "k", total));
    (result, thread.join().unwrap())
}

#[test]
fn an_answer_comes_back_whole_and_the_connection_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let ok = answer("200 OK", "", "{\"jobs\":[]}");
    let thread = controller(&socket, vec![Say(ok), Say(ok)]);
    let mut client = Client::new(Servers::one(socket, "a test"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for _ in 0..2 {
            assert_eq!(client.get("/v1/jobs").await.unwrap(), "{\"jobs\":[]}");
        }
    });
    assert_eq!(thread.join().unwrap().len(), 2);
}

#[test]
fn a_dropped_reply_is_asked_again_with_the_same_body() {
    let created = answer("201 Created", "", "{\"id\":7,\"replayed\":true}");
    let (result, bodies) = post(vec![HangUp, HangUp, Say(created)], retry::RETRY_TIME);
    assert_eq!(result.unwrap(), "{\"id\":7,\"replayed\":true}");
    assert_eq!(bodies, vec!["{\"key\":\"k\"}"; 3]);
}

#[test]
fn a_busy_controller_is_asked_again_and_a_lasting_refusal_is_not() {
    let busy = answer(
        "429 Too Many Requests",
        "retry-after: 0\r\n",
        r#"{"error":{"code":"OVERLOADED","message":"busy","retryable":true}}"#,
    );
    let refused = answer(
        "409 Conflict",
        "",
        r#"{"error":{"code":"QUOTA_EXCEEDED","message":"full","retryable":false}}"#,
    );
    let (result, bodies) = post(vec![Say(busy), Say(refused)], retry::RETRY_TIME);
    let fail = result.unwrap_err();
    assert_eq!((fail.error.code, fail.exit_code()), (ErrorCode::QuotaExceeded, 6));
    assert_eq!(bodies.len(), 2);
}

#[test]
fn retry_after_beyond_the_time_left_ends_the_tries() {
    let busy = answer(
        "503 Service Unavailable",
        "retry-after: 3600\r\n",
        r#"{"error":{"code":"UNAVAILABLE","message":"the database is away","retryable":true}}"#,
    );
    let (result, _) = post(vec![Say(busy)], Duration::from_secs(30));
    let fail = result.unwrap_err();
    assert_eq!((fail.error.code, fail.exit_code()), (ErrorCode::Unavailable, 3));
    assert!(fail.error.retryable);
}

#[test]
fn giving_up_after_the_request_was_sent_says_that_the_outcome_is_unknown() {
    let (result, _) = post(vec![Silence], Duration::from_millis(100));
    let fail = result.unwrap_err();
    assert_eq!((fail.error.code, fail.exit_code()), (ErrorCode::OutcomeUnknown, 7));
    assert_eq!(fail.idempotency_key.as_deref(), Some("k"));
    assert!(fail.error.hint.unwrap().contains("--idempotency-key=k"));
}

#[test]
fn no_socket_is_unreachable_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut client = Client::new(Servers::one(dir.path().join("none"), "a test"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let started = Instant::now();
    let fail = runtime.block_on(client.get("/v1/jobs")).unwrap_err();
    assert_eq!(fail.exit_code(), 3);
    assert!(fail.error.message.ends_with("(from a test): no such file or directory"), "{fail}");
    assert!(started.elapsed() < CONNECT_RETRY);
}

#[test]
fn an_error_without_our_body_is_still_an_error() {
    let odd =
        Answer { status: StatusCode::NOT_FOUND, retry_after: None, body: Bytes::from_static(b"<html>") };
    assert_eq!(odd.error().code, ErrorCode::Internal);
    assert!(odd.success().is_err());
    assert!(decode::<ErrorBody>(b"{\"id\":7}").is_err());
}

#[test]
fn what_goes_into_a_query_is_escaped() {
    assert_eq!(escape("a b&c=d/é_[1-3]"), "a%20b%26c%3Dd%2F%C3%A9_%5B1-3%5D");
}

/// Two controllers, each following its script, and a client of both.
fn two(
    first: Vec<Act>,
    second: Vec<Act>,
) -> (tempfile::TempDir, [std::thread::JoinHandle<Vec<String>>; 2], Client) {
    let dir = tempfile::tempdir().unwrap();
    let sockets = vec![dir.path().join("a"), dir.path().join("b")];
    let threads = [controller(&sockets[0], first), controller(&sockets[1], second)];
    let client = Client::new(Servers { sockets, source: "a test".to_owned() });
    (dir, threads, client)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

const AWAY: &str = r#"{"error":{"code":"UNAVAILABLE","message":"the database is away","retryable":true}}"#;
const BUSY: &str = r#"{"error":{"code":"OVERLOADED","message":"busy","retryable":true}}"#;

#[test]
fn a_controller_that_is_gone_leaves_the_turn_to_the_next_and_is_not_asked_first_again() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("b");
    let ok = answer("200 OK", "", "{}");
    let thread = controller(&socket, vec![Say(ok), Say(ok)]);
    let sockets = vec![dir.path().join("none"), socket];
    let mut client = Client::new(Servers { sockets, source: "a test".to_owned() });
    let started = Instant::now();
    block_on(async {
        for _ in 0..2 {
            assert_eq!(client.get("/v1/jobs").await.unwrap(), "{}");
        }
    });
    assert!(started.elapsed() < CONNECT_RETRY);
    assert_eq!(thread.join().unwrap().len(), 2);
}

#[test]
fn a_question_goes_to_the_next_controller_when_one_hangs_up_or_cannot_answer() {
    for trouble in [HangUp, Say(answer("503 Service Unavailable", "", AWAY))] {
        let (_dir, threads, mut client) = two(vec![trouble], vec![Say(answer("200 OK", "", "{}"))]);
        assert_eq!(block_on(client.get("/v1/jobs")).unwrap(), "{}");
        assert_eq!(threads.map(|t| t.join().unwrap().len()), [1, 1]);
    }
}

#[test]
fn what_no_controller_can_answer_names_each_and_is_asked_of_each_once() {
    let away = || Say(answer("503 Service Unavailable", "", AWAY));
    let (dir, threads, mut client) = two(vec![away()], vec![HangUp]);
    let fail = block_on(client.get("/v1/jobs")).unwrap_err();
    assert_eq!(fail.exit_code(), 3);
    for name in ["a", "b"] {
        let shown = dir.path().join(name).display().to_string();
        assert!(fail.error.message.contains(&shown), "{shown}: {fail}");
    }
    assert_eq!(threads.map(|t| t.join().unwrap().len()), [1, 1]);
    let none = vec![dir.path().join("x"), dir.path().join("y")];
    let mut client = Client::new(Servers { sockets: none, source: "a test".to_owned() });
    let fail = block_on(client.get("/v1/jobs")).unwrap_err();
    let shown = |name: &str| format!("{}: no such file or directory", dir.path().join(name).display());
    assert!(fail.error.message.contains(&format!("{}; {}", shown("x"), shown("y"))), "{fail}");
}

#[test]
fn a_keyed_request_is_asked_again_elsewhere_and_one_without_a_key_is_not() {
    let created = || Say(answer("201 Created", "", "{\"id\":7}"));
    let (_dir, threads, mut client) = two(vec![HangUp], vec![created()]);
    let body = Bytes::from_static(b"{\"key\":\"k\"}");
    let asked = retry::post(&mut client, "/v1/jobs", body, "k", retry::RETRY_TIME);
    assert_eq!(block_on(asked).unwrap(), "{\"id\":7}");
    assert_eq!(threads.map(|t| t.join().unwrap().len()), [1, 1]);

    let (_dir, threads, mut client) = two(vec![HangUp], vec![]);
    let fail = block_on(client.post("/v1/jobs/cancel", &serde_json::json!({}))).unwrap_err();
    assert_eq!(fail.error.code, ErrorCode::OutcomeUnknown, "{fail}");
    assert_eq!(threads.map(|t| t.join().unwrap().len()), [1, 0]);
}

#[test]
fn a_busy_controller_is_not_fled_from() {
    let busy = || Say(answer("429 Too Many Requests", "retry-after: 0\r\n", BUSY));
    let (_dir, threads, mut client) = two(vec![busy(), Say(answer("201 Created", "", "{}"))], vec![]);
    let asked = retry::post(&mut client, "/v1/jobs", Bytes::from_static(b"{}"), "k", retry::RETRY_TIME);
    assert_eq!(block_on(asked).unwrap(), "{}");
    assert_eq!(threads.map(|t| t.join().unwrap().len()), [2, 0]);
}
