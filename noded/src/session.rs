//! The one session with a controller: a WebSocket over its socket, or over TLS to another machine, kept for ever.
//!
//! Owns connecting, greeting, framing and noticing a dead peer; it does not know what the messages mean. Whoever uses it is told of each
//! opening with the way to send, of each message, and of each closing. Controllers are tried in turn, again and again, quickly at first: the
//! next when one is away, refuses, or ends the session.

use crate::address::Address;
use crate::credentials::Place;
use crate::dial::{Stream, Trust, dial, explained};
use futures_util::{SinkExt, StreamExt};
use proto::ApiError;
use proto::error::ErrorBody;
use proto::session::{ControllerMessage, FRAME_BYTES_MAX, Hello, NodeMessage};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// Backoff between attempts to connect.
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// After a refusal, which lasts until somebody changes something.
const REFUSED_WAIT: Duration = Duration::from_secs(5);
/// A controller sends a ping each 5 s; one that is silent for so long is dead, or as good as dead: its lease is over, and another can be
/// asked.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// A controller that accepts a connection answers within this.
const GREETING_MAX: Duration = Duration::from_secs(10);

/// What a session tells.
#[derive(Debug)]
pub enum SessionEvent {
    /// It is open; this is the way to send.
    Opened(UnboundedSender<NodeMessage>),
    /// The controller says something.
    Message(ControllerMessage),
    /// It is closed.
    Closed,
}

type Socket = WebSocketStream<Box<dyn Stream>>;

#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error("the controller at {address}: {source:#}")]
    Connect { address: Address, source: anyhow::Error },
    #[error("the session with the controller: {0}")]
    WebSocket(tungstenite::Error),
    #[error("the session with the controller: {0:#}")]
    Broken(anyhow::Error),
    #[error("the controller sent what is no message: {0}")]
    Message(serde_json::Error),
    #[error("the controller was silent for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the controller closed the session")]
    Closed,
    #[error("the controller refused the session: {0}")]
    Refused(String),
}

impl From<tungstenite::Error> for SessionError {
    fn from(error: tungstenite::Error) -> SessionError {
        match error {
            // Refused before it was a WebSocket, with a reason in the body.
            tungstenite::Error::Http(response) => {
                let body = response.body().as_deref().unwrap_or_default();
                match serde_json::from_slice::<ErrorBody>(body) {
                    Ok(body) if body.error.retryable => {
                        SessionError::Broken(anyhow::anyhow!(body.error.message))
                    }
                    Ok(ErrorBody { error: ApiError { message, hint, .. } }) => SessionError::Refused(
                        hint.into_iter().fold(message, |text, hint| format!("{text}: {hint}")),
                    ),
                    Err(_) => SessionError::WebSocket(tungstenite::Error::Http(response)),
                }
            }
            tungstenite::Error::Io(io) => SessionError::Broken(explained(io)),
            error => SessionError::WebSocket(error),
        }
    }
}

/// Keeps a session open with one of the controllers. Never returns.
pub async fn keep(controllers: Vec<Address>, place: Place, hello: Hello, tell: impl Fn(SessionEvent)) {
    let mut said = vec![String::new(); controllers.len()];
    let mut backoff = RECONNECT_MIN;
    loop {
        // A round: each controller once, or up to the one whose session was open.
        let mut refused = 0;
        for (address, said) in controllers.iter().zip(&mut said) {
            let (opened, error) = once(address, &place, &hello, &tell).await;
            // The same trouble at each attempt is worth one line.
            let text = error.to_string();
            if opened {
                (backoff, *said) = (RECONNECT_MIN, String::new());
            }
            if text != *said {
                tracing::warn!("{text}; trying again");
                *said = text;
            }
            if opened {
                said.clear();
            }
            refused += usize::from(matches!(error, SessionError::Refused(_)));
            // Not at once: a controller that stopped leaves all its nodes without a session in the same moment.
            sleep(RECONNECT_MIN.mul_f64(rand::random_range(0.0..1.0))).await;
        }
        if refused == controllers.len() {
            sleep(REFUSED_WAIT).await;
            continue;
        }
        sleep(backoff.mul_f64(rand::random_range(0.5..1.0))).await;
        backoff = (backoff * 2).min(RECONNECT_MAX);
    }
}

/// One session. Whether it was opened, and how it ended.
async fn once(
    address: &Address,
    place: &Place,
    hello: &Hello,
    tell: &impl Fn(SessionEvent),
) -> (bool, SessionError) {
    let mut stream = match timeout(GREETING_MAX, greet(address, place, hello)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return (false, error),
        Err(_) => return (false, SessionError::Silent(GREETING_MAX)),
    };
    let (sender, mut queue) = unbounded_channel();
    tell(SessionEvent::Opened(sender));
    tracing::info!("session with the controller open");
    let error = match converse(&mut stream, &mut queue, tell).await {
        Ok(never) => match never {},
        Err(error) => error,
    };
    tell(SessionEvent::Closed);
    (true, error)
}

async fn greet(address: &Address, place: &Place, hello: &Hello) -> Result<Socket, SessionError> {
    let connect = |source| SessionError::Connect { address: address.clone(), source };
    let stream = dial(address, Trust::Joined(place)).await.map_err(connect)?;
    let config = WebSocketConfig::default()
        .max_message_size(Some(FRAME_BYTES_MAX))
        .max_frame_size(Some(FRAME_BYTES_MAX));
    let (mut stream, _) =
        client_async_with_config("ws://controller/v1/node-session", stream, Some(config)).await?;
    stream.send(text(&NodeMessage::Hello(hello.clone()))).await?;
    loop {
        match receive(&mut stream).await? {
            Some(ControllerMessage::Welcome { .. }) => return Ok(stream),
            Some(ControllerMessage::Refused { message }) => return Err(SessionError::Refused(message)),
            // Nothing else may come before.
            Some(_) | None => {}
        }
    }
}

async fn converse(
    stream: &mut Socket,
    queue: &mut UnboundedReceiver<NodeMessage>,
    tell: &impl Fn(SessionEvent),
) -> Result<std::convert::Infallible, SessionError> {
    let mut silent_at = Instant::now() + SILENCE_MAX;
    loop {
        tokio::select! {
            received = receive(stream) => {
                silent_at = Instant::now() + SILENCE_MAX;
                match received? {
                    Some(ControllerMessage::Refused { message }) => return Err(SessionError::Refused(message)),
                    Some(message) => tell(SessionEvent::Message(message)),
                    None => {}
                }
            }
            Some(message) = queue.recv() => {
                // A controller that is stopped takes nothing after some time, and says nothing either.
                let sent = timeout(SILENCE_MAX, send(stream, message, queue)).await;
                sent.map_err(|_| SessionError::Silent(SILENCE_MAX))??;
            }
            () = sleep_until(silent_at) => return Err(SessionError::Silent(SILENCE_MAX)),
        }
    }
}

/// Sends a message and all that wait behind it.
async fn send(
    stream: &mut Socket,
    first: NodeMessage,
    queue: &mut UnboundedReceiver<NodeMessage>,
) -> Result<(), tungstenite::Error> {
    stream.feed(text(&first)).await?;
    while let Ok(message) = queue.try_recv() {
        stream.feed(text(&message)).await?;
    }
    stream.flush().await
}

fn text(message: &NodeMessage) -> Message {
    Message::text(serde_json::to_string(message).expect("messages are plain data"))
}

/// The next frame; `None` for one that only shows that the peer lives.
async fn receive(stream: &mut Socket) -> Result<Option<ControllerMessage>, SessionError> {
    match stream.next().await {
        Some(Ok(Message::Text(text))) => {
            serde_json::from_str(text.as_str()).map(Some).map_err(SessionError::Message)
        }
        Some(Ok(Message::Ping(_))) => {
            // The answer is queued; it must not wait for the next message of ours.
            stream.flush().await?;
            Ok(None)
        }
        Some(Ok(Message::Close(_))) | None => Err(SessionError::Closed),
        Some(Ok(_)) => Ok(None),
        Some(Err(error)) => Err(error.into()),
    }
}
