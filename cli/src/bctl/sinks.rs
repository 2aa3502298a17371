//! `bctl sink`: webhooks that events are sent to.

use crate::client::{Client, decode};
use crate::fail::{Fail, say};
use crate::out;
use crate::table::{Column, Table, terminal_width};
use clap::{Args, Subcommand};
use proto::Cursor;
use proto::api::{DeadLetterList, ReplayAnswer, ReplayRequest, Sink, SinkAdded, SinkList, SinkRequest};
use std::borrow::Cow;
use std::path::PathBuf;
use std::process::ExitCode;

/// `bctl sink`
#[derive(Subcommand, Debug)]
pub enum SinkAct {
    /// Have events sent to a URL from now on; prints the secret of its signatures, this once
    Add(SinkAddArgs),
    /// List the sinks
    List(SinkListArgs),
    /// Show one sink
    Show(SinkArgs),
    /// Send nothing to a sink until it is resumed
    Pause(SinkArgs),
    /// Send to a sink again, from where it was
    Resume(SinkArgs),
    /// Forget a sink, with what waits for it and its dead letters
    Delete(SinkArgs),
    /// List what a sink did not take and is not sent any more
    DeadLetters(SinkListOfArgs),
    /// Send dead letters again
    Replay(SinkReplayArgs),
}

/// `bctl sink add`
#[derive(Args, Debug)]
pub struct SinkAddArgs {
    /// Where to: https://...
    #[arg(value_name = "URL")]
    pub url: String,
    /// Send this tenant's events only
    #[arg(long, value_name = "TENANT")]
    pub tenant: Option<String>,
    /// Send these types only, or all of a family: job.ended, node
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    pub kinds: Vec<String>,
    /// Sign with the secret in this file (whsec_...), instead of one that is made
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Print JSON as the controller gives it
    #[arg(long)]
    pub json: bool,
}

/// `bctl sink list`
#[derive(Args, Debug)]
pub struct SinkListArgs {
    /// Leave the titles out
    #[arg(long)]
    pub noheader: bool,
    /// Print JSON as the controller gives it
    #[arg(long, conflicts_with = "noheader")]
    pub json: bool,
}

/// One sink.
#[derive(Args, Debug)]
pub struct SinkArgs {
    /// The sink's number
    #[arg(value_name = "ID")]
    pub id: i64,
    /// Print JSON as the controller gives it
    #[arg(long)]
    pub json: bool,
}

/// `bctl sink dead-letters`
#[derive(Args, Debug)]
pub struct SinkListOfArgs {
    /// The sink's number
    #[arg(value_name = "ID")]
    pub id: i64,
    /// Leave the titles out
    #[arg(long)]
    pub noheader: bool,
    /// Print JSON as the controller gives it
    #[arg(long, conflicts_with = "noheader")]
    pub json: bool,
}

/// `bctl sink replay`
#[derive(Args, Debug)]
pub struct SinkReplayArgs {
    /// The sink's number
    #[arg(value_name = "ID")]
    pub id: i64,
    /// The cursors of the dead letters, as listed; without any, all
    #[arg(value_name = "CURSOR")]
    pub cursors: Vec<Cursor>,
    /// Print JSON as the controller gives it
    #[arg(long)]
    pub json: bool,
}

/// Shows and changes sinks.
pub async fn sink(act: SinkAct) -> Result<ExitCode, Fail> {
    let (body, noheader, json) = match act {
        SinkAct::Add(args) => return add(args).await,
        SinkAct::Replay(args) => return replay(args).await,
        SinkAct::DeadLetters(args) => return dead_letters(args).await,
        SinkAct::List(args) => (Client::find()?.get("/v1/sinks").await?, args.noheader, args.json),
        SinkAct::Show(args) => {
            (Client::find()?.get(&format!("/v1/sinks/{}", args.id)).await?, false, args.json)
        }
        SinkAct::Pause(args) => (done(args.id, "pause").await?, false, args.json),
        SinkAct::Resume(args) => (done(args.id, "resume").await?, false, args.json),
        SinkAct::Delete(args) => (done(args.id, "delete").await?, false, args.json),
    };
    if json {
        out::write_json(&body)?;
    } else {
        let list: SinkList = decode(&body)?;
        out::write(sinks_table(&list.sinks).render(!noheader, terminal_width()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn done(id: i64, act: &str) -> Result<bytes::Bytes, Fail> {
    Client::find()?.post(&format!("/v1/sinks/{id}/{act}"), &serde_json::json!({})).await
}

async fn add(args: SinkAddArgs) -> Result<ExitCode, Fail> {
    let secret = match &args.secret_file {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                let why = crate::text::os_error(&error);
                Fail::usage(format!("cannot read the secret in \"{}\": {why}", path.display()))
            })?;
            Some(text.trim().to_owned())
        }
        None => None,
    };
    let shown = secret.is_none();
    let request = SinkRequest { url: args.url, tenant: args.tenant, types: args.kinds, secret };
    let body = Client::find()?.post("/v1/sinks", &request).await?;
    if args.json {
        out::write_json(&body)?;
        return Ok(ExitCode::SUCCESS);
    }
    let added: SinkAdded = decode(&body)?;
    let secret = if shown { format!("{}\n", added.secret) } else { String::new() };
    say("bctl", "", &format!("sink {} gets events from now on", added.sink.id));
    if shown {
        say("bctl", "", "the secret of its signatures, which is not shown again:");
    }
    out::write(secret.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn replay(args: SinkReplayArgs) -> Result<ExitCode, Fail> {
    let cursors = args.cursors.iter().map(Cursor::to_string).collect();
    let body =
        Client::find()?.post(&format!("/v1/sinks/{}/replay", args.id), &ReplayRequest { cursors }).await?;
    if args.json {
        out::write_json(&body)?;
    } else {
        let answer: ReplayAnswer = decode(&body)?;
        say("bctl", "", &format!("{} events are sent again", answer.replayed));
    }
    Ok(ExitCode::SUCCESS)
}

async fn dead_letters(args: SinkListOfArgs) -> Result<ExitCode, Fail> {
    let body = Client::find()?.get(&format!("/v1/sinks/{}/dead-letters", args.id)).await?;
    if args.json {
        out::write_json(&body)?;
        return Ok(ExitCode::SUCCESS);
    }
    let list: DeadLetterList = decode(&body)?;
    let word = |event: &serde_json::Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let rows = list.dead_letters.iter().map(|letter| {
        vec![
            Cow::Borrowed(letter.cursor.as_str()),
            Cow::Owned(word(&letter.event, "type")),
            Cow::Owned(word(&letter.event, "subject")),
            Cow::Owned(letter.attempts.to_string()),
            Cow::Owned(letter.error.clone().unwrap_or_default()),
        ]
    });
    let columns = vec![
        Column::whole("CURSOR"),
        Column::whole("TYPE"),
        Column::soft("SUBJECT"),
        Column::number("TRIES"),
        Column::soft("ERROR"),
    ];
    let table = Table { columns, rows: rows.collect() };
    out::write(table.render(!args.noheader, terminal_width()).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn sinks_table(sinks: &[Sink]) -> Table<'_> {
    let rows = sinks.iter().map(|sink| {
        vec![
            Cow::Owned(sink.id.to_string()),
            Cow::Borrowed(sink.state.as_str()),
            Cow::Owned(sink.waiting.to_string()),
            Cow::Owned(sink.dead.to_string()),
            Cow::Borrowed(sink.tenant.as_deref().unwrap_or_default()),
            Cow::Owned(sink.types.join(",")),
            Cow::Borrowed(sink.url.as_str()),
            Cow::Borrowed(sink.note.as_deref().unwrap_or_default()),
        ]
    });
    let columns = vec![
        Column::number("ID"),
        Column::whole("STATE"),
        Column::number("WAITING"),
        Column::number("DEAD"),
        Column::whole("TENANT"),
        Column::soft("TYPES"),
        Column::soft("URL"),
        Column::soft("NOTE"),
    ];
    Table { columns, rows: rows.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_is_a_line() {
        let sink = Sink {
            id: 3,
            url: "https://hooks.example.org/x".into(),
            tenant: None,
            types: vec!["job.ended".into(), "node".into()],
            state: "paused".into(),
            note: Some("paused by root".into()),
            created_by: "root".into(),
            created_at: "2026-12-01T10:00:00Z".parse().unwrap(),
            cursor: "1-2".into(),
            waiting: 0,
            dead: 12,
        };
        insta::assert_snapshot!(sinks_table(&[sink]).render(true, None), @"
        ID STATE  WAITING DEAD TENANT TYPES          URL                         NOTE
         3 paused       0   12        job.ended,node https://hooks.example.org/x paused by root
        ");
    }
}
