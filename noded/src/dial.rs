//! Connections to controllers: its socket on this machine, TLS to another.
//!
//! A node trusts the authorities that it was given when it joined, and before that only the one whose fingerprint its token names. It
//! is known by its certificate, which is read anew for each connection, since it is renewed now and then.

use crate::address::Address;
use crate::credentials::Place;
use anyhow::Context;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, PeerIncompatible, RootCertStore,
    SignatureScheme,
};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// A connection, whatever carries it.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// By what a controller is known.
pub enum Trust<'a> {
    /// By what the node was given when it joined, and the node by its certificate.
    Joined(&'a Place),
    /// By the fingerprint in a join token; the node by nothing yet.
    Fingerprint(&'a str),
}

/// Connects to a controller.
pub async fn dial(address: &Address, trust: Trust<'_>) -> anyhow::Result<Box<dyn Stream>> {
    let (host, port) = match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(spoken)?;
            return Ok(Box::new(stream));
        }
        Address::Tls { host, port } => (host, *port),
    };
    let config = config(trust)?;
    let name = ServerName::try_from(host.clone()).with_context(|| format!("\"{host}\" is no host name"))?;
    let stream = TcpStream::connect((host.as_str(), port)).await.map_err(spoken)?;
    // Messages are small and each waits for an answer.
    stream.set_nodelay(true)?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(explained)?;
    Ok(Box::new(stream))
}

fn config(trust: Trust<'_>) -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?;
    Ok(match trust {
        Trust::Joined(place) => {
            let own = place.read()?;
            builder.with_root_certificates(own.roots).with_client_auth_cert(vec![own.certificate], own.key)?
        }
        Trust::Fingerprint(fingerprint) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned {
                fingerprint: fingerprint.to_owned(),
                provider,
            }))
            .with_no_client_auth(),
    })
}

/// Trusts the one authority that has this fingerprint, for what it has signed and nothing else.
#[derive(Debug)]
struct Pinned {
    fingerprint: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let authority = intermediates
            .iter()
            .find(|certificate| fingerprint(certificate) == self.fingerprint)
            .ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|error| Error::General(error.to_string()))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// SHA-256 in hexadecimal digits.
fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    Sha256::digest(certificate).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An error of the system, in its words.
fn spoken(error: std::io::Error) -> anyhow::Error {
    anyhow::anyhow!("{}", crate::sys::io_text(&error))
}

/// An error of TLS, with what it means for whoever reads it.
pub fn explained(error: std::io::Error) -> anyhow::Error {
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return spoken(error);
    };
    match tls {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => anyhow::anyhow!(
            "it shows a certificate of another authority: is it this cluster's controller, and the token or \"ca.pem\" from it?"
        ),
        Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => anyhow::anyhow!("its certificate is not valid now ({tls}): is this machine's clock right?"),
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => {
            anyhow::anyhow!("{tls}: use a name of `listen_names` in ctld.toml")
        }
        Error::AlertReceived(alert) => anyhow::anyhow!(
            "it does not accept this node's certificate ({alert:?}): remove its `tls` directory and join again, with a new token"
        ),
        _ => anyhow::anyhow!("{tls}"),
    }
}
