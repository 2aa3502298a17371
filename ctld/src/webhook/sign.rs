//! Signatures as Standard Webhooks has them: HMAC-SHA256 over `ID.TIMESTAMP.BODY`, in base64 behind `v1,`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

/// What a secret begins with.
const PREFIX: &str = "whsec_";
/// The bytes of a secret: at least, at most, and of one of ours.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;
const BYTES_OURS: usize = 32;

/// A new secret.
pub fn new_secret() -> String {
    let bytes: [u8; BYTES_OURS] = rand::random();
    format!("{PREFIX}{}", STANDARD.encode(bytes))
}

/// The key of a secret; `None` if it is none.
pub fn key(secret: &str) -> Option<hmac::Key> {
    let bytes = STANDARD.decode(secret.strip_prefix(PREFIX)?).ok()?;
    BYTES.contains(&bytes.len()).then(|| hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

/// The header `webhook-signature`.
pub fn signature(key: &hmac::Key, id: &str, timestamp: i64, body: &[u8]) -> String {
    let mut signed = format!("{id}.{timestamp}.").into_bytes();
    signed.extend_from_slice(body);
    format!("v1,{}", STANDARD.encode(hmac::sign(key, &signed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_published_example() {
        // From the Standard Webhooks specification's reference libraries.
        let key = key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = br#"{"test": 2432232314}"#;
        assert_eq!(
            signature(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn a_secret_is_random_and_has_its_form() {
        let (a, b) = (new_secret(), new_secret());
        assert!(a != b && key(&a).is_some());
        for bad in ["", "whsec_", "whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_*"] {
            assert!(key(bad).is_none(), "{bad}");
        }
    }
}
