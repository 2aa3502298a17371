//! Where a webhook may go: the public internet, and what the administrator allows.
//!
//! Names are resolved by us, every address is looked at, and the connection is made to one that was: so a name that points
//! elsewhere a moment later changes nothing. Refused are private, local and reserved addresses, those of clouds' metadata
//! services, and IPv6 forms that stand for such an IPv4 address.

use hyper::Uri;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// How long a name may take to resolve.
const RESOLVE_WITHIN: Duration = Duration::from_secs(5);
/// The most characters of a URL.
const URL_MAX: usize = 2000;

/// A webhook's URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether it is spoken to over TLS.
    pub tls: bool,
    /// The name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Path and query.
    pub path: String,
}

/// Why nothing is sent there.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The URL cannot be used.
    #[error("{0:?} is no URL for a webhook: {1}")]
    Url(String, &'static str),
    /// The name has no address.
    #[error("{0} cannot be resolved: {1}")]
    Unresolved(String, String),
    /// It leads to where webhooks do not go.
    #[error("{host} is {ip}, {why}: webhooks go there only if webhooks_allow in ctld.toml names it")]
    Refused {
        /// The name.
        host: String,
        /// One of its addresses.
        ip: IpAddr,
        /// What that is.
        why: &'static str,
    },
    /// Not over TLS.
    #[error(
        "{0} is asked for without TLS: write https, or have webhooks_allow in ctld.toml name its addresses"
    )]
    Plain(String),
}

/// Takes a URL apart.
pub fn parse(url: &str) -> Result<Target, TargetError> {
    let wrong = |why| TargetError::Url(url.to_owned(), why);
    if url.len() > URL_MAX {
        return Err(TargetError::Url(
            format!("{}…", url.chars().take(40).collect::<String>()),
            "it is over 2000 characters long",
        ));
    }
    if url.contains('#') {
        return Err(wrong("it has a fragment"));
    }
    let uri: Uri = url.parse().map_err(|_| wrong("it cannot be read"))?;
    let tls = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(wrong("it must begin with https://")),
    };
    let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
    if authority.as_str().contains('@') {
        return Err(wrong("it holds a user or a password"));
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    if host.is_empty() {
        return Err(wrong("it names no host"));
    }
    let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    Ok(Target { tls, host, port, path })
}

/// The addresses of a target, each looked at: to one of these the connection is made.
pub async fn resolve(target: &Target, allow: &[IpNet]) -> Result<Vec<SocketAddr>, TargetError> {
    let unresolved = |why: String| TargetError::Unresolved(target.host.clone(), why);
    let looked_up = tokio::net::lookup_host((target.host.as_str(), target.port));
    let addresses: Vec<SocketAddr> = match tokio::time::timeout(RESOLVE_WITHIN, looked_up).await {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(error)) => return Err(unresolved(error.to_string())),
        Err(_) => return Err(unresolved("the name service did not answer".to_owned())),
    };
    if addresses.is_empty() {
        return Err(unresolved("it has no address".to_owned()));
    }
    for address in &addresses {
        admit(target, address.ip(), allow)?;
    }
    Ok(addresses)
}

fn admit(target: &Target, ip: IpAddr, allow: &[IpNet]) -> Result<(), TargetError> {
    let ip = ip.to_canonical();
    if allow.iter().any(|net| net.contains(&ip)) {
        return Ok(());
    }
    if let Some(why) = unfit(ip) {
        return Err(TargetError::Refused { host: target.host.clone(), ip, why });
    }
    if target.tls { Ok(()) } else { Err(TargetError::Plain(target.host.clone())) }
}

/// What speaks against an address, if anything.
pub fn unfit(ip: IpAddr) -> Option<&'static str> {
    match ip.to_canonical() {
        IpAddr::V4(ip) => unfit_v4(ip),
        IpAddr::V6(ip) => unfit_v6(ip),
    }
}

fn unfit_v4(ip: Ipv4Addr) -> Option<&'static str> {
    match ip.octets() {
        [0, ..] => Some("an unspecified address"),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Some("a private address"),
        [127, ..] => Some("a loopback address"),
        [169, 254, ..] => Some("a link-local address, as of a cloud's metadata service"),
        [100, 64..=127, ..] => Some("an address behind a carrier's NAT"),
        [168, 63, 129, 16] => Some("a cloud's metadata service"),
        [192, 0, 0, _]
        | [192, 0, 2, _]
        | [192, 88, 99, _]
        | [198, 18..=19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _] => Some("a reserved address"),
        [224..=239, ..] => Some("a multicast address"),
        [240..=255, ..] => Some("a reserved address"),
        _ => None,
    }
}

fn unfit_v6(ip: Ipv6Addr) -> Option<&'static str> {
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        unfit_v4(Ipv4Addr::new(a, b, c, d))
    };
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("an unspecified address"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("a loopback address"),
        // NAT64 and 6to4 lead to the IPv4 address within.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x2002, high, low, ..] => embedded(high, low),
        // Teredo and the rest of 2001::/23, documentation.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some("a reserved address"),
        [0x2000..=0x3fff, ..] => None,
        [0xfc00..=0xfdff, ..] => Some("a private address"),
        [0xfe80..=0xfebf, ..] => Some("a link-local address"),
        [0xff00..=0xffff, ..] => Some("a multicast address"),
        _ => Some("a reserved address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_public_is_refused_in_every_form() {
        for text in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.255",
            "169.254.169.254",
            "168.63.129.16",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "2001::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "100::1",
        ] {
            assert!(unfit(text.parse().unwrap()).is_some(), "{text}");
        }
        for text in
            ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::101:101", "2002:101:101::1"]
        {
            assert_eq!(unfit(text.parse().unwrap()), None, "{text}");
        }
    }

    #[test]
    fn what_is_allowed_may_be_plain_and_nothing_else() {
        let allow: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap()];
        let at = |url: &str, ip: &str| admit(&parse(url).unwrap(), ip.parse().unwrap(), &allow);
        assert_eq!(at("http://a/x", "10.1.1.1"), Ok(()));
        assert_eq!(at("https://a/x", "::ffff:10.1.1.1"), Ok(()));
        assert_eq!(at("https://a", "1.1.1.1"), Ok(()));
        assert!(matches!(at("http://a", "1.1.1.1"), Err(TargetError::Plain(_))));
        assert!(matches!(at("https://a", "192.168.0.1"), Err(TargetError::Refused { .. })));
    }

    #[test]
    fn a_url_is_taken_apart_or_refused() {
        let target = parse("https://hooks.example.org/a?b=c").unwrap();
        let want = Target { tls: true, host: "hooks.example.org".into(), port: 443, path: "/a?b=c".into() };
        assert_eq!(target, want);
        assert_eq!(parse("http://[::1]:8080").unwrap().host, "::1");
        for url in
            ["", "hooks.example.org", "ftp://a", "https://", "https://u:p@a/", "https://a/#b", "https://a b"]
        {
            assert!(parse(url).is_err(), "{url}");
        }
    }
}
