//! A join token as people carry it: a secret, and the fingerprint of the authority that the controller's certificate is signed
//! by, so that the node's first connection is no leap of faith. Its form is `bcj1.SECRET.FINGERPRINT`, both in hexadecimal digits.

use std::fmt;
use std::str::FromStr;

const PREFIX: &str = "bcj1.";
/// Hexadecimal digits of a secret, and of a fingerprint.
const DIGITS: usize = 64;

/// A join token. It is a secret: there is no `Debug`, and [`fmt::Display`] is for the one place that hands it out.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// What the controller knows the hash of.
    pub secret: String,
    /// SHA-256 of the authority's certificate (DER), in hexadecimal digits.
    pub fingerprint: String,
}

/// What is no join token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is no join token: expected {PREFIX}SECRET.FINGERPRINT in one line, as `bctl node token` prints it"
)]
pub struct JoinTokenError;

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}.{}", self.secret, self.fingerprint)
    }
}

impl FromStr for JoinToken {
    type Err = JoinTokenError;

    /// The text is not repeated in the error: most of it may be a secret.
    fn from_str(text: &str) -> Result<JoinToken, JoinTokenError> {
        let (secret, fingerprint) = text
            .trim()
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('.'))
            .filter(|(secret, fingerprint)| digits(secret) && digits(fingerprint))
            .ok_or(JoinTokenError)?;
        Ok(JoinToken { secret: secret.to_owned(), fingerprint: fingerprint.to_owned() })
    }
}

fn digits(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written_and_nothing_else_is() {
        let token = JoinToken { secret: "0a".repeat(32), fingerprint: "f1".repeat(32) };
        assert!(token.to_string().parse() == Ok(token.clone()));
        assert!(format!("{token}\n").parse() == Ok(token.clone()));
        let text = token.to_string();
        for other in
            ["", "bcj1.", &text[1..], &text[..text.len() - 1], &text.to_uppercase(), &format!("{text}0")]
        {
            assert!(other.parse::<JoinToken>().is_err(), "{other}");
        }
    }
}
