//! One question to a controller and its answer, over HTTP.

use crate::dial::{Stream, explained};
use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use proto::ApiError;
use proto::error::ErrorBody;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// The longest answer: certificates are a few kilobytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Why there is no answer that could be used.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The controller refused.
    #[error("{0}")]
    Refused(ApiError),
    /// There was no answer, or none that can be read. It may have been carried out.
    #[error("{0:#}")]
    Lost(anyhow::Error),
}

/// Posts a body and reads the answer.
pub async fn post<T: DeserializeOwned>(
    stream: Box<dyn Stream>,
    path: &str,
    body: &impl Serialize,
) -> Result<T, AskError> {
    let asked = tokio::time::timeout(ANSWER_WITHIN, exchange(stream, path, body)).await;
    let late = || anyhow::anyhow!("no answer within {} s", ANSWER_WITHIN.as_secs());
    let (ok, bytes) = asked.map_err(|_| AskError::Lost(late()))?.map_err(AskError::Lost)?;
    let unreadable = |error| AskError::Lost(anyhow::Error::new(error).context("the answer cannot be read"));
    match ok {
        true => serde_json::from_slice(&bytes).map_err(unreadable),
        false => {
            Err(AskError::Refused(serde_json::from_slice::<ErrorBody>(&bytes).map_err(unreadable)?.error))
        }
    }
}

async fn exchange(
    stream: Box<dyn Stream>,
    path: &str,
    body: &impl Serialize,
) -> anyhow::Result<(bool, Bytes)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::post(path)
        .header("host", "ctld")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(serde_json::to_vec(body)?)))?;
    let exchanged = async {
        let answer = sender.send_request(request).await.map_err(cause)?;
        let ok = answer.status().is_success();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok((ok, body.map_err(|error| anyhow::anyhow!("{error}")).context("the answer broke off")?.to_bytes()))
    };
    let answer = exchanged.await;
    connection.abort();
    answer
}

/// What broke the connection, in words.
fn cause(error: hyper::Error) -> anyhow::Error {
    use std::error::Error;
    let text = error.to_string();
    match error.source().and_then(|source| source.downcast_ref::<std::io::Error>()) {
        Some(io) => explained(std::io::Error::new(io.kind(), text_or_tls(io, text))),
        None => anyhow::anyhow!(text),
    }
}

/// A TLS error stays one, so that it can be explained.
fn text_or_tls(io: &std::io::Error, text: String) -> Box<dyn std::error::Error + Send + Sync> {
    match io.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(tls) => Box::new(tls.clone()),
        None => text.into(),
    }
}
