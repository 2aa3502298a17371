//! `bctl reserve`, `reservation` and `extend`.

pub mod args;

use super::{NAME, gpu_name};
use crate::client::{Client, decode, encode, escape, retry};
use crate::fail::{Fail, say, warn};
use crate::hostlist::names;
use crate::out;
use crate::table::{Column, Table, terminal_width};
use crate::text::visible;
use crate::wall;
use args::{CancelArgs, ExtendArgs, ListArgs, ReservationAct, ReserveArgs, ShowArgs};
use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use proto::Atom;
use proto::api::{Begin, ExtendRequest, Extended, Reservation, ReservationList, ReserveRequest};
use proto::datetime::Moment;
use proto::duration::{Full, Limit};
use proto::memory;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write;
use std::process::ExitCode;

/// Reserves.
pub async fn reserve(args: ReserveArgs) -> Result<ExitCode, Fail> {
    let mut client = Client::find()?;
    let mut request = request(&args)?;
    for text in &args.atom {
        request.atoms.push(gpu_name::find(&mut client, text).await?);
    }
    if request.cpus == 0 && !request.exclusive {
        warn(NAME, "it reserves no CPUs, and a job needs one: none will run inside; --cpus names how many");
    }
    let body = post(&mut client, "/v1/reservations", &request, &request.idempotency_key).await?;
    if args.json {
        out::write_json(&body)?;
        return Ok(ExitCode::SUCCESS);
    }
    let list: ReservationList = decode(&body)?;
    let mut text = String::new();
    for reservation in &list.reservations {
        let (begin, end) = (wall::show(reservation.begin_at), wall::show(reservation.end_at));
        let where_ = reservation.nodes.iter().map(|node| node.node.as_str()).collect::<Vec<_>>().join(",");
        writeln!(text, "Reserved {} on {where_} from {begin} to {end}", visible(&reservation.name))
            .expect("a String takes all");
    }
    out::write(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn request(args: &ReserveArgs) -> Result<ReserveRequest, Fail> {
    let mut warnings = Vec::new();
    let begin =
        match args.begin.as_deref().map(|text| wall::read("--begin", text, &mut warnings)).transpose()? {
            None | Some(Moment::After(0)) => None,
            Some(Moment::After(s)) => Some(Begin::AfterS(s)),
            Some(Moment::At { at, .. }) => Some(Begin::At(at)),
        };
    let end = args.end.as_deref().map(|text| wall::read("--end", text, &mut warnings)).transpose()?;
    warnings.iter().for_each(|warning| warn(NAME, warning));
    let (duration_s, end_at) = match (args.duration.map(Limit::seconds), end) {
        (Some(None), _) => {
            return Err(
                Fail::usage("a reservation has an end").hint("write --duration=1:00:00, or the --end")
            );
        }
        (Some(Some(s)), _) => (Some(s), None),
        (None, Some(Moment::At { at, .. })) => (None, Some(at)),
        // Both are delays from one now, which only the controller's clock needs to know.
        (None, Some(Moment::After(s))) => match &begin {
            None => (Some(s), None),
            Some(Begin::AfterS(begin)) => (Some(s.saturating_sub(*begin)), None),
            Some(Begin::At(_)) => (None, Some(after(s)?)),
        },
        (None, None) => return Err(Fail::usage("--duration or --end is needed")),
    };
    let nodes = args.nodelist.as_deref().map(|text| names("--nodelist", text)).transpose()?;
    let gpus = args.gpus.clone().unwrap_or_default();
    Ok(ReserveRequest {
        idempotency_key: key(&args.idempotency_key),
        name: args.name.clone(),
        owner: args.owner.clone(),
        pool: args.pool.clone(),
        begin,
        duration_s,
        end_at,
        nodes: args.nodes,
        node_names: nodes.unwrap_or_default(),
        cpus: args.cpus,
        mem_mib: args.mem.unwrap_or(0),
        disk_mib: args.tmp.unwrap_or(0),
        exclusive: args.exclusive,
        gpus: gpus.count,
        gpu_type: gpus.model,
        atoms: Vec::new(),
        users: args.users.clone(),
        accounts: args.accounts.clone(),
        repeat: args.repeat.clone(),
    })
}

/// Shows or cancels reservations.
pub async fn reservation(act: ReservationAct) -> Result<ExitCode, Fail> {
    let mut client = Client::find()?;
    match act {
        ReservationAct::List(ListArgs { all, noheader, json }) => {
            let body =
                client.get(if all { "/v1/reservations?ended=true" } else { "/v1/reservations" }).await?;
            if json {
                out::write_json(&body)?;
            } else {
                let list: ReservationList = decode(&body)?;
                out::write(table(&list).render(!noheader, terminal_width()).as_bytes())?;
            }
        }
        ReservationAct::Show(ShowArgs { name, json }) => {
            let body = client.get(&format!("/v1/reservations/{}", part(&name)?)).await?;
            if json {
                out::write_json(&body)?;
            } else {
                let list: ReservationList = decode(&body)?;
                out::write(list.reservations.iter().map(record).collect::<Vec<_>>().join("\n").as_bytes())?;
            }
        }
        ReservationAct::Cancel(args) => return cancel(&mut client, args).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// One that is refused does not keep the others from being cancelled.
async fn cancel(client: &mut Client, args: CancelArgs) -> Result<ExitCode, Fail> {
    let mut done = ReservationList::default();
    let mut first_failure = None;
    for name in &args.names {
        let answer = match part(name) {
            Ok(part) => client.post(&format!("/v1/reservations/{part}/cancel"), &serde_json::json!({})).await,
            Err(fail) => Err(fail),
        };
        match answer {
            Ok(body) => done.reservations.append(&mut decode::<ReservationList>(&body)?.reservations),
            Err(fail) if args.names.len() == 1 => return Err(fail),
            Err(fail) => {
                fail.report(NAME, false);
                first_failure.get_or_insert(fail.exit_code());
            }
        }
    }
    if args.json {
        out::write_json(&encode(&done)?)?;
    } else {
        let mut names: Vec<&str> = done.reservations.iter().map(|r| r.name.as_str()).collect();
        names.dedup();
        names.iter().for_each(|name| say(NAME, "", &format!("reservation {name} is cancelled")));
    }
    Ok(ExitCode::from(first_failure.unwrap_or(0)))
}

/// Extends a job or a reservation.
pub async fn extend(args: ExtendArgs) -> Result<ExitCode, Fail> {
    let mut warnings = Vec::new();
    let end_at = match args.to.as_deref().map(|text| wall::read("--to", text, &mut warnings)).transpose()? {
        None => None,
        Some(Moment::At { at, .. }) => Some(at),
        Some(Moment::After(s)) => Some(after(s)?),
    };
    warnings.iter().for_each(|warning| warn(NAME, warning));
    let by_s = match args.by {
        None => None,
        Some(Limit::Unlimited) => {
            return Err(
                Fail::usage("--by needs a time: nothing is extended without end").hint("write --by=1:00:00")
            );
        }
        Some(Limit::Seconds(s)) => Some(s),
    };
    let request =
        ExtendRequest { idempotency_key: key(&args.idempotency_key), what: args.what.clone(), by_s, end_at };
    let mut client = Client::find()?;
    let body = post(&mut client, "/v1/extend", &request, &request.idempotency_key).await?;
    if args.json {
        out::write_json(&body)?;
        return Ok(ExitCode::SUCCESS);
    }
    out::write(extended_line(&decode(&body)?).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn extended_line(extended: &Extended) -> String {
    let limit = extended.time_limit_s.map(|s| format!("has a time limit of {}", Full(s)));
    let end = extended.end_at.map(|at| format!("ends at {}", wall::show(at)));
    let says = [limit, end].into_iter().flatten().collect::<Vec<_>>().join(" and ");
    let kind = if extended.time_limit_s.is_some() { "Job" } else { "Reservation" };
    format!("{kind} {} {says}\n", visible(&extended.what))
}

async fn post(client: &mut Client, path: &str, body: &impl Serialize, key: &str) -> Result<Bytes, Fail> {
    retry::post(client, path, encode(body)?, key, retry::RETRY_TIME).await
}

fn key(given: &Option<String>) -> String {
    given.clone().unwrap_or_else(|| uuid::Uuid::now_v7().to_string())
}

/// A delay as an instant, by this machine's clock.
fn after(s: u64) -> Result<DateTime<Utc>, Fail> {
    i64::try_from(s)
        .ok()
        .and_then(TimeDelta::try_seconds)
        .and_then(|delay| wall::now().to_utc().checked_add_signed(delay))
        .ok_or_else(|| Fail::usage(format!("{s} seconds from now is too far away")))
}

/// A reservation's name as a part of a path.
fn part(name: &str) -> Result<String, Fail> {
    match name {
        "" | "." | ".." => Err(Fail::usage(format!("{name:?} is no reservation's name"))
            .hint("`bctl reservation list` lists them")),
        name => Ok(escape(name)),
    }
}

/// The list.
fn table(list: &ReservationList) -> Table<'_> {
    let rows = list.reservations.iter().map(|r| {
        let sum = |of: fn(&proto::api::ReservedNode) -> u64| r.nodes.iter().map(of).sum::<u64>();
        vec![
            Cow::Borrowed(r.name.as_str()),
            Cow::Borrowed(r.state.as_str()),
            Cow::Borrowed(r.owner.as_str()),
            Cow::Borrowed(r.pool.as_str()),
            Cow::Owned(wall::show_slurm(r.begin_at)),
            Cow::Owned(wall::show_slurm(r.end_at)),
            Cow::Owned(r.nodes.iter().map(|node| node.node.as_str()).collect::<Vec<_>>().join(",")),
            Cow::Owned(sum(|node| node.cpus.into()).to_string()),
            Cow::Owned(memory::show(sum(|node| node.mem_mib))),
            Cow::Owned(gpus(r)),
            Cow::Owned(r.jobs.len().to_string()),
        ]
    });
    let columns = vec![
        Column::whole("NAME"),
        Column::whole("STATE"),
        Column::soft("OWNER"),
        Column::soft("POOL"),
        Column::whole("BEGIN"),
        Column::whole("END"),
        Column::soft("NODES"),
        Column::number("CPUS"),
        Column::number("MEM"),
        Column::whole("GPUS"),
        Column::number("JOBS"),
    ];
    Table { columns, rows: rows.collect() }
}

/// Whole GPUs by number, parts by their names: `2`, `mig:1g.10gb@3`, `1+slot:2/8`.
fn gpus(reservation: &Reservation) -> String {
    let atoms = || reservation.nodes.iter().flat_map(|node| &node.atoms);
    let whole = atoms().filter(|atom| atom.atom == Atom::Whole).count();
    let mut said: Vec<String> =
        atoms().filter(|a| a.atom != Atom::Whole).map(|a| a.atom.to_string()).collect();
    if whole > 0 || said.is_empty() {
        said.insert(0, whole.to_string());
    }
    said.join("+")
}

/// A reservation in full, as labelled lines.
fn record(r: &Reservation) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: &str| {
        if !value.is_empty() {
            let label = format!("{label}:");
            writeln!(text, "{label:12} {}", visible(value)).expect("a String takes all that is written");
        }
    };
    line("Reservation", &r.name);
    line("State", &r.state);
    let author = if r.author == r.owner { String::new() } else { format!(", made by {}", r.author) };
    line("Owner", &format!("{} of tenant {}{author}", r.owner, r.tenant));
    line(
        "Admits",
        &r.users
            .iter()
            .cloned()
            .chain(r.accounts.iter().map(|a| format!("account {a}")))
            .collect::<Vec<_>>()
            .join(", "),
    );
    line("Pool", &r.pool);
    line("Begins", &wall::show(r.begin_at));
    line("Ends", &wall::show(r.end_at));
    if let Some(series) = r.series {
        line("Series", &format!("number {} of series {series}", r.occurrence));
    }
    for node in &r.nodes {
        let mut parts = vec![format!("{} CPUs", node.cpus), memory::show(node.mem_mib) + " of memory"];
        if node.disk_mib > 0 {
            parts.push(memory::show(node.disk_mib) + " of disk");
        }
        parts.extend(node.atoms.iter().map(|atom| atom.to_string()));
        line("Node", &format!("{}: {}", node.node, parts.join(", ")));
    }
    if let Some(condition) = &r.condition {
        line("Condition", &condition.message);
    }
    line("Jobs", &r.jobs.iter().map(i64::to_string).collect::<Vec<_>>().join(","));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bctl::args::{Act, BctlArgs};
    use clap::Parser;
    use proto::api::ReservedNode;

    fn parsed(line: &str) -> Result<ReserveRequest, Fail> {
        match BctlArgs::try_parse_from(line.split(' ')).map(|args| args.act) {
            Ok(Act::Reserve(args)) => request(&args),
            Ok(_) => unreachable!("{line} reserves"),
            Err(error) => Err(Fail::usage(error.to_string())),
        }
    }

    #[test]
    fn when_it_ends_is_said_in_one_of_two_ways() {
        let request =
            parsed("bctl reserve tue -b now+1hour -t 2:00:00 -w n[1-2] -G a100:4 -u bob,carol").unwrap();
        assert_eq!((request.begin, request.duration_s), (Some(Begin::AfterS(3600)), Some(7200)));
        assert_eq!((request.node_names.join(","), request.gpus), ("n1,n2".to_owned(), 4));
        assert_eq!(request.users, ["bob", "carol"]);
        let request = parsed("bctl reserve tue -b now+1hour --end now+3hours --exclusive").unwrap();
        assert_eq!((request.duration_s, request.end_at), (Some(7200), None));
        for line in [
            "bctl reserve tue -c 1",
            "bctl reserve tue -t 1 --end 16:00",
            "bctl reserve tue -t UNLIMITED",
            "bctl reserve",
        ] {
            assert_eq!(parsed(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    fn sample() -> Reservation {
        let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
        Reservation {
            id: 3,
            name: "tue".into(),
            owner: "alice".into(),
            author: "op".into(),
            tenant: "physics".into(),
            pool: "main".into(),
            state: "booked".into(),
            begin_at: at("2026-12-01T08:00:00Z"),
            end_at: at("2026-12-01T10:00:00Z"),
            series: Some(3),
            occurrence: 1,
            users: vec!["bob".into()],
            accounts: vec!["proj".into()],
            nodes: vec![ReservedNode {
                node: "node1".into(),
                cpus: 4,
                mem_mib: 2048,
                disk_mib: 0,
                atoms: vec!["GPU-1".parse().unwrap(), "GPU-2/mig:1g.10gb@3".parse().unwrap()],
            }],
            condition: None,
            jobs: vec![12, 13],
        }
    }

    #[test]
    fn a_reservation_is_shown_in_a_line_and_in_full() {
        let list = ReservationList { reservations: vec![sample()] };
        let text = table(&list).render(true, None);
        assert!(text.contains("tue  booked alice main"), "{text}");
        assert!(text.contains("node1    4  2G 1+mig:1g.10gb@3    2"), "{text}");
        let text = record(&sample());
        for line in [
            "Owner:       alice of tenant physics, made by op\n",
            "Admits:      bob, account proj\n",
            "Series:      number 1 of series 3\n",
            "Node:        node1: 4 CPUs, 2G of memory, GPU-1, GPU-2/mig:1g.10gb@3\n",
            "Jobs:        12,13\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn what_was_extended_is_said_in_a_line() {
        let extended = |time_limit_s| Extended { what: "7".into(), time_limit_s, end_at: None };
        assert_eq!(extended_line(&extended(Some(5400))), "Job 7 has a time limit of 01:30:00\n");
    }
}
