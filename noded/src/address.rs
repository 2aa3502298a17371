//! Where a controller is, as `noded.toml` writes it.
//!
//! One address or a list: several controllers over one database are each as good as the other. An address that cannot be read is
//! an error though others could, since the node would silently have fewer to turn to.

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
}

impl Address {
    /// Reads `unix:///PATH`.
    pub fn parse(text: &str) -> Result<Address, String> {
        match text.split_once("://") {
            Some(("unix", path)) if path.starts_with('/') => Ok(Address::Unix(PathBuf::from(path))),
            Some(("unix", path)) => Err(format!("\"{path}\" is not an absolute path: expected unix:///PATH")),
            Some((scheme, _)) => Err(format!("scheme \"{scheme}\" is not supported: expected unix:///PATH")),
            None => Err(format!("\"{text}\" is no address: expected unix:///PATH")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "{}", path.display()),
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
