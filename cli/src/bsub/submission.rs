//! From options to the submission that is sent: the one place that reads the caller's surroundings.
//!
//! Everything is checked here before anything is sent, so that most mistakes cost no round trip; the controller checks again.

use super::args::{Delivery, OpenMode, Options};
use super::export::{Person, export};
use super::limits::limits;
use super::script::Script;
use super::shape::shape;
use crate::fail::Fail;
use crate::text::os_error;
use crate::wall;
use proto::api::{self, ArraySpec, Begin, ENV_BYTES_MAX, NAME_BYTES_MAX, Submission};
use proto::datetime::Moment;
use proto::duration::Limit;
use std::ffi::OsString;
use std::path::PathBuf;

/// Options that are taken and change nothing yet, with what is said about them.
const MAIL: &str = "no mail is sent yet";

/// A submission and what to say about it.
#[derive(Debug)]
pub struct Prepared {
    /// What to send.
    pub submission: Submission,
    /// What to say.
    pub warnings: Vec<String>,
}

/// Makes the submission. Asks the system for directory, host, umask, limits and environment; sends nothing.
pub fn prepare(
    options: &Options,
    delivery: &Delivery,
    script: Script,
    args: &[OsString],
) -> Result<Prepared, Fail> {
    let mut warnings = Vec::new();
    let name = job_name(options.job_name.as_deref().unwrap_or(&script.name), &mut warnings)?;
    check_words(options)?;
    for (given, option) in
        [(options.mail_type.is_some(), "--mail-type"), (options.mail_user.is_some(), "--mail-user")]
    {
        if given {
            warnings.push(format!("{option}: {MAIL}"));
        }
    }
    let shape = shape(options)?;
    let begin = options.begin.as_deref().map(|text| begin(text, &mut warnings)).transpose()?.flatten();
    let here = std::env::current_dir()
        .map_err(|e| Fail::here(format!("the current directory cannot be read: {}", os_error(&e))))?;
    let submit_dir = utf8(here.clone(), "the current directory")?;
    let chdir = match &options.chdir {
        None => submit_dir.clone(),
        Some(dir) => utf8(here.join(dir), "--chdir")?,
    };
    let exported = environment(options)?;
    warnings.extend(exported.warnings);
    let script_args = args
        .iter()
        .map(|arg| arg.to_str().map(str::to_owned).ok_or(arg))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|arg| Fail::usage(format!("the script's argument {arg:?} is not UTF-8")))?;
    let submission = Submission {
        idempotency_key: delivery.idempotency_key.clone().unwrap_or_else(|| uuid::Uuid::now_v7().to_string()),
        name,
        pool: options.pool.clone(),
        account: options.account.clone(),
        script: script.text,
        args: script_args,
        env: exported.env,
        chdir,
        output: options.output.clone(),
        error: options.error.clone(),
        input: options.input.clone(),
        open_mode: match options.open_mode {
            Some(OpenMode::Append) => api::OpenMode::Append,
            Some(OpenMode::Truncate) | None => api::OpenMode::Truncate,
        },
        umask: umask(),
        rlimits: limits(options.propagate.as_deref().unwrap_or("ALL"))?,
        cpus: shape.cpus,
        mem_mib: shape.mem_mib,
        disk_mib: shape.disk_mib,
        exclusive: shape.exclusive,
        mem_all: shape.mem_all,
        gpus: shape.gpus,
        gpu_type: shape.gpu_type,
        nodes: shape.nodes,
        ntasks: shape.ntasks,
        cpus_per_task: options.cpus_per_task,
        time_limit_s: options.time.and_then(Limit::seconds),
        time_unlimited: options.time == Some(Limit::Unlimited),
        warn: options.signal.clone(),
        array: options
            .array
            .as_ref()
            .map(|array| ArraySpec { indices: array.indices.clone(), throttle: array.throttle }),
        hold: options.hold,
        begin,
        reservation: options.reservation.clone(),
        comment: options.comment.clone(),
        nice: options.nice.unwrap_or(0),
        requeue: !options.no_requeue,
        submit_host: host()?,
        submit_dir,
    };
    Ok(Prepared { submission, warnings })
}

fn job_name(name: &str, warnings: &mut Vec<String>) -> Result<String, Fail> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(Fail::usage(format!("{name:?} cannot be a job's name")).hint(format!(
            "a name has 1 to {NAME_BYTES_MAX} bytes and no control characters; give one with --job-name"
        )));
    }
    if let Some((before, array)) = name.split_once('[')
        && array.starts_with(|c: char| c.is_ascii_digit())
        && array.contains(']')
    {
        warnings.push(format!(
            "the name {name:?} makes no array here, as it would in LSF: write --job-name={before:?} --array={}",
            array.replace(']', "")
        ));
    }
    Ok(name.to_owned())
}

fn check_words(options: &Options) -> Result<(), Fail> {
    if let Some(qos) = options.qos.as_deref().filter(|qos| *qos != "normal") {
        return Err(Fail::usage(format!("there is no QOS {qos:?}: normal is the only one so far"))
            .hint("leave --qos out; if a queue is meant (LSF's -q), write --pool"));
    }
    if let Some(pool) = options.pool.as_deref().filter(|pool| pool.contains(',')) {
        return Err(
            Fail::usage(format!("--pool={pool}: several pools are not supported yet")).hint("name one")
        );
    }
    Ok(())
}

/// An instant or a delay; `now` is neither.
fn begin(text: &str, warnings: &mut Vec<String>) -> Result<Option<Begin>, Fail> {
    Ok(match wall::read("--begin", text, warnings)? {
        Moment::After(0) => None,
        Moment::After(seconds) => Some(Begin::AfterS(seconds)),
        Moment::At { at, .. } => {
            if at < wall::now() {
                warnings.push(format!(
                    "--begin={text} is {}, which is past: the job can start at once",
                    wall::show(at)
                ));
            }
            Some(Begin::At(at))
        }
    })
}

fn environment(options: &Options) -> Result<super::export::Exported, Fail> {
    let file = options.export_file.as_ref().map(|path| {
        let shown = path.display();
        let bytes = std::fs::read(path)
            .map_err(|e| Fail::usage(format!("--export-file: cannot read {shown}: {}", os_error(&e))))?;
        if bytes.len() > ENV_BYTES_MAX {
            return Err(Fail::usage(format!("--export-file: {shown} is larger than {ENV_BYTES_MAX} bytes")));
        }
        Ok(bytes)
    });
    let caller = std::env::vars_os().filter(|(name, _)| name != "BSUB_IDEMPOTENCY_KEY");
    let exported = export(&options.export, file.transpose()?.as_deref(), caller, &person()?)?;
    let bytes: usize = exported.env.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > ENV_BYTES_MAX {
        let largest =
            exported.env.iter().max_by_key(|(_, value)| value.len()).map_or("", |(name, _)| name.as_str());
        return Err(Fail::usage(format!(
            "the environment has {bytes} bytes, {ENV_BYTES_MAX} are the most; the largest variable is {largest:?}"
        ))
        .hint("give --export a list of what the job needs, such as --export=PATH,HOME"));
    }
    Ok(exported)
}

/// Who calls: from the user database, or where it knows nothing of this uid, from the environment.
fn person() -> Result<Person, Fail> {
    let uid = nix::unistd::getuid();
    let known = nix::unistd::User::from_uid(uid)
        .map_err(|e| Fail::here(format!("cannot look up user {uid}: {}", e.desc().to_lowercase())))?;
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    Ok(match known {
        Some(user) => Person {
            name: user.name,
            home: user.dir.to_string_lossy().into_owned(),
            shell: user.shell.to_string_lossy().into_owned(),
        },
        None => Person { name: variable("USER"), home: variable("HOME"), shell: variable("SHELL") },
    })
}

fn utf8(path: PathBuf, what: &str) -> Result<String, Fail> {
    path.into_os_string().into_string().map_err(|path| Fail::usage(format!("{what} {path:?} is not UTF-8")))
}

fn umask() -> u32 {
    // It can only be read by setting it; nothing else runs in this process yet.
    let mask = nix::sys::stat::umask(nix::sys::stat::Mode::empty());
    nix::sys::stat::umask(mask);
    mask.bits()
}

fn host() -> Result<String, Fail> {
    let name = nix::unistd::gethostname()
        .map_err(|e| Fail::here(format!("cannot read this machine's name: {}", e.desc().to_lowercase())))?;
    Ok(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bsub::layers::{line_parser, parse_words};
    use crate::bsub::script::wrap;

    fn of(words: &[&str]) -> Result<Prepared, Fail> {
        let options = parse_words(&mut line_parser(), words.iter().map(|w| (*w).to_owned()).collect())?;
        prepare(&options, &Delivery::default(), wrap("true")?, &[])
    }

    #[test]
    fn a_plain_submission_carries_the_callers_surroundings() {
        let submission = of(&[]).unwrap().submission;
        let here = std::env::current_dir().unwrap();
        assert_eq!((submission.name.as_str(), submission.chdir.as_str()), ("wrap", here.to_str().unwrap()));
        assert_eq!((submission.cpus, submission.nodes, submission.requeue), (1, 1, true));
        assert_eq!(submission.submit_dir, submission.chdir);
        assert!(!submission.submit_host.is_empty() && submission.umask <= 0o777);
        assert!(submission.rlimits.contains_key("nofile") && submission.env.contains_key("PATH"));
        assert!(uuid::Uuid::parse_str(&submission.idempotency_key).is_ok());
    }

    #[test]
    fn a_relative_working_directory_is_of_the_current_one() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(of(&["-D", "sub"]).unwrap().submission.chdir, here.join("sub").to_str().unwrap());
        assert_eq!(of(&["-D", "/tmp"]).unwrap().submission.chdir, "/tmp");
    }

    #[test]
    fn names_with_control_characters_are_refused_and_delimiters_kept() {
        assert_eq!(of(&["-J", "crazy|name, x"]).unwrap().submission.name, "crazy|name, x");
        for name in ["a\nb", "", "\t"] {
            assert!(
                of(&["-J", name]).unwrap_err().error.message.contains("cannot be a job's name"),
                "{name:?}"
            );
        }
        let warnings = of(&["-J", "a[1-4]%2"]).unwrap().warnings;
        assert_eq!(
            warnings,
            [
                r#"the name "a[1-4]%2" makes no array here, as it would in LSF: write --job-name="a" --array=1-4%2"#
            ]
        );
    }

    #[test]
    fn what_changes_nothing_is_warned_about_by_name() {
        let warnings = of(&["--mail-type=END", "--mail-user=a@b"]).unwrap().warnings;
        assert_eq!(warnings, ["--mail-type: no mail is sent yet", "--mail-user: no mail is sent yet"]);
        assert!(
            of(&["--begin=2001-01-01"]).unwrap().warnings[0]
                .ends_with("which is past: the job can start at once")
        );
    }

    #[test]
    fn words_that_name_nothing_are_refused() {
        for (words, message) in [
            (&["-q", "short"][..], "there is no QOS \"short\": normal is the only one so far"),
            (&["-p", "a,b"], "--pool=a,b: several pools are not supported yet"),
            (&["--begin=soon"], "--begin: \"soon\" is not a time"),
            (&["--propagate=NICE"], "--propagate=NICE: \"NICE\" is no limit"),
            (&["--export-file=/nonesuch"], "--export-file: cannot read /nonesuch: no such file or directory"),
            (&["-o", "x_%I"], "--output: file name \"x_%I\": %I is unknown: write %a"),
        ] {
            let fail = of(words).expect_err(message);
            assert!(fail.error.message.starts_with(message), "{fail}");
        }
        assert!(of(&["-q", "normal", "--begin=now", "--time=5"]).is_ok());
    }

    #[test]
    fn no_limit_is_said_and_not_left_to_the_pool() {
        let limit = |words: &[&str]| {
            let submission = of(words).unwrap().submission;
            (submission.time_limit_s, submission.time_unlimited)
        };
        assert_eq!(limit(&[]), (None, false));
        assert_eq!(limit(&["-t", "5"]), (Some(300), false));
        for none in ["0", "-1", "UNLIMITED"] {
            assert_eq!(limit(&[&format!("--time={none}")]), (None, true), "{none}");
        }
    }

    #[test]
    fn delays_and_instants_are_told_apart() {
        assert_eq!(of(&["-b", "now+1hour"]).unwrap().submission.begin, Some(Begin::AfterS(3600)));
        let at = "2099-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(of(&["-b", "2099-01-01T00:00:00Z"]).unwrap().submission.begin, Some(Begin::At(at)));
    }
}
