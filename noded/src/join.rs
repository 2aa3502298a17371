//! `noded join`: makes a key on this machine, and trades a token for a certificate.
//!
//! The token comes from a file or standard input, never from the command line, which everybody on the machine can read. If the
//! answer is lost, the same again is answered with the same certificate.

use crate::address::Address;
use crate::ask::{self, AskError};
use crate::config::Config;
use crate::credentials::Place;
use crate::dial::{Trust, dial};
use anyhow::{Context, bail};
use proto::api::{IssuedCertificate, JoinRequest};
use proto::join_token::JoinToken;
use std::io::Read;
use std::path::Path;

/// More is no token.
const TOKEN_BYTES_MAX: u64 = 4096;

/// Reads the token from a file, or from standard input for `-`.
pub fn read_token(file: &Path) -> anyhow::Result<JoinToken> {
    let mut text = String::new();
    let shown = file.display();
    if file == Path::new("-") {
        std::io::stdin()
            .take(TOKEN_BYTES_MAX)
            .read_to_string(&mut text)
            .context("cannot read standard input")?;
    } else {
        let opened = std::fs::File::open(file).with_context(|| format!("cannot read \"{shown}\""))?;
        opened
            .take(TOKEN_BYTES_MAX)
            .read_to_string(&mut text)
            .with_context(|| format!("cannot read \"{shown}\""))?;
    }
    text.parse().with_context(|| format!("{shown}"))
}

/// Joins; gives what to do next.
pub async fn join(config: &Config, controller: &Address, token: &JoinToken) -> anyhow::Result<String> {
    if matches!(controller, Address::Unix(_)) {
        bail!(
            "{controller} is on this machine, where a node needs no certificate: expected https://HOST:PORT"
        );
    }
    let place = Place::below(&config.state_dir);
    if place.joined() {
        bail!("this node has joined already: to join anew, remove \"{}\" first", place.dir().display());
    }
    let request = place.request()?;
    let stream = dial(controller, Trust::Fingerprint(&token.fingerprint))
        .await
        .with_context(|| format!("the controller at {controller}"))?;
    let body = JoinRequest {
        secret: token.secret.clone(),
        node: config.node.clone(),
        pool: config.pool.clone(),
        request,
    };
    let issued: IssuedCertificate = match ask::post(stream, "/v1/node-join", &body).await {
        Ok(issued) => issued,
        Err(AskError::Refused(error)) => {
            let hint = error.hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
            bail!("{}{hint}", error.message)
        }
        Err(AskError::Lost(error)) => {
            return Err(error.context(format!(
                "the controller at {controller} gave no answer; the same command again finds out, and joins once"
            )));
        }
    };
    place.keep(&issued.certificate, &issued.authorities)?;
    Ok(format!(
        "node \"{}\" has joined; its certificate is in \"{}\" and renews itself\n\
         next: set controller = \"{controller}\" in noded.toml and start noded",
        config.node,
        place.dir().display()
    ))
}
