//! `bctl node token` and what shows certificates.

use super::args::NodeTokenArgs;
use crate::client::{Client, decode};
use crate::fail::{Fail, say};
use crate::out;
use crate::table::{Column, Table, terminal_width};
use crate::wall;
use proto::api::{NodeCertificate, NodeCertificateList, NodeToken, NodeTokenRequest};
use std::borrow::Cow;

/// Prints a join token: alone on standard output, so that it can go to a file that nobody else reads.
pub async fn token(client: &mut Client, args: NodeTokenArgs) -> Result<(), Fail> {
    let request = NodeTokenRequest { node: args.node, ttl_s: args.ttl.as_secs() };
    let body = client.post("/v1/node-tokens", &request).await?;
    if args.json {
        return out::write_json(&body);
    }
    let token: NodeToken = decode(&body)?;
    out::write(format!("{}\n", token.token).as_bytes())?;
    let whose = token.node.map_or_else(|| "a new node".to_owned(), |node| format!("node {node}"));
    say(super::NAME, "", &format!("good once, for {whose}, until {}", wall::show(token.expires_at)));
    Ok(())
}

/// Shows certificates.
pub fn show(body: &[u8], noheader: bool, json: bool) -> Result<(), Fail> {
    if json {
        return out::write_json(body);
    }
    let list: NodeCertificateList = decode(body)?;
    out::write(table(&list.certificates).render(!noheader, terminal_width()).as_bytes())
}

fn table(certificates: &[NodeCertificate]) -> Table<'_> {
    let rows = certificates.iter().map(|certificate| {
        let revoked = match (&certificate.revoked_at, &certificate.revoked_by) {
            (Some(at), Some(by)) => format!("{} by {by}", wall::show_slurm(*at)),
            _ => String::new(),
        };
        vec![
            Cow::Borrowed(certificate.node.as_str()),
            Cow::Borrowed(certificate.serial.as_str()),
            Cow::Owned(wall::show_slurm(certificate.issued_at)),
            Cow::Owned(wall::show_slurm(certificate.expires_at)),
            Cow::Owned(revoked),
        ]
    });
    let columns = vec![
        Column::whole("NODE"),
        Column::whole("SERIAL"),
        Column::whole("ISSUED"),
        Column::whole("EXPIRES"),
        Column::whole("REVOKED"),
    ];
    Table { columns, rows: rows.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revoked_certificate_says_since_when_and_by_whom() {
        let at = |hour: u32| format!("2026-12-01T{hour:02}:00:00Z").parse().unwrap();
        let good = NodeCertificate {
            node: "n1".into(),
            serial: "5f".into(),
            issued_at: at(1),
            expires_at: at(9),
            revoked_at: None,
            revoked_by: None,
        };
        let revoked =
            NodeCertificate { revoked_at: Some(at(2)), revoked_by: Some("ada".into()), ..good.clone() };
        let shown = table(&[good, revoked]).render(false, None);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[0].starts_with("n1 ") && !lines[0].contains("by"), "{shown}");
        assert!(lines[1].trim_end().ends_with(" by ada"), "{shown}");
    }
}
