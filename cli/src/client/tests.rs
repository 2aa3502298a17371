use super::*;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;

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
    let mut client = Client::new(Server { socket, source: "a test".to_owned() });
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
    let mut client = Client::new(Server { socket, source: "a test".to_owned() });
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
    let mut client = Client::new(Server { socket: dir.path().join("none"), source: "a test".to_owned() });
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
