//! `bctl events`: what happened, and with `--follow` what happens.

use crate::client::Client;
use crate::client::escape;
use crate::client::stream::{Follow, Stream, Told};
use crate::fail::{Fail, say, warn};
use crate::out;
use crate::text::visible;
use clap::Args;
use proto::{ErrorCode, Event, JobRef};
use std::fmt::Write;
use std::process::ExitCode;

/// `bctl events`
#[derive(Args, Debug)]
pub struct EventsArgs {
    /// Go on with what happens from now on, until interrupted
    #[arg(long, short)]
    pub follow: bool,
    /// Show only these types, or all of a family: job.ended, node
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    pub kinds: Vec<String>,
    /// Show only what is about this job
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// Begin behind this place: the cursor of an event that --json showed
    #[arg(long, value_name = "CURSOR")]
    pub since: Option<String>,
    /// Print one JSON object a line: the event, with its cursor
    #[arg(long)]
    pub json: bool,
}

/// Shows events.
pub async fn events(args: EventsArgs) -> Result<ExitCode, Fail> {
    let path = path(&args)?;
    let client = Client::find()?;
    if args.follow {
        return follow(Follow::new(client, path, args.since.clone()), args.json).await;
    }
    let mut client = client;
    let mut stream: Stream = client.stream(&path, args.since.as_deref()).await?;
    let mut last = None;
    while let Some(told) = stream.next().await {
        if !show(&told, args.json)? {
            return Ok(ExitCode::SUCCESS);
        }
        last = Some(told.id);
    }
    if let Some(last) = last.filter(|_| !args.json) {
        say("bctl", "", &format!("go on from here with --since {last}"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn follow(mut follow: Follow, json: bool) -> Result<ExitCode, Fail> {
    while show(&follow.next().await?, json)? {}
    Ok(ExitCode::SUCCESS)
}

fn path(args: &EventsArgs) -> Result<String, Fail> {
    let mut path = format!("/v1/events?follow={}", args.follow);
    for kind in &args.kinds {
        proto::event::check_filter(kind)
            .map_err(|e| Fail::usage(e.to_string()).hint("the types are listed in bctl(8)"))?;
    }
    if !args.kinds.is_empty() {
        write!(path, "&type={}", escape(&args.kinds.join(","))).expect("a String takes all");
    }
    if let Some(job) = &args.job {
        let job: JobRef = job.parse().map_err(|e| Fail::usage(format!("{e}")))?;
        if job.tasks.is_some() {
            return Err(Fail::usage("events are told of whole jobs, not of tasks")
                .hint(format!("write --job {}; an event says of which task it is", job.job)));
        }
        write!(path, "&job={}", job.job).expect("a String takes all");
    }
    if let Some(since) = &args.since {
        since.parse::<proto::Cursor>().map_err(|e| Fail::usage(e.to_string()))?;
    }
    Ok(path)
}

/// Shows it; whether somebody still reads.
fn show(told: &Told, json: bool) -> Result<bool, Fail> {
    if told.kind == "expired" {
        let error = serde_json::from_str::<proto::error::ErrorBody>(&told.data).map_or_else(
            |_| proto::ApiError::new(ErrorCode::NotFound, "events behind this place are no longer kept"),
            |body| body.error,
        );
        warn("bctl", &format!("{}; going on from {}", error.message, told.id));
        return Ok(true);
    }
    if told.kind.is_empty() {
        return Ok(true);
    }
    let event: Event = crate::client::decode(told.data.as_bytes())?;
    let mut text = if json { json_line(told, &event)? } else { line(&event) };
    text.push('\n');
    out::write_while_read(text.as_bytes())
}

fn json_line(told: &Told, event: &Event) -> Result<String, Fail> {
    let failed = |e: serde_json::Error| Fail::here(format!("cannot write an event as JSON: {e}"));
    let mut value = serde_json::to_value(event).map_err(failed)?;
    value["cursor"] = told.id.as_str().into();
    serde_json::to_string(&value).map_err(failed)
}

/// Time, type, subject, and what there is to say.
fn line(event: &Event) -> String {
    let mut text = format!(
        "{} {} {}",
        event.time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
        event.kind,
        event.subject
    );
    for (key, value) in event.data.as_object().into_iter().flatten() {
        let value = match value {
            serde_json::Value::Null => continue,
            serde_json::Value::String(text) if !text.contains([' ', '"', '=']) => text.clone(),
            other => other.to_string(),
        };
        write!(text, " {key}={value}").expect("a String takes all");
    }
    visible(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event {
            id: "0190".into(),
            kind: "job.ended".into(),
            tenant: Some("default".into()),
            subject: "job/7".into(),
            data: serde_json::json!({"exit_code": 3, "message": "exit status 3", "nodes": ["n1"], "signal": null, "state": "failed"}),
            time: "2026-12-01T10:00:00.25Z".parse().unwrap(),
        }
    }

    #[test]
    fn an_event_is_a_line() {
        assert_eq!(
            line(&event()),
            "2026-12-01T10:00:00.250Z job.ended job/7 exit_code=3 message=\"exit status 3\" nodes=[\"n1\"] state=failed"
        );
        let told = Told { id: "12-3".into(), ..Told::default() };
        let json: serde_json::Value = serde_json::from_str(&json_line(&told, &event()).unwrap()).unwrap();
        assert_eq!(
            (&json["cursor"], &json["type"], &json["data"]["exit_code"]),
            (&"12-3".into(), &"job.ended".into(), &3.into())
        );
    }

    #[test]
    fn what_cannot_be_asked_for_is_refused_before_it_is() {
        let args = |kinds: &[&str], job: Option<&str>, since: Option<&str>| EventsArgs {
            follow: false,
            kinds: kinds.iter().map(|k| (*k).to_owned()).collect(),
            job: job.map(str::to_owned),
            since: since.map(str::to_owned),
            json: false,
        };
        assert_eq!(
            path(&args(&["job.ended", "node"], Some("7"), Some("1-2"))).unwrap(),
            "/v1/events?follow=false&type=job.ended%2Cnode&job=7"
        );
        for (args, said) in [
            (args(&["jobs"], None, None), "no event is of type \"jobs\""),
            (args(&[], Some("7_1"), None), "whole jobs"),
            (args(&[], None, Some("yesterday")), "no place among events"),
        ] {
            let error = path(&args).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
