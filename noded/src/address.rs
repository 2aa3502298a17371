//! Where a controller is, as `noded.toml` writes it.
//!
//! One address or a list: several controllers over one database are each as good as the other. An address that cannot be read is
//! an error though others could, since the node would silently have fewer to turn to.

use rustls::pki_types::ServerName;
use serde::Deserialize;
use std::fmt;
use std::path::PathBuf;

/// The socket of a controller that was installed as a service on this machine.
pub const ADDRESS_DEFAULT: &str = "unix:///run/better-compute/ctld.sock";
/// The most controllers of one cluster.
const ADDRESSES_MAX: usize = 16;

/// The address of one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Its socket, on this machine.
    Unix(PathBuf),
    /// Another machine, over TLS.
    Tls {
        /// A host name or an address, which the controller's certificate has to name.
        host: String,
        /// The port.
        port: u16,
    },
}

impl Address {
    /// Reads `unix:///PATH` and `https://HOST:PORT`.
    pub fn parse(text: &str) -> Result<Address, String> {
        match text.split_once("://") {
            Some(("unix", path)) if path.starts_with('/') => Ok(Address::Unix(PathBuf::from(path))),
            Some(("unix", path)) => Err(format!("\"{path}\" is not an absolute path: expected unix:///PATH")),
            Some(("https", rest)) => tls(rest).ok_or_else(|| {
                format!("\"{text}\" is no address: expected https://HOST:PORT, such as https://ctld.example.org:7443")
            }),
            Some((scheme, _)) => Err(format!(
                "scheme \"{scheme}\" is not supported: expected unix:///PATH or https://HOST:PORT"
            )),
            None => Err(format!("\"{text}\" is no address: expected unix:///PATH or https://HOST:PORT")),
        }
    }
}

/// `HOST:PORT`, an IPv6 address in brackets.
fn tls(text: &str) -> Option<Address> {
    let (host, port) = text.strip_suffix('/').unwrap_or(text).rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(host).ok()?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    Some(Address::Tls { host: host.to_owned(), port })
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "{}", path.display()),
            Address::Tls { host, port } if host.contains(':') => write!(f, "https://[{host}]:{port}"),
            Address::Tls { host, port } => write!(f, "https://{host}:{port}"),
        }
    }
}

/// One address, or a list.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected an address, or a list of addresses")]
pub(crate) enum Addresses {
    One(String),
    More(Vec<String>),
}

impl Addresses {
    /// Each one read, in the order given.
    pub(crate) fn read(&self) -> Result<Vec<Address>, String> {
        let texts = match self {
            Addresses::One(text) => std::slice::from_ref(text),
            Addresses::More(texts) => texts,
        };
        if texts.is_empty() || texts.len() > ADDRESSES_MAX {
            return Err(format!("{} addresses: expected 1 to {ADDRESSES_MAX}", texts.len()));
        }
        texts.iter().map(|text| Address::parse(text)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_machine_is_named_with_its_port() {
        for (text, host, port) in [
            ("https://ctld.example.org:7443", "ctld.example.org", 7443),
            ("https://10.0.0.1:1/", "10.0.0.1", 1),
            ("https://[fd00::1]:7443", "fd00::1", 7443),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!(address, Address::Tls { host: host.to_owned(), port }, "{text}");
            assert_eq!(address.to_string(), text.trim_end_matches('/'));
        }
        for text in
            ["https://h", "https://h:0", "https://h:x", "https://:1", "https://h:1/p", "https://a b:1"]
        {
            let error = Address::parse(text).unwrap_err();
            assert!(error.contains("https://HOST:PORT"), "{text}: {error}");
        }
    }
}
