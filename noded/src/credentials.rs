//! What a node on another machine than its controller's is known by: a key that never leaves it, the certificate that the controller
//! gave for it, and the authorities it trusts. Three files in `tls` below the state directory, for root alone.
//!
//! Each file is replaced whole. The key is written first and stays: a certificate that was asked for and whose answer was lost is asked
//! for again with the same key.

use anyhow::{Context, bail};
use rcgen::{CertificateParams, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use x509_parser::prelude::{FromDer, X509Certificate};

const KEY: &str = "key.pem";
const CERTIFICATE: &str = "cert.pem";
const AUTHORITIES: &str = "ca.pem";

/// Where a node's credentials lie.
#[derive(Clone, Debug)]
pub struct Place {
    dir: PathBuf,
}

/// What a connection to a controller shows and trusts.
pub struct Credentials {
    /// The node's certificate.
    pub certificate: CertificateDer<'static>,
    /// Its secret key.
    pub key: PrivateKeyDer<'static>,
    /// The authorities of controllers.
    pub roots: RootCertStore,
    /// When the certificate begins and ends, in seconds since 1970.
    pub valid_s: (i64, i64),
}

impl Place {
    /// Below this state directory.
    pub fn below(state_dir: &Path) -> Place {
        Place { dir: state_dir.join("tls") }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether the node has joined.
    pub fn joined(&self) -> bool {
        self.dir.join(CERTIFICATE).exists()
    }

    /// Reads what the node has.
    pub fn read(&self) -> anyhow::Result<Credentials> {
        if !self.joined() {
            bail!("this node has not joined: there is no \"{}\"", self.dir.join(CERTIFICATE).display());
        }
        let certificate = CertificateDer::from_pem_slice(&self.bytes(CERTIFICATE)?)
            .with_context(|| self.unreadable(CERTIFICATE))?;
        let key = PrivateKeyDer::from_pem_slice(&self.bytes(KEY)?).with_context(|| self.unreadable(KEY))?;
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(&self.bytes(AUTHORITIES)?) {
            let authority = authority.with_context(|| self.unreadable(AUTHORITIES))?;
            roots.add(authority).with_context(|| self.unreadable(AUTHORITIES))?;
        }
        let valid_s = {
            let (_, parsed) = X509Certificate::from_der(&certificate)
                .map_err(|_| anyhow::anyhow!("{}", self.unreadable(CERTIFICATE)))?;
            let validity = parsed.validity();
            (validity.not_before.timestamp(), validity.not_after.timestamp())
        };
        Ok(Credentials { certificate, key, roots, valid_s })
    }

    /// A request for a certificate, of the key that is here or, without one, of a new one.
    pub fn request(&self) -> anyhow::Result<String> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .with_context(|| format!("cannot make \"{}\"", self.dir.display()))?;
        let path = self.dir.join(KEY);
        let key = match path.exists() {
            true => KeyPair::from_pem(std::str::from_utf8(&self.bytes(KEY)?)?)
                .with_context(|| self.unreadable(KEY))?,
            false => {
                let key = KeyPair::generate().context("cannot make a key")?;
                self.write(KEY, 0o600, &key.serialize_pem())?;
                key
            }
        };
        let request =
            CertificateParams::default().serialize_request(&key).context("cannot ask for a certificate")?;
        Ok(request.pem()?)
    }

    /// Keeps what a controller gave. The authorities come first: a certificate that is here is one that can be used.
    pub fn keep(&self, certificate: &str, authorities: &str) -> anyhow::Result<()> {
        self.write(AUTHORITIES, 0o644, authorities)?;
        self.write(CERTIFICATE, 0o644, certificate)
    }

    fn bytes(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        let path = self.dir.join(name);
        fs::read(&path).with_context(|| format!("cannot read \"{}\"", path.display()))
    }

    fn unreadable(&self, name: &str) -> String {
        format!(
            "\"{}\" is damaged: remove \"{}\" and join again, with a new token",
            self.dir.join(name).display(),
            self.dir.display()
        )
    }

    fn write(&self, name: &str, mode: u32, text: &str) -> anyhow::Result<()> {
        let (path, new) = (self.dir.join(name), self.dir.join(format!("{name}.new")));
        let written = (|| {
            let mut file = File::options().write(true).create(true).truncate(true).mode(mode).open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.dir)?.sync_all()
        })();
        written.with_context(|| format!("cannot write \"{}\"", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_made_once_and_readable_by_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::below(dir.path());
        assert!(!place.joined() && place.read().is_err());
        place.request().unwrap();
        let key = fs::read(place.dir().join(KEY)).unwrap();
        place.request().unwrap();
        assert_eq!(fs::read(place.dir().join(KEY)).unwrap(), key, "asking again asks for the same key");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(place.dir()), mode(&place.dir().join(KEY))), (0o700, 0o600));
    }

    #[test]
    fn damaged_credentials_name_the_file_and_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::below(dir.path());
        place.request().unwrap();
        place.keep("nothing", "nothing").unwrap();
        let error = place.read().err().unwrap().to_string();
        assert!(error.contains("cert.pem\" is damaged") && error.contains("join again"), "{error}");
    }
}
