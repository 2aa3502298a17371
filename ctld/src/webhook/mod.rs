//! Webhooks: one POST an event, signed, to where the administrator lets it go.
//!
//! Redirects are not followed and answers not read beyond their status, so that a receiver can neither lead us elsewhere nor be
//! used to look around. A connection is kept for several events; its address was looked at when it was made.

pub mod sign;
pub mod target;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;
use std::time::Duration;
use target::Target;
use tokio::net::TcpStream;

/// How long connecting may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a receiver may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// How much of an answer's body is read, so that the connection can be kept.
const ANSWER_BYTES_MAX: usize = 16 << 10;
/// The longest wait that a receiver may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// What became of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Taken.
    Taken,
    /// Not taken: to be tried again.
    Failed {
        /// Why.
        why: String,
        /// How long the receiver asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// The receiver wants no more.
    Gone,
}

/// What is delivered.
#[derive(Clone, Debug)]
pub struct Letter<'a> {
    /// The event's id.
    pub id: &'a str,
    /// Seconds since 1970.
    pub timestamp: i64,
    /// The event as JSON.
    pub body: Vec<u8>,
}

/// A receiver, and the connection to it while there is one.
pub struct Receiver {
    target: Target,
    key: ring::hmac::Key,
    allow: Arc<[IpNet]>,
    tls: Arc<ClientConfig>,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Receiver {
    /// A receiver that was registered; an error names what is wrong with it by now.
    pub fn new(
        url: &str,
        secret: &str,
        allow: Arc<[IpNet]>,
        tls: Arc<ClientConfig>,
    ) -> Result<Receiver, String> {
        let target = target::parse(url).map_err(|error| error.to_string())?;
        let key = sign::key(secret).ok_or("its secret is none")?;
        Ok(Receiver { target, key, allow, tls, sender: None })
    }

    /// Delivers one event.
    pub async fn deliver(&mut self, letter: &Letter<'_>) -> Outcome {
        match tokio::time::timeout(CONNECT_WITHIN + ANSWER_WITHIN, self.send(letter)).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(why)) => {
                self.sender = None;
                Outcome::Failed { why, retry_after: None }
            }
            Err(_) => {
                self.sender = None;
                let why = format!("no answer within {} s", (CONNECT_WITHIN + ANSWER_WITHIN).as_secs());
                Outcome::Failed { why, retry_after: None }
            }
        }
    }

    async fn send(&mut self, letter: &Letter<'_>) -> Result<Outcome, String> {
        let mut sender = match self.kept().await {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let signature = sign::signature(&self.key, letter.id, letter.timestamp, &letter.body);
        let host = if self.target.host.contains(':') {
            format!("[{}]", self.target.host)
        } else {
            self.target.host.clone()
        };
        let request = Request::post(&self.target.path)
            .header(header::HOST, format!("{host}:{}", self.target.port))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("better-compute/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", letter.id)
            .header("webhook-timestamp", letter.timestamp)
            .header("webhook-signature", signature)
            .body(Full::new(Bytes::from(letter.body.clone())))
            .map_err(|error| format!("the request cannot be made: {error}"))?;
        let answer = sender.send_request(request).await.map_err(|error| format!("no answer: {error}"))?;
        let status = answer.status();
        let retry_after = answer
            .headers()
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
        if Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.is_ok() {
            self.sender = Some(sender);
        }
        Ok(match status {
            status if status.is_success() => Outcome::Taken,
            StatusCode::GONE => Outcome::Gone,
            status if status.is_redirection() => {
                Outcome::Failed { why: format!("answered {status}; redirects are not followed"), retry_after }
            }
            status => Outcome::Failed { why: format!("answered {status}"), retry_after },
        })
    }

    /// The connection of the last delivery, if it can be used again.
    async fn kept(&mut self) -> Option<SendRequest<Full<Bytes>>> {
        let mut sender = self.sender.take()?;
        sender.ready().await.ok().map(|()| sender)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let addresses =
            target::resolve(&self.target, &self.allow).await.map_err(|error| error.to_string())?;
        let stream = tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(addresses.as_slice()))
            .await
            .map_err(|_| format!("no connection within {} s", CONNECT_WITHIN.as_secs()))?
            .map_err(|error| format!("no connection: {error}"))?;
        let failed = |error: hyper::Error| format!("no connection: {error}");
        if !self.target.tls {
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
            tokio::spawn(connection);
            return Ok(sender);
        }
        let name = ServerName::try_from(self.target.host.clone()).map_err(|error| error.to_string())?;
        let stream = tokio_rustls::TlsConnector::from(self.tls.clone())
            .connect(name, stream)
            .await
            .map_err(|error| format!("no TLS: {error}"))?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// TLS towards receivers: the roots that browsers trust, and the administrator's own.
pub fn tls(extra_roots: &[u8]) -> Result<ClientConfig, String> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for certificate in CertificateDer::pem_slice_iter(extra_roots) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
