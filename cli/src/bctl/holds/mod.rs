//! `bctl drain`, `resume` and `holds`.
//!
//! A drain first asks the controller what it would touch. On a terminal that is shown and a person decides; in a script it is
//! told where there is anything to tell, and the script has decided.

pub mod args;
mod impact;

use super::NAME;
use crate::binfo::node_state;
use crate::client::{Client, decode, encode, escape, retry};
use crate::fail::{Fail, say, warn};
use crate::out;
use crate::table::{Column, Table, terminal_width};
use crate::wall;
use args::{DrainArgs, HoldsArgs, ResumeArgs};
use proto::api::{Begin, Hold, HoldImpact, HoldList, HoldRequest, NodeList, ResumeRequest};
use proto::datetime::Moment;
use proto::duration::Limit;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

/// Holds nodes, GPUs or parts of GPUs.
pub async fn drain(args: DrainArgs) -> Result<ExitCode, Fail> {
    let requests = requests(&args)?;
    let mut client = Client::find()?;
    let mut impacts: Vec<HoldImpact> = Vec::new();
    // One that is refused here does not keep the others from being held; it is refused again below, and told then.
    for request in &requests {
        match client.post("/v1/holds/preview", request).await {
            Ok(body) => impacts.push(decode(&body)?),
            Err(fail) if requests.len() == 1 || args.dry_run => return Err(fail),
            Err(_) => {}
        }
    }
    if args.dry_run {
        if args.json {
            out::write_json(&encode(&serde_json::json!({ "impacts": impacts }))?)?;
        } else {
            out::write(impacts.iter().map(impact::lines).collect::<String>().as_bytes())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let asks = !args.yes && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    for impact in impacts.iter().filter(|impact| asks || impact::touches(impact)) {
        let _ = write!(std::io::stderr(), "{}", impact::lines(impact));
    }
    let targets: Vec<&str> = requests.iter().map(|request| request.target.as_str()).collect();
    if asks && !confirmed(&format!("Hold {}?", crate::text::visible(&targets.join(", "))))? {
        say(NAME, "", "nothing is held");
        return Ok(ExitCode::from(1));
    }
    let requests = requests.iter().map(|request| (request, &*request.idempotency_key));
    let (list, code) = post_each(&mut client, "/v1/holds", requests.collect()).await?;
    if args.json {
        out::write_json(&encode(&list)?)?;
        return Ok(code);
    }
    for hold in &list.holds {
        say(NAME, "", &format!("{} {}: {}", hold.target, held(hold), described(hold)));
        if hold.in_effect && hold.gpu.is_none() {
            let nodes: NodeList = client.get_as(&format!("/v1/nodes/{}", escape(&hold.node))).await?;
            for node in &nodes.nodes {
                say(NAME, "", &format!("node {} is {}", node.name, node_state(node)));
            }
        }
    }
    Ok(code)
}

fn requests(args: &DrainArgs) -> Result<Vec<HoldRequest>, Fail> {
    if args.reason.trim().is_empty() {
        return Err(Fail::usage("--reason is empty").hint("say why, for whoever finds it held"));
    }
    let mut warnings = Vec::new();
    let at = match args.at.as_deref().map(|text| wall::read("--at", text, &mut warnings)).transpose()? {
        None | Some(Moment::After(0)) => None,
        Some(Moment::After(s)) => Some(Begin::AfterS(s)),
        Some(Moment::At { at, .. }) => Some(Begin::At(at)),
    };
    warnings.iter().for_each(|warning| warn(NAME, warning));
    one_key(&args.idempotency_key, args.targets.len())?;
    let request = |target: &String| HoldRequest {
        idempotency_key: key(&args.idempotency_key),
        target: target.clone(),
        kind: args.kind,
        reason: args.reason.clone(),
        owner: args.owner.clone(),
        at: at.clone(),
        for_s: args.for_.and_then(Limit::seconds),
    };
    Ok(args.targets.iter().map(request).collect())
}

/// Asks a person; anything but yes is no.
pub(super) fn confirmed(question: &str) -> Result<bool, Fail> {
    let _ = write!(std::io::stderr(), "{question} [y/N] ");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|e| Fail::here(format!("the answer cannot be read: {}", crate::text::os_error(&e))))?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Lifts holds.
pub async fn resume(args: ResumeArgs) -> Result<ExitCode, Fail> {
    one_key(&args.idempotency_key, args.targets.len())?;
    let requests: Vec<ResumeRequest> = args
        .targets
        .iter()
        .map(|target| ResumeRequest {
            idempotency_key: key(&args.idempotency_key),
            target: target.clone(),
            owner: args.owner.clone(),
            all: args.all,
            planned: args.planned,
        })
        .collect();
    let mut client = Client::find()?;
    let each = requests.iter().map(|request| (request, &*request.idempotency_key));
    let (list, code) = post_each(&mut client, "/v1/holds/resume", each.collect()).await?;
    if args.json {
        out::write_json(&encode(&list)?)?;
        return Ok(code);
    }
    for hold in &list.holds {
        say(NAME, "", &format!("{} is no longer held: {}", hold.target, described(hold)));
    }
    for target in &args.targets {
        let path = format!("/v1/holds?target={}", escape(target));
        // One that was refused was told of.
        let Ok(rest) = client.get_as::<HoldList>(&path).await else { continue };
        for hold in &rest.holds {
            say(NAME, "", &format!("{} still {}: {}", hold.target, held(hold), described(hold)));
        }
    }
    Ok(code)
}

/// Lists holds.
pub async fn list(args: HoldsArgs) -> Result<ExitCode, Fail> {
    let query = args.target.map_or(String::new(), |target| format!("?target={}", escape(&target)));
    let body = Client::find()?.get(&format!("/v1/holds{query}")).await?;
    if args.json {
        out::write_json(&body)?;
    } else {
        let list: HoldList = decode(&body)?;
        out::write(table(&list.holds).render(!args.noheader, terminal_width()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Sends each its request; one that is refused does not keep the others from it.
async fn post_each<T: Serialize>(
    client: &mut Client,
    path: &str,
    requests: Vec<(&T, &str)>,
) -> Result<(HoldList, ExitCode), Fail> {
    let mut done = HoldList::default();
    let mut first_failure = None;
    let alone = requests.len() == 1;
    for (request, key) in requests {
        match retry::post(client, path, encode(request)?, key, retry::RETRY_TIME).await {
            Ok(body) => done.holds.append(&mut decode::<HoldList>(&body)?.holds),
            // With one target the failure is the command's own.
            Err(fail) if alone => return Err(fail),
            Err(fail) => {
                fail.report(NAME, false);
                first_failure.get_or_insert(fail.exit_code());
            }
        }
    }
    Ok((done, ExitCode::from(first_failure.unwrap_or(0))))
}

/// What a target is by this hold.
fn held(hold: &Hold) -> &'static str {
    if hold.in_effect { "is held" } else { "is to be held" }
}

/// `drain by root since … until …: fan 2 is loud`
pub fn described(hold: &Hold) -> String {
    let by = if hold.author == hold.owner {
        hold.owner.clone()
    } else {
        format!("{} (put by {})", hold.owner, hold.author)
    };
    let from = if hold.in_effect { "since" } else { "from" };
    let until = hold.until.map_or(String::new(), |until| format!(" until {}", wall::show(until)));
    format!("{} by {by} {from} {}{until}: {}", hold.kind, wall::show(hold.from), hold.reason)
}

fn table(holds: &[Hold]) -> Table<'_> {
    let rows = holds.iter().map(|hold| {
        vec![
            Cow::Borrowed(hold.kind.name()),
            Cow::Borrowed(hold.target.as_str()),
            Cow::Borrowed(if hold.in_effect { "now" } else { "planned" }),
            Cow::Borrowed(hold.owner.as_str()),
            Cow::Borrowed(hold.author.as_str()),
            Cow::Owned(wall::show(hold.from)),
            Cow::Owned(hold.until.map_or_else(|| "-".to_owned(), wall::show)),
            Cow::Borrowed(hold.reason.as_str()),
        ]
    });
    Table {
        columns: vec![
            Column::whole("KIND"),
            Column::whole("TARGET"),
            Column::whole("HOLDS"),
            Column::whole("OWNER"),
            Column::whole("AUTHOR"),
            Column::whole("FROM"),
            Column::whole("UNTIL"),
            Column::soft("REASON"),
        ],
        rows: rows.collect(),
    }
}

fn key(given: &Option<String>) -> String {
    given.clone().unwrap_or_else(|| uuid::Uuid::now_v7().to_string())
}

fn one_key(given: &Option<String>, targets: usize) -> Result<(), Fail> {
    if given.is_some() && targets > 1 {
        return Err(Fail::usage(format!(
            "--idempotency-key names one request, and {targets} targets are given"
        ))
        .hint("name one target a command"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bctl::args::BctlArgs;
    use crate::binfo::tests::hold;
    use clap::CommandFactory;
    use proto::HoldKind;

    #[test]
    fn holds_are_a_table() {
        let kept = "2126-12-01T08:00:00Z".parse().unwrap();
        let ahead = Hold {
            kind: HoldKind::Maintenance,
            target: "n1/0/mig:1g.10gb@3".to_owned(),
            author: "root".to_owned(),
            reason: "firmware".to_owned(),
            until: Some(kept),
            in_effect: false,
            ..hold("n1")
        };
        let shown = table(&[hold("n1"), ahead.clone()]).render(true, None);
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["KIND", "TARGET", "HOLDS", "OWNER", "AUTHOR", "FROM", "UNTIL", "REASON"]);
        assert_eq!(lines[1][..5], ["drain", "n1", "now", "op", "op"]);
        assert_eq!(lines[2][..5], ["maintenance", "n1/0/mig:1g.10gb@3", "planned", "op", "root"]);
        assert!(
            described(&ahead).starts_with("maintenance by op (put by root) from "),
            "{}",
            described(&ahead)
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_the_command_line() {
        let parse = |line: &str| BctlArgs::command().try_get_matches_from(line.split(' '));
        parse("bctl drain n1 n2/0/mig:1g.10gb@3 --reason fan --at 16:00 --for 2:00:00 --kind cordon")
            .unwrap();
        for line in [
            "bctl drain n1 --reason fan --kind unreachable",
            "bctl drain n1 --reason fan --kind closed",
            "bctl drain n1 --reason fan --dry-run --yes",
            "bctl resume n1 --all --owner bob",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(one_key(&Some("k".to_owned()), 2).is_err() && one_key(&None, 2).is_ok());
    }
}
