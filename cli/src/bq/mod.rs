//! `bq`: shows jobs, as a list or one in full, and says why a job waits.
//!
//! JSON is passed on as the controller gave it. A list asks for the brief form where its columns need no more, and reads only what
//! they may need ([`row`]); one job in full is read whole ([`record`]).

pub mod args;
pub mod columns;
pub mod format;
pub mod record;
pub mod row;
#[cfg(test)]
pub mod sample;
mod watch;

use crate::client::{Client, decode, escape};
use crate::fail::{Fail, warn};
use crate::frame::{self, Parsed};
use crate::out;
use crate::table::{Column, Table, terminal_width};
use args::BqArgs;
use clap::FromArgMatches;
use proto::JobRef;
use proto::api::JobList;
use row::Rows;
use std::process::ExitCode;

const NAME: &str = "bq";

/// The command.
pub fn main() -> ExitCode {
    frame::run(NAME, |argv| {
        let matches = match frame::parse(NAME, args::parser(), argv)? {
            Parsed::Run(matches) => matches,
            Parsed::Done(code) => return Ok(code),
        };
        args::refuse(&matches)?;
        let args = BqArgs::from_arg_matches(&matches).map_err(|e| frame::usage(NAME, &e))?;
        frame::block_on(run(&args))?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn run(args: &BqArgs) -> Result<(), Fail> {
    if let Some(id) = &args.why {
        return show(&[format!("/v1/jobs/{}/why", escape(&one(id)?))], args.json, record::why).await;
    }
    if !args.ids.is_empty() {
        let paths = args
            .ids
            .iter()
            .map(|id| Ok(format!("/v1/jobs/{}", escape(&one(id)?))))
            .collect::<Result<Vec<_>, Fail>>();
        return show(&paths?, args.json, record::record).await;
    }
    list(args).await
}

/// An id as the controller's paths take it, checked.
fn one(id: &str) -> Result<String, Fail> {
    Ok(id.parse::<JobRef>().map_err(|e| Fail::usage(e.to_string()))?.to_string())
}

/// Asks for jobs and shows each; of several in one answer (an array's tasks) the list.
async fn show(paths: &[String], json: bool, each: fn(&proto::api::Job) -> String) -> Result<(), Fail> {
    let mut client = Client::find()?;
    let mut bodies = Vec::new();
    for path in paths {
        bodies.push(client.get(path).await?);
    }
    if json {
        return match bodies.as_slice() {
            [one] => out::write_json(one),
            several => out::write_json(&joined(several)?),
        };
    }
    let mut text = String::new();
    for body in &bodies {
        let list: JobList = decode(body)?;
        for job in &list.jobs {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&each(job));
        }
    }
    out::write(text.as_bytes())
}

/// Several answers as one document.
fn joined(bodies: &[bytes::Bytes]) -> Result<Vec<u8>, Fail> {
    let mut all = JobList::default();
    for body in bodies {
        let mut list: JobList = decode(body)?;
        all.jobs.append(&mut list.jobs);
        all.truncated |= list.truncated;
    }
    Ok(crate::client::encode(&all)?.to_vec())
}

async fn list(args: &BqArgs) -> Result<(), Fail> {
    // What is no column is refused before anything is asked.
    let layout = Layout::of(args)?;
    if args.watch {
        return watch::watch(args, &layout).await;
    }
    let body = list_body(&mut Client::find()?, args, &layout).await?;
    if args.json {
        return out::write_json(&body);
    }
    let shown = layout.render(args, &body, terminal_width())?;
    out::write(shown.text.as_bytes())?;
    if shown.truncated {
        warn(NAME, "there are more jobs than are shown: narrow the list with -u, -p, -t or -n");
    }
    Ok(())
}

/// The list as the controller gives it.
async fn list_body(client: &mut Client, args: &BqArgs, layout: &Layout) -> Result<bytes::Bytes, Fail> {
    let at = if layout.brief() && !args.json { "/v1/jobs/brief" } else { "/v1/jobs" };
    client.get(&path(at, args)?).await
}

/// A list as it is to be printed.
struct Shown {
    text: String,
    truncated: bool,
}

#[cfg(test)]
fn render(args: &BqArgs, body: &[u8], terminal: Option<usize>) -> Result<Shown, Fail> {
    Layout::of(args)?.render(args, body, terminal)
}

/// Which columns, in which form and order.
struct Layout {
    form: Option<format::Form>,
    columns: Vec<&'static columns::Kind>,
    sort: Vec<(&'static columns::Kind, bool)>,
}

impl Layout {
    fn of(args: &BqArgs) -> Result<Layout, Fail> {
        let form = args.format.as_deref().and_then(format::form).transpose()?;
        let columns = match args.format.as_deref() {
            Some(names) if form.is_none() => format::names(names)?,
            _ => default_columns(args).iter().filter_map(|name| columns::named(name)).collect(),
        };
        let sort = args.sort.as_deref().map(format::sort_keys).transpose()?.unwrap_or_default();
        Ok(Layout { form, columns, sort })
    }

    /// Whether the controller's brief list holds everything that is shown and sorted by.
    fn brief(&self) -> bool {
        let form = self.form.iter().flat_map(format::Form::kinds);
        // A form takes the columns' place.
        let columns = self.columns.iter().copied().filter(|_| self.form.is_none());
        form.chain(columns).chain(self.sort.iter().map(|(kind, _)| *kind)).all(columns::Kind::brief)
    }

    fn render(&self, args: &BqArgs, body: &[u8], terminal: Option<usize>) -> Result<Shown, Fail> {
        let Rows { mut jobs, truncated } = crate::client::decode_borrowed(body)?;
        if !self.sort.is_empty() {
            format::sort(&mut jobs, &self.sort);
        }
        let header = !args.noheader;
        if let Some(form) = &self.form {
            return Ok(Shown { text: form.render(&jobs, header), truncated });
        }
        let columns = self.columns.iter().map(|kind| match args.parsable {
            // Programs get the names that -o takes, people the titles.
            true => Column::whole(kind.name),
            false => kind.column(),
        });
        let table = Table {
            columns: columns.collect(),
            rows: jobs.iter().map(|job| self.columns.iter().map(|kind| (kind.fill)(job)).collect()).collect(),
        };
        let text = if args.parsable { table.separated(header) } else { table.render(header, terminal) };
        Ok(Shown { text, truncated })
    }
}

fn default_columns(args: &BqArgs) -> &'static [&'static str] {
    match (args.parsable, args.long) {
        (true, _) => columns::PARSABLE,
        (false, true) => columns::LONG,
        (false, false) => columns::PLAIN,
    }
}

/// The path and query that ask for the list.
fn path(at: &str, args: &BqArgs) -> Result<String, Fail> {
    let ids = args.jobs.as_deref().map(ids).transpose()?;
    let me = if args.me { Some(me()?) } else { None };
    let filters = [
        ("ids", ids.as_deref()),
        ("states", args.states.as_deref()),
        ("users", me.as_deref().or(args.user.as_deref())),
        ("names", args.name.as_deref()),
        ("pools", args.pool.as_deref()),
        ("nodes", args.nodelist.as_deref()),
        ("accounts", args.account.as_deref()),
        ("tasks", args.array.then_some("true")),
    ];
    let given: Vec<String> =
        filters.iter().filter_map(|(name, value)| Some(format!("{name}={}", escape((*value)?)))).collect();
    Ok(if given.is_empty() { at.to_owned() } else { format!("{at}?{}", given.join("&")) })
}

/// Ids with commas between them, each checked.
fn ids(text: &str) -> Result<String, Fail> {
    let ids = crate::bcancel::split(text).into_iter().map(one).collect::<Result<Vec<_>, Fail>>()?;
    Ok(ids.join(","))
}

/// The caller's login name.
pub fn me() -> Result<String, Fail> {
    let uid = nix::unistd::getuid();
    match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => Ok(user.name),
        Ok(None) => Err(Fail::here(format!("user id {uid} has no name")).hint("name a user with --user")),
        Err(e) => Err(Fail::here(format!("cannot look up user id {uid}: {}", e.desc().to_lowercase()))),
    }
}

#[cfg(test)]
mod tests;
