//! `bctl gpu`: the modes of GPUs, and the changes that are booked.

use super::{NAME, gpu_name};
use crate::client::{Client, decode, encode, retry};
use crate::fail::{Fail, say, warn};
use crate::out;
use crate::table::{Column, Table, terminal_width};
use crate::text::visible;
use crate::wall;
use clap::{Args, Subcommand};
use proto::api::{Begin, GpuChange, GpuChangeAnswer, GpuChangeList, GpuChangeRequest};
use proto::datetime::Moment;
use proto::duration::{Limit, parse_limit};
use proto::{Atom, ErrorCode, GpuMode};
use std::borrow::Cow;
use std::fmt::Write;
use std::process::ExitCode;

/// GPUs' modes.
#[derive(Subcommand, Debug)]
pub enum GpuAct {
    /// Set a GPU to another mode, number of slots or MIG layout, now or at a time
    Mode(ModeArgs),
    /// List the changes that are booked
    Changes(ChangesArgs),
    /// Cancel a change that has not been made
    Cancel(CancelArgs),
}

/// `bctl gpu mode`
#[derive(Args, Debug)]
pub struct ModeArgs {
    /// The GPU: GPU-…, or by node and index, node1/0
    #[arg(value_name = "GPU")]
    pub gpu: String,
    /// whole, mig, timeslice:SLOTS or mps:SLOTS
    #[arg(value_name = "MODE", value_parser = setting)]
    pub mode: (GpuMode, Option<u16>),
    /// The MIG instances it has, such as 3g.40gb,1g.10gb, or with their first slices, 3g.40gb@4,1g.10gb@0; otherwise they are
    /// made on demand
    #[arg(long, value_name = "PROFILES", value_delimiter = ',')]
    pub layout: Option<Vec<String>>,
    /// When: now+2hours, 16:00, tomorrow, 2026-12-01T08:00:00 (local time), or with a zone (…Z); otherwise now
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// How long nothing else is booked there, while it is made: minutes, M:S, H:M:S; otherwise a minute
    #[arg(long = "for", value_name = "TIME", value_parser = parse_limit)]
    pub window: Option<Limit>,
    /// Only say what would be in the way (exit code 0 if nothing, 6 if something)
    #[arg(long)]
    pub dry_run: bool,
    /// Make this request once, however often it is sent
    #[arg(long, value_name = "KEY", value_parser = crate::bsub::args::key)]
    pub idempotency_key: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// `bctl gpu changes`
#[derive(Args, Debug)]
pub struct ChangesArgs {
    /// Those that have been made or cancelled too
    #[arg(short = 'a', long)]
    pub all: bool,
    /// Leave the titles out
    #[arg(long)]
    pub noheader: bool,
    /// Print JSON as the controller gives it
    #[arg(long, conflicts_with = "noheader")]
    pub json: bool,
}

/// `bctl gpu cancel`
#[derive(Args, Debug)]
pub struct CancelArgs {
    /// The change, as `bctl gpu changes` numbers it
    #[arg(value_name = "ID")]
    pub id: i64,
    /// Print the change as JSON
    #[arg(long)]
    pub json: bool,
}

fn setting(text: &str) -> Result<(GpuMode, Option<u16>), String> {
    let form =
        || format!("{text:?} is no mode: expected whole, mig, timeslice:SLOTS or mps:SLOTS, such as mps:4");
    let (mode, slots) = match text.split_once(':') {
        Some((mode, slots)) => (mode, Some(slots.parse::<u16>().map_err(|_| form())?)),
        None => (text, None),
    };
    Ok((mode.parse().map_err(|_| form())?, slots))
}

/// The command.
pub async fn gpu(act: GpuAct) -> Result<ExitCode, Fail> {
    let mut client = Client::find()?;
    match act {
        GpuAct::Mode(args) => mode(&mut client, args).await,
        GpuAct::Changes(ChangesArgs { all, noheader, json }) => {
            let body =
                client.get(if all { "/v1/gpus/changes?ended=true" } else { "/v1/gpus/changes" }).await?;
            if json {
                out::write_json(&body)?;
            } else {
                let list: GpuChangeList = decode(&body)?;
                out::write(table(&list).render(!noheader, terminal_width()).as_bytes())?;
            }
            Ok(ExitCode::SUCCESS)
        }
        GpuAct::Cancel(CancelArgs { id, json }) => {
            let body = client.post(&format!("/v1/gpus/changes/{id}/cancel"), &serde_json::json!({})).await?;
            if json {
                out::write_json(&body)?;
            } else {
                say(NAME, "", &format!("change {id} is cancelled"));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn mode(client: &mut Client, args: ModeArgs) -> Result<ExitCode, Fail> {
    let named = gpu_name::find(client, &args.gpu).await?;
    if named.atom != Atom::Whole {
        return Err(Fail::usage(format!("{named} is a part of a GPU: a mode is of a whole one"))
            .hint("name the GPU alone; --layout names the instances it is to have"));
    }
    let mut warnings = Vec::new();
    let begin = match args.at.as_deref().map(|text| wall::read("--at", text, &mut warnings)).transpose()? {
        None | Some(Moment::After(0)) => None,
        Some(Moment::After(s)) => Some(Begin::AfterS(s)),
        Some(Moment::At { at, .. }) => Some(Begin::At(at)),
    };
    warnings.iter().for_each(|warning| warn(NAME, warning));
    let window_s = match args.window {
        Some(Limit::Unlimited) => return Err(Fail::usage("--for needs a time: a change has an end")),
        Some(Limit::Seconds(s)) => Some(s),
        None => None,
    };
    let request = GpuChangeRequest {
        idempotency_key: args.idempotency_key.clone().unwrap_or_else(|| uuid::Uuid::now_v7().to_string()),
        gpu: named.gpu,
        mode: args.mode.0,
        slots: args.mode.1,
        layout: args.layout.clone(),
        begin,
        window_s,
        preview: args.dry_run,
    };
    let key = &request.idempotency_key;
    let body = retry::post(client, "/v1/gpus/changes", encode(&request)?, key, retry::RETRY_TIME).await?;
    let answer: GpuChangeAnswer = decode(&body)?;
    if args.json {
        out::write_json(&body)?;
    } else {
        out::write(said(&args.gpu, &answer).as_bytes())?;
    }
    let blocked = args.dry_run && !answer.in_the_way.is_empty();
    Ok(if blocked { ExitCode::from(ErrorCode::Conflict.exit_code()) } else { ExitCode::SUCCESS })
}

/// What became of a request, or what would be in its way.
fn said(gpu: &str, answer: &GpuChangeAnswer) -> String {
    let gpu = visible(gpu);
    if let Some(change) = &answer.change {
        return match change.state.as_str() {
            "done" => format!("GPU {gpu} is {}\n", set(change)),
            _ => format!(
                "GPU {gpu} becomes {} at {} (change {})\n",
                set(change),
                wall::show(change.begin_at),
                change.id
            ),
        };
    }
    if answer.in_the_way.is_empty() {
        return format!("nothing is in the way on GPU {gpu}\n");
    }
    let mut text = format!("in the way on GPU {gpu}:\n");
    for way in &answer.in_the_way {
        let until = way.end_at.map_or("without an end".to_owned(), |at| format!("until {}", wall::show(at)));
        writeln!(
            text,
            "  {} has {} from {} {until}",
            visible(&way.whose),
            way.atom,
            wall::show(way.begin_at)
        )
        .expect("a String takes all");
    }
    match answer.earliest_at {
        Some(at) => writeln!(text, "the earliest it can be changed is {}", wall::show(at)),
        None => writeln!(text, "it can be changed at no later time, as it is booked now"),
    }
    .expect("a String takes all");
    text
}

/// A setting: `mig`, `mps:4`, `mig with 1g.10gb@0,3g.40gb@4`.
fn set(change: &GpuChange) -> String {
    let slots = match change.mode {
        GpuMode::Timeslice | GpuMode::Mps => format!(":{}", change.slots),
        GpuMode::Whole | GpuMode::Mig => String::new(),
    };
    let layout = change.layout.as_ref().map(|atoms| {
        let names = atoms.iter().map(|atom| atom.to_string().trim_start_matches("mig:").to_owned());
        format!(" with {}", names.collect::<Vec<_>>().join(","))
    });
    format!("{}{slots}{}", change.mode, layout.unwrap_or_default())
}

fn table(list: &GpuChangeList) -> Table<'_> {
    let rows = list.changes.iter().map(|change| {
        vec![
            Cow::Owned(change.id.to_string()),
            Cow::Owned(format!("{}/{}", change.node, change.index)),
            Cow::Owned(set(change)),
            Cow::Borrowed(change.state.as_str()),
            Cow::Owned(wall::show_slurm(change.begin_at)),
            Cow::Owned(wall::show_slurm(change.end_at)),
            Cow::Borrowed(change.author.as_str()),
            Cow::Borrowed(change.gpu.as_str()),
        ]
    });
    let columns = vec![
        Column::number("ID"),
        Column::whole("GPU"),
        Column::soft("MODE"),
        Column::whole("STATE"),
        Column::whole("BEGIN"),
        Column::whole("END"),
        Column::soft("AUTHOR"),
        Column::soft("UUID"),
    ];
    Table { columns, rows: rows.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::InTheWay;

    #[test]
    fn a_mode_is_named_with_its_slots() {
        assert_eq!(setting("mig"), Ok((GpuMode::Mig, None)));
        assert_eq!(setting("mps:4"), Ok((GpuMode::Mps, Some(4))));
        for text in ["", "MIG", "mps:", "mps:x", "mps:-1", "half", "shared:2"] {
            assert!(setting(text).unwrap_err().starts_with(&format!("{text:?} is no mode")), "{text}");
        }
    }

    #[test]
    fn what_is_in_the_way_is_named_with_its_time() {
        let change = GpuChange {
            id: 3,
            node: "node1".into(),
            index: 0,
            gpu: "GPU-1".into(),
            mode: GpuMode::Mig,
            slots: 1,
            layout: Some(vec!["mig:1g.10gb@0".parse().unwrap(), "mig:3g.40gb@4".parse().unwrap()]),
            state: "done".into(),
            author: "op".into(),
            begin_at: "2026-12-01T08:00:00Z".parse().unwrap(),
            end_at: "2026-12-01T08:01:00Z".parse().unwrap(),
        };
        let way =
            InTheWay { whose: "job 12".into(), atom: Atom::Whole, begin_at: change.begin_at, end_at: None };
        let mut answer = GpuChangeAnswer { change: None, in_the_way: vec![way], earliest_at: None };
        let text = said("node1/0", &answer);
        assert!(text.starts_with("in the way on GPU node1/0:\n  job 12 has gpu from "), "{text}");
        assert!(text.contains(" without an end\nit can be changed at no later time"), "{text}");
        answer.in_the_way.clear();
        assert_eq!(said("node1/0", &answer), "nothing is in the way on GPU node1/0\n");
        answer.change = Some(change.clone());
        assert_eq!(said("node1/0", &answer), "GPU node1/0 is mig with 1g.10gb@0,3g.40gb@4\n");
        let list = GpuChangeList { changes: vec![change] };
        assert!(table(&list).render(true, None).contains(" 3 node1/0 mig with 1g.10gb@0,3g.40gb@4 done "));
    }
}
