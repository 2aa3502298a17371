//! The cluster's own certificate authority: making one, and signing what nodes and controllers show each other.
//!
//! Pure: no SQL and no I/O; the time comes in. Node certificates are for clients only and name the node; controllers' are for
//! servers only, so that neither can stand in for the other. Everything is valid from a day before it is made, so that a machine
//! whose clock is behind by less than that is no stranger.

use chrono::{DateTime, TimeDelta, Utc};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

/// How long before it was made a certificate is valid from.
const SLACK: TimeDelta = TimeDelta::days(1);
/// How long an authority lasts.
const AUTHORITY_LIFE: TimeDelta = TimeDelta::days(3650);
/// The next authority is made when the last has so much left: enough for every node to have renewed under it long before.
pub const AUTHORITY_LEFT_MIN: TimeDelta = TimeDelta::days(730);
/// Controllers show certificates of an authority only when it is so old: by then every node has been told of it, since no node's
/// certificate lasts longer.
const AUTHORITY_SETTLED: TimeDelta = TimeDelta::days(90);
/// How long a controller's own certificate lasts; it is made anew long before.
const SERVER_LIFE: TimeDelta = TimeDelta::days(30);

/// An authority that signs, with its secret key.
#[derive(Clone)]
pub struct Authority {
    /// Counted from 1.
    pub id: i32,
    /// Its certificate, in PEM.
    pub certificate: String,
    /// Its secret key, in PEM.
    pub key: String,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// When it ends.
    pub expires_at: DateTime<Utc>,
}

/// A certificate that was just signed.
#[derive(Clone, Debug)]
pub struct Issued {
    /// Its serial number, in hexadecimal digits.
    pub serial: String,
    /// In PEM.
    pub certificate: String,
    /// When it ends.
    pub expires_at: DateTime<Utc>,
}

/// A request for a certificate, whose signature proved that whoever made it has the key.
pub struct Request {
    parsed: CertificateSigningRequestParams,
    /// SHA-256 of the public key.
    pub key_hash: [u8; 32],
}

/// What a server shows, and the key for it.
pub struct ServerIdentity {
    /// Its certificate, then its authority's: a node that knows only the fingerprint finds that there.
    pub chain: Vec<CertificateDer<'static>>,
    /// The secret key.
    pub key: PrivateKeyDer<'static>,
}

/// What could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// By the library that makes certificates.
    #[error("certificates")]
    Make(#[from] rcgen::Error),
    /// Text that holds no certificate.
    #[error("no certificate in PEM")]
    Read(#[from] rustls::pki_types::pem::Error),
    /// Bytes that are no certificate.
    #[error("no certificate")]
    Parse,
}

/// Makes the authority of this number.
pub fn make_authority(id: i32, cluster: &str, now: DateTime<Utc>) -> Result<Authority, PkiError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = named(&format!("Better Compute {cluster} authority {id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.serial_number = Some(serial().0);
    let expires_at = now + AUTHORITY_LIFE;
    valid(&mut params, now, expires_at);
    let certificate = params.self_signed(&key)?.pem();
    Ok(Authority { id, certificate, key: key.serialize_pem(), created_at: now, expires_at })
}

/// Reads a request for a certificate and checks its signature. What it asks to be called, and for what, is not looked at.
pub fn read_request(pem: &str) -> Result<Request, PkiError> {
    let parsed = CertificateSigningRequestParams::from_pem(pem)?;
    let key_hash = Sha256::digest(parsed.public_key.der_bytes()).into();
    Ok(Request { parsed, key_hash })
}

impl Authority {
    /// Signs a node's certificate.
    pub fn sign_node(
        &self,
        request: &Request,
        node: &str,
        now: DateTime<Utc>,
        life: TimeDelta,
    ) -> Result<Issued, PkiError> {
        let (serial_number, serial) = serial();
        let mut params = CertificateParams::default();
        params.distinguished_name = named(node);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial_number);
        let expires_at = (now + life).min(self.expires_at);
        valid(&mut params, now, expires_at);
        let certificate = params.signed_by(&request.parsed.public_key, &self.issuer()?)?.pem();
        Ok(Issued { serial, certificate, expires_at })
    }

    /// Makes a controller's certificate for these names (host names or addresses), with a key of its own.
    pub fn sign_server(&self, names: &[String], now: DateTime<Utc>) -> Result<ServerIdentity, PkiError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = named("Better Compute controller");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial().0);
        valid(&mut params, now, (now + SERVER_LIFE).min(self.expires_at));
        let certificate = params.signed_by(&key, &self.issuer()?)?.der().clone();
        let chain = vec![certificate, self.der()?];
        Ok(ServerIdentity { chain, key: PrivatePkcs8KeyDer::from(key.serialize_der()).into() })
    }

    /// Its certificate in DER.
    pub fn der(&self) -> Result<CertificateDer<'static>, PkiError> {
        Ok(CertificateDer::from_pem_slice(self.certificate.as_bytes())?)
    }

    /// SHA-256 of its certificate, in hexadecimal digits.
    pub fn fingerprint(&self) -> Result<String, PkiError> {
        Ok(hex(&Sha256::digest(self.der()?)))
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>, PkiError> {
        Ok(Issuer::from_ca_cert_der(&self.der()?, KeyPair::from_pem(&self.key)?)?)
    }
}

/// The authority that signs nodes' certificates: the newest that every controller has heard of by now, or the first there is.
pub fn for_nodes(authorities: &[Authority], now: DateTime<Utc>) -> Option<&Authority> {
    settled(authorities, now - SLACK)
}

/// The authority whose certificates controllers show: the newest that every node knows by now, or the first there is.
pub fn for_servers(authorities: &[Authority], now: DateTime<Utc>) -> Option<&Authority> {
    settled(authorities, now - AUTHORITY_SETTLED)
}

fn settled(authorities: &[Authority], since: DateTime<Utc>) -> Option<&Authority> {
    let by_age = |a: &&Authority| (a.created_at, a.id);
    authorities
        .iter()
        .filter(|a| a.created_at <= since)
        .max_by_key(by_age)
        .or_else(|| authorities.iter().min_by_key(by_age))
}

/// The serial number of a certificate, in hexadecimal digits.
pub fn serial_of(certificate: &CertificateDer<'_>) -> Result<String, PkiError> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| PkiError::Parse)?;
    Ok(hex(parsed.raw_serial()))
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A positive number of 16 bytes without a leading zero, so that it reads the same in every form.
fn serial() -> (SerialNumber, String) {
    let mut bytes: [u8; 16] = rand::random();
    bytes[0] = bytes[0] & 0x7f | 0x40;
    (SerialNumber::from_slice(&bytes), hex(&bytes))
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn valid(params: &mut CertificateParams, now: DateTime<Utc>, until: DateTime<Utc>) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let at =
        |time: DateTime<Utc>| epoch + std::time::Duration::from_secs(time.timestamp().max(0).unsigned_abs());
    (params.not_before, params.not_after) = (at(now - SLACK), at(until));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(number: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000 + number)
    }

    #[test]
    fn a_certificate_names_the_node_whatever_its_request_says_and_is_for_clients_only() {
        let authority = make_authority(1, "c", day(0)).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut asked = CertificateParams::new(vec!["ctld.example.org".to_owned()]).unwrap();
        asked.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        asked.distinguished_name = named("root");
        let request = read_request(&asked.serialize_request(&key).unwrap().pem().unwrap()).unwrap();
        let issued = authority.sign_node(&request, "n1", day(0), TimeDelta::days(30)).unwrap();
        let der = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
        assert_eq!(serial_of(&der).unwrap(), issued.serial);
        let (_, parsed) = X509Certificate::from_der(&der).unwrap();
        assert_eq!(parsed.subject().to_string(), "CN=n1");
        assert!(!parsed.is_ca() && parsed.subject_alternative_name().unwrap().is_none());
        let usage = parsed.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.server_auth && !usage.any);
        let [from, until] =
            [parsed.validity().not_before, parsed.validity().not_after].map(|t| t.timestamp());
        assert_eq!((from, until), (day(-1).timestamp(), day(30).timestamp()));
        assert_eq!(issued.expires_at, day(30));
    }

    #[test]
    fn a_request_that_was_signed_with_another_key_is_refused() {
        let (own, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let request = |key: &KeyPair| CertificateParams::default().serialize_request(key).unwrap();
        assert!(read_request(&request(&own).pem().unwrap()).is_ok());
        // The other's public key in a request that this one signed: the same bytes at the same place.
        let mut der = request(&own).der().to_vec();
        let (mine, theirs) = (own.public_key_raw(), other.public_key_raw());
        let at = der.windows(mine.len()).position(|w| w == mine).unwrap();
        der[at..at + theirs.len()].copy_from_slice(theirs);
        assert!(CertificateSigningRequestParams::from_der(&der.as_slice().into()).is_err());
        assert!(read_request("-----BEGIN NOTHING-----").is_err());
    }

    #[test]
    fn a_new_authority_signs_for_nodes_first_and_for_controllers_when_every_node_knows_it() {
        let old = make_authority(1, "c", day(0)).unwrap();
        let new = make_authority(2, "c", day(3000)).unwrap();
        let both = [old, new];
        let signs = |now| {
            let id = |a: Option<&Authority>| a.unwrap().id;
            (id(for_nodes(&both, now)), id(for_servers(&both, now)))
        };
        assert_eq!(signs(day(3000)), (1, 1));
        assert_eq!(signs(day(3001)), (2, 1));
        assert_eq!(signs(day(3089)), (2, 1));
        assert_eq!(signs(day(3090)), (2, 2));
        assert_eq!(for_nodes(&both[..1], day(0)).unwrap().id, 1, "the first signs at once");
        assert!(for_nodes(&[], day(0)).is_none());
    }
}
