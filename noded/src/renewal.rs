//! Renewing the node's certificate, by itself: when a third of its time is left, with the certificate that it still has, for the same
//! key. The old one stays good until its end, so a session that is open goes on.

use crate::address::Address;
use crate::ask::{self, AskError};
use crate::clock;
use crate::credentials::Place;
use crate::dial::{Trust, dial};
use proto::api::{IssuedCertificate, RenewRequest};
use std::time::Duration;

/// How often it is looked whether the time has come, and how soon a renewal that failed is tried again.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
const RETRY_AFTER: Duration = Duration::from_secs(300);

/// Keeps the certificate fresh. Never returns; without a controller on another machine it only waits.
pub async fn keep(controllers: Vec<Address>, place: Place) {
    let elsewhere: Vec<Address> =
        controllers.into_iter().filter(|address| matches!(address, Address::Tls { .. })).collect();
    if elsewhere.is_empty() {
        return std::future::pending().await;
    }
    loop {
        let pause = match place.read() {
            Ok(own) if due(own.valid_s, clock::wall_s()) => match renew(&elsewhere, &place).await {
                Ok(()) => LOOK_EVERY,
                Err(error) => {
                    tracing::warn!("the node's certificate could not be renewed: {error:#}; trying again");
                    RETRY_AFTER
                }
            },
            Ok(_) => LOOK_EVERY,
            Err(error) => {
                tracing::warn!("{error:#}");
                RETRY_AFTER
            }
        };
        // Nodes that joined together do not come together.
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
    }
}

/// Whether a third of the time or less is left.
fn due((from_s, until_s): (i64, i64), now_s: i64) -> bool {
    (until_s - now_s).saturating_mul(3) <= until_s - from_s
}

/// Asks the controllers in turn for a new certificate, until one gives it.
pub async fn renew(controllers: &[Address], place: &Place) -> anyhow::Result<()> {
    let body = RenewRequest { request: place.request()? };
    let mut last = anyhow::anyhow!("there is no controller to ask");
    for address in controllers {
        let stream = match dial(address, Trust::Joined(place)).await {
            Ok(stream) => stream,
            Err(error) => {
                last = error.context(format!("the controller at {address}"));
                continue;
            }
        };
        match ask::post::<IssuedCertificate>(stream, "/v1/node-renewal", &body).await {
            Ok(issued) => {
                place.keep(&issued.certificate, &issued.authorities)?;
                tracing::info!("the node's certificate is renewed");
                return Ok(());
            }
            Err(AskError::Refused(error)) => last = anyhow::anyhow!("{}", error.message),
            Err(AskError::Lost(error)) => last = error.context(format!("the controller at {address}")),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::due;

    #[test]
    fn a_certificate_is_renewed_when_a_third_of_its_time_is_left() {
        assert!(!due((0, 90), 0) && !due((0, 90), 59));
        assert!(due((0, 90), 60) && due((0, 90), 89));
        assert!(
            due((0, 90), 1000),
            "an expired one is still tried: the clock here may be the one that is wrong"
        );
    }
}
