//! `bcancel`: cancels jobs, or sends them a signal.
//!
//! An id that never existed is an error (exit code 4), a job that has ended is not: cancelling twice is safe. Neither an id nor a
//! filter is a usage error, since "everything" must be said (`--me`).

use crate::bq::me;
use crate::client::{Client, decode};
use crate::fail::{Fail, say};
use crate::frame::{self, Parsed};
use crate::{out, signals};
use clap::{CommandFactory, FromArgMatches, Parser};
use proto::api::{ACT_IDS_MAX, ActOutcome, ActResults, CancelRequest};
use proto::{ApiError, ErrorCode, JobRef, State};
use std::process::ExitCode;

const NAME: &str = "bcancel";

/// Cancel jobs, or send them a signal.
#[derive(Parser, Debug, Default, Clone)]
#[command(
    name = "bcancel",
    version,
    about = "Cancel jobs, or send them a signal",
    long_about = "Cancel jobs, or send them a signal.\n\n\
                  A job that runs gets SIGTERM, some seconds of grace, and SIGKILL for all of its processes. \
                  Ids and filters together name the jobs that match all of them. A job that has ended already is no error.",
    override_usage = "bcancel [OPTIONS] ID...\n       bcancel [OPTIONS] --me|--user USER|--name NAME|--pool POOL|--state STATE",
    args_override_self = true,
    after_help = crate::bsub::args::EXIT_CODES
)]
pub struct BcancelArgs {
    /// Jobs: 12, a task of an array, 12_3, or several, 12_[1-5,8]
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// Jobs of this user
    #[arg(short = 'u', long, value_name = "USER", help_heading = "Which jobs")]
    pub user: Option<String>,
    /// My own jobs
    #[arg(long, conflicts_with = "user", help_heading = "Which jobs")]
    pub me: bool,
    /// Jobs of this name
    #[arg(short = 'n', long, visible_alias = "jobname", value_name = "NAME", help_heading = "Which jobs")]
    pub name: Option<String>,
    /// Jobs in this pool
    #[arg(short = 'p', long, visible_alias = "partition", value_name = "POOL", help_heading = "Which jobs")]
    pub pool: Option<String>,
    /// Jobs in this state, such as pending or running
    #[arg(short = 't', long, value_name = "STATE", help_heading = "Which jobs")]
    pub state: Option<State>,
    /// Send this signal to every process of the jobs that run, instead of cancelling
    #[arg(short = 's', long, value_name = "SIGNAL", value_parser = signals::parse, help_heading = "What to do")]
    pub signal: Option<i32>,
    /// With --signal: to the batch script only
    #[arg(short = 'b', long, requires = "signal", help_heading = "What to do")]
    pub batch: bool,
    /// Say nothing about jobs that do not exist (the exit code still does)
    #[arg(short = 'Q', short_alias = 'q', long, help_heading = "What to do")]
    pub quiet: bool,
    /// Say on stderr what became of each job
    #[arg(short = 'v', long, help_heading = "What to do")]
    pub verbose: bool,
    /// Print the results as JSON
    #[arg(long, help_heading = "What to do")]
    pub json: bool,
}

/// The command.
pub fn main() -> ExitCode {
    frame::run(NAME, |argv| {
        let matches = match frame::parse(NAME, BcancelArgs::command(), argv)? {
            Parsed::Run(matches) => matches,
            Parsed::Done(code) => return Ok(code),
        };
        let args = BcancelArgs::from_arg_matches(&matches).map_err(|e| frame::usage(NAME, &e))?;
        let request = request(&args)?;
        frame::block_on(cancel(&args, &request))
    })
}

/// What to ask for.
fn request(args: &BcancelArgs) -> Result<CancelRequest, Fail> {
    let user = if args.me { Some(me()?) } else { args.user.clone() };
    let filter = user.is_some() || args.name.is_some() || args.pool.is_some() || args.state.is_some();
    if args.ids.is_empty() && !filter {
        return Err(Fail::usage("no job is named")
            .hint("give ids, or a filter: --me, --user, --name, --pool, --state; `bcancel --me` cancels all of yours"));
    }
    // Slurm takes several ids in one word too.
    let ids = args
        .ids
        .iter()
        .flat_map(|word| split(word))
        .map(|id| id.parse::<JobRef>().map(|id| id.to_string()).map_err(|e| Fail::usage(e.to_string())));
    Ok(CancelRequest {
        ids: ids.collect::<Result<_, _>>()?,
        user,
        name: args.name.clone(),
        pool: args.pool.clone(),
        state: args.state,
        signal: args.signal,
        script_only: args.batch,
    })
}

/// Ids with commas between them; a comma inside brackets belongs to its id.
pub fn split(word: &str) -> Vec<&str> {
    let mut depth = 0;
    let comma = |c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth <= 0
    };
    word.split(comma).map(str::trim).collect()
}

async fn cancel(args: &BcancelArgs, request: &CancelRequest) -> Result<ExitCode, Fail> {
    let mut client = Client::find()?;
    let mut all = ActResults::default();
    for part in parts(request) {
        let body = client.post("/v1/jobs/cancel", &part).await?;
        let mut results: ActResults = decode(&body)?;
        all.results.append(&mut results.results);
    }
    if args.json {
        out::write_json(&crate::client::encode(&all)?)?;
    }
    Ok(report(NAME, &all, args.quiet || args.json, args.verbose && !args.json))
}

/// The request in parts of as many ids as one may have. A filter without ids is one part.
fn parts(request: &CancelRequest) -> Vec<CancelRequest> {
    if request.ids.is_empty() {
        return vec![request.clone()];
    }
    request
        .ids
        .chunks(ACT_IDS_MAX)
        .map(|ids| CancelRequest { ids: ids.to_vec(), ..request.clone() })
        .collect()
}

/// Says what failed, and gives the exit code: that of the first error.
pub fn report(program: &str, results: &ActResults, quiet: bool, verbose: bool) -> ExitCode {
    let mut code = 0;
    for result in &results.results {
        let error = match (result.outcome, &result.error) {
            (ActOutcome::Done | ActOutcome::Already, _) => {
                if verbose {
                    let what = if result.outcome == ActOutcome::Done { "done" } else { "nothing to do" };
                    say(program, "", &format!("job {}: {what}", result.id));
                }
                continue;
            }
            (ActOutcome::Error, Some(error)) => naming(error.clone(), &result.id),
            (ActOutcome::Error, None) => {
                ApiError::new(ErrorCode::Internal, format!("job {} was refused without a reason", result.id))
            }
        };
        if code == 0 {
            code = error.code.exit_code();
        }
        if !quiet {
            Fail::from(error).report(program, false);
        }
    }
    ExitCode::from(code)
}

/// Among many results an error must say whose it is.
fn naming(mut error: ApiError, id: &str) -> ApiError {
    if !error.message.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == id) {
        error.message = format!("job {id}: {}", error.message);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::ActResult;

    fn of(words: &[&str]) -> Result<CancelRequest, Fail> {
        request(&BcancelArgs::try_parse_from([&["bcancel"], words].concat()).unwrap())
    }

    #[test]
    fn ids_tasks_and_ranges_are_named_in_any_way() {
        let request = of(&["12", "13_4,14_[1-3,5],15", "--signal", "USR2", "-b"]).unwrap();
        assert_eq!(request.ids, ["12", "13_4", "14_[1-3,5]", "15"]);
        assert_eq!((request.signal, request.script_only), (Some(libc::SIGUSR2), true));
        let request = of(&["-u", "bob", "-n", "x", "-p", "gpu", "-t", "PD"]).unwrap();
        assert_eq!((request.user.as_deref(), request.state), (Some("bob"), Some(State::Pending)));
    }

    #[test]
    fn everything_must_be_said() {
        let fail = of(&[]).unwrap_err();
        assert_eq!((fail.exit_code(), fail.error.message.as_str()), (2, "no job is named"));
        assert_eq!(of(&["--signal=9"]).unwrap_err().exit_code(), 2);
        assert_eq!(of(&["job12"]).unwrap_err().exit_code(), 2);
        for wrong in [
            &["bcancel", "-b", "1"][..],
            &["bcancel", "-s", "NOPE", "1"],
            &["bcancel", "-t", "x"],
            &["bcancel", "--me", "-u", "x"],
        ] {
            assert!(BcancelArgs::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn many_ids_go_in_parts_and_a_filter_in_one() {
        let request =
            CancelRequest { ids: vec!["1".to_owned(); ACT_IDS_MAX + 1], ..CancelRequest::default() };
        assert_eq!(parts(&request).iter().map(|p| p.ids.len()).collect::<Vec<_>>(), [ACT_IDS_MAX, 1]);
        assert_eq!(parts(&CancelRequest::default()).len(), 1);
    }

    #[test]
    fn an_error_says_whose_it_is() {
        let of = |message: &str| naming(ApiError::new(ErrorCode::Conflict, message), "4").message;
        assert_eq!(of("it has ended"), "job 4: it has ended");
        assert_eq!(of("no job has the id 4"), "no job has the id 4");
        assert_eq!(of("it has ended 40 s ago"), "job 4: it has ended 40 s ago");
    }

    #[test]
    fn an_ended_job_is_no_error_and_an_unknown_one_is() {
        let result = |outcome, code: Option<ErrorCode>| ActResult {
            id: "7".to_owned(),
            outcome,
            error: code.map(|code| ApiError::new(code, "there is no job 7")),
        };
        let code = |results| report(NAME, &ActResults { results }, true, false);
        assert_eq!(code(vec![]), ExitCode::SUCCESS);
        assert_eq!(
            code(vec![result(ActOutcome::Done, None), result(ActOutcome::Already, None)]),
            ExitCode::SUCCESS
        );
        let unknown = result(ActOutcome::Error, Some(ErrorCode::NotFound));
        assert_eq!(code(vec![result(ActOutcome::Done, None), unknown]), ExitCode::from(4));
        assert_eq!(code(vec![result(ActOutcome::Error, None)]), ExitCode::from(1));
    }
}
