//! What a submission must satisfy before it is stored, and what its absent values become.
//!
//! The commands check the same things where they can, to answer with the option's name; this is the check that counts,
//! since anybody may speak to the API. An unreadable or impossible value is refused, never replaced.

use chrono::Datelike;
use proto::api::{ENV_BYTES_MAX, NAME_BYTES_MAX, SCRIPT_BYTES_MAX, Submission};
use proto::index_set::INDEX_MAX;
use proto::{ApiError, ErrorCode};

/// The rules of the pool a job goes to.
#[derive(Clone, Debug)]
pub struct PoolRules {
    /// The pool's id.
    pub id: i32,
    /// Its name.
    pub name: String,
    /// Whether jobs that name no pool go here.
    pub is_default: bool,
    /// The longest time limit allowed, seconds.
    pub time_limit_max_s: Option<u64>,
    /// The time limit of a job that names none.
    pub time_limit_default_s: Option<u64>,
    /// Memory per CPU of a job that names none, MiB.
    pub mem_per_cpu_default_mib: u64,
}

/// A submission that may be stored, with its absent values filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The pool.
    pub pool_id: i32,
    /// Memory on each node, MiB.
    pub mem_mib: u64,
    /// The time limit, seconds; `None` is unlimited.
    pub time_limit_s: Option<u64>,
    /// The priority: higher goes first.
    pub priority: i64,
}

/// The priority of a job with nice 0.
pub const PRIORITY_BASE: i64 = 1000;

/// The most CPUs, nodes or GPUs a request may name: over any machine there is, and far from overflow.
const COUNT_MAX: u32 = 1_000_000;
/// The longest time limit, seconds: a hundred years, so that instants stay in range.
pub const TIME_LIMIT_MAX_S: u64 = 100 * 366 * 86_400;
/// The years in which a begin time may be: within what every part can tell.
const YEAR_MIN: i32 = 1970;
/// See [`YEAR_MIN`].
const YEAR_MAX: i32 = 9999;
/// The most memory or disk a request may name, MiB: an exbibyte.
const MEM_MAX_MIB: u64 = 1 << 40;
/// The longest key, path, pattern or comment, bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// Checks a submission against the pools; `operator` may go before others with a negative nice.
pub fn admit(job: &Submission, pools: &[PoolRules], operator: bool) -> Result<Admitted, ApiError> {
    check_texts(job)?;
    check_amounts(job)?;
    if job.nice < 0 && !operator {
        let message = format!("nice {} would go before others, which is for operators", job.nice);
        return Err(ApiError::new(ErrorCode::PermissionDenied, message).hint("use a nice of 0 or more"));
    }
    let pool = find_pool(job, pools)?;
    let time_limit_s = match job.time_unlimited {
        true => None,
        false => job.time_limit_s.or(pool.time_limit_default_s),
    };
    match (time_limit_s, pool.time_limit_max_s) {
        (Some(asked), Some(max)) if asked > max => {
            let message =
                format!("pool \"{}\" allows at most {max} s per job, {asked} s requested", pool.name);
            return Err(invalid(message).hint("ask for a shorter --time"));
        }
        (None, Some(max)) => {
            let message =
                format!("pool \"{}\" allows at most {max} s per job, no time limit requested", pool.name);
            return Err(invalid(message).hint("ask for a --time"));
        }
        _ => {}
    }
    let mem_mib =
        job.mem_mib.unwrap_or_else(|| u64::from(job.cpus).saturating_mul(pool.mem_per_cpu_default_mib));
    Ok(Admitted { pool_id: pool.id, mem_mib, time_limit_s, priority: PRIORITY_BASE - i64::from(job.nice) })
}

fn find_pool<'a>(job: &Submission, pools: &'a [PoolRules]) -> Result<&'a PoolRules, ApiError> {
    let names = || pools.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
    match &job.pool {
        Some(name) => pools.iter().find(|p| p.name == *name).ok_or_else(|| {
            invalid(format!("no pool is called \"{name}\"")).hint(format!("the pools are: {}", names()))
        }),
        None => pools.iter().find(|p| p.is_default).ok_or_else(|| {
            invalid("no pool is named and there is no default pool")
                .hint(format!("name one with --pool: {}", names()))
        }),
    }
}

fn check_texts(job: &Submission) -> Result<(), ApiError> {
    let key = &job.idempotency_key;
    if key.is_empty() || key.len() > 200 || key.chars().any(char::is_control) {
        return Err(invalid("idempotency key is not 1 to 200 bytes without control characters"));
    }
    if job.name.is_empty() || job.name.len() > NAME_BYTES_MAX {
        return Err(invalid(format!(
            "job name is {} bytes long, 1 to {NAME_BYTES_MAX} allowed",
            job.name.len()
        )));
    }
    if !job.script.starts_with("#!") {
        return Err(invalid("the script does not begin with an interpreter line")
            .hint("make \"#!/bin/bash\" its first line, or use --wrap"));
    }
    if job.script.len() > SCRIPT_BYTES_MAX {
        return Err(too_large("script", job.script.len(), SCRIPT_BYTES_MAX));
    }
    let env_bytes: usize = job.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    if env_bytes > ENV_BYTES_MAX {
        return Err(too_large("environment", env_bytes, ENV_BYTES_MAX)
            .hint("export fewer variables with --export=NAME,…"));
    }
    if let Some(name) = job.env.keys().find(|name| name.is_empty() || name.contains('=')) {
        return Err(invalid(format!("\"{name}\" is not a name of an environment variable")));
    }
    if !job.chdir.starts_with('/') {
        return Err(invalid(format!("working directory \"{}\" is not absolute", job.chdir)));
    }
    let optional = [&job.output, &job.error, &job.input, &job.comment, &job.account, &job.gpu_type];
    let texts = optional.into_iter().flatten().chain([&job.chdir, &job.submit_host, &job.submit_dir]);
    if let Some(text) = texts.clone().find(|text| text.len() > TEXT_BYTES_MAX) {
        return Err(too_large("text", text.len(), TEXT_BYTES_MAX));
    }
    let everything = texts
        .chain([&job.name, &job.script])
        .chain(&job.args)
        .chain(job.env.iter().flat_map(|(name, value)| [name, value]));
    if everything.into_iter().any(|text| text.contains('\0')) {
        return Err(invalid("the submission holds a zero byte, which no script, path or variable can"));
    }
    let patterns = [("output", &job.output), ("error", &job.error), ("input", &job.input)];
    for (what, pattern) in patterns.into_iter().filter_map(|(what, p)| p.as_ref().map(|p| (what, p))) {
        proto::pattern::check(pattern).map_err(|error| invalid(format!("{what} file: {error}")))?;
    }
    Ok(())
}

fn check_amounts(job: &Submission) -> Result<(), ApiError> {
    let at_least_one = [("cpus", job.cpus), ("nodes", job.nodes)];
    if let Some((what, n)) = at_least_one.into_iter().find(|(_, n)| *n < 1 || *n > COUNT_MAX) {
        return Err(invalid(format!("{what} is {n}, 1 to {COUNT_MAX} accepted")));
    }
    if job.gpus > COUNT_MAX {
        return Err(invalid(format!("gpus is {}, at most {COUNT_MAX} accepted", job.gpus)));
    }
    if let Some(mem) = job.mem_mib.filter(|mem| !(1..=MEM_MAX_MIB).contains(mem)) {
        return Err(invalid(format!("memory is {mem} MiB, 1 to {MEM_MAX_MIB} accepted")));
    }
    if job.disk_mib > MEM_MAX_MIB {
        return Err(invalid(format!("disk is {} MiB, at most {MEM_MAX_MIB} accepted", job.disk_mib)));
    }
    if let Some(limit) = job.time_limit_s.filter(|s| !(1..=TIME_LIMIT_MAX_S).contains(s)) {
        return Err(invalid(format!("time limit is {limit} s, 1 to {TIME_LIMIT_MAX_S} accepted")));
    }
    if let Some(limit) = job.time_limit_s.filter(|_| job.time_unlimited) {
        return Err(invalid(format!("a time limit of {limit} s and no time limit are asked for at once"))
            .hint("leave out time_limit_s or time_unlimited"));
    }
    if let Some(proto::api::Begin::AfterS(s)) = job.begin
        && s > TIME_LIMIT_MAX_S
    {
        return Err(invalid(format!("begin is {s} s from now, at most {TIME_LIMIT_MAX_S} accepted")));
    }
    if let Some(proto::api::Begin::At(at)) = job.begin
        && !(YEAR_MIN..=YEAR_MAX).contains(&at.year())
    {
        return Err(invalid(format!(
            "begin is in the year {}, {YEAR_MIN} to {YEAR_MAX} accepted",
            at.year()
        )));
    }
    if job.umask > 0o777 {
        return Err(invalid(format!("umask is {:o}, at most 777 accepted", job.umask)));
    }
    if job.gpu_type.is_some() && job.gpus == 0 {
        return Err(invalid("a GPU type is named but no GPU asked for").hint("ask for one with --gpus"));
    }
    if let Some(warn) = &job.warn
        && !(1..=64).contains(&warn.signal)
    {
        return Err(invalid(format!("signal {} does not exist, 1 to 64 accepted", warn.signal)));
    }
    if let Some(array) = &job.array {
        if array.indices.is_empty() {
            return Err(invalid("the array has no index"));
        }
        if let Some(throttle) = array.throttle.filter(|throttle| !(1..=INDEX_MAX).contains(throttle)) {
            return Err(invalid(format!("the array's throttle is {throttle}, 1 to {INDEX_MAX} accepted")));
        }
    }
    Ok(())
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::InvalidArgument, message)
}

fn too_large(what: &str, bytes: usize, max: usize) -> ApiError {
    ApiError::new(ErrorCode::TooLarge, format!("{what} is {bytes} bytes long, at most {max} accepted"))
}

#[cfg(test)]
mod tests;
