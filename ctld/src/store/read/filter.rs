//! A [`JobQuery`] read: which jobs, in which states, how many.
//!
//! Everything that can be wrong with a query is refused here by name. Names of users, jobs and accounts that match nothing are
//! no error: they may match tomorrow. Ids, pools and nodes that do not exist are, see [`super::jobs`].

use proto::api::{ACT_IDS_MAX, JobQuery};
use proto::{ApiError, ErrorCode, IndexSet, JobRef, State};
use std::collections::BTreeMap;

/// The most entries of one list, and how many there are when no limit is given.
pub const LIMIT_MAX: u32 = 100_000;

/// Which jobs to list.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// Jobs by id, with the tasks named of each; `None` is not by id.
    pub ids: Option<BTreeMap<i64, Option<IndexSet>>>,
    /// The states wanted.
    pub states: Vec<State>,
    /// Users.
    pub users: Option<Vec<String>>,
    /// Job names.
    pub names: Option<Vec<String>>,
    /// Pools.
    pub pools: Option<Vec<String>>,
    /// Accounts.
    pub accounts: Option<Vec<String>>,
    /// Nodes.
    pub nodes: Option<Vec<String>>,
    /// One entry a pending task.
    pub tasks: bool,
    /// At most so many entries.
    pub limit: usize,
}

impl Filter {
    /// Reads a query.
    pub fn read(query: &JobQuery) -> Result<Filter, ApiError> {
        let ids = query.ids.as_deref().map(ids).transpose()?;
        let states = match query.states.as_deref() {
            Some(words) => states(words)?,
            None if ids.is_some() => State::all().collect(),
            None => State::all().filter(|state| !state.terminal()).collect(),
        };
        let limit = query.limit.unwrap_or(LIMIT_MAX);
        if limit == 0 || limit > LIMIT_MAX {
            return Err(invalid(format!("limit {limit} is not accepted: expected 1 to {LIMIT_MAX}")));
        }
        Ok(Filter {
            ids,
            states,
            users: words("users", query.users.as_deref())?,
            names: words("names", query.names.as_deref())?,
            pools: words("pools", query.pools.as_deref())?,
            accounts: words("accounts", query.accounts.as_deref())?,
            nodes: words("nodes", query.nodes.as_deref())?,
            tasks: query.tasks,
            limit: limit as usize,
        })
    }

    /// One job, or the tasks named of it, in any state.
    pub fn job(job: &JobRef) -> Filter {
        Filter {
            ids: Some(BTreeMap::from([(job.job, job.tasks.clone())])),
            states: State::all().collect(),
            users: None,
            names: None,
            pools: None,
            accounts: None,
            nodes: None,
            tasks: false,
            limit: LIMIT_MAX as usize,
        }
    }

    /// Whether entries in this state are wanted.
    pub fn wants(&self, state: State) -> bool {
        self.states.contains(&state)
    }

    /// Whether entries in any state that fulfils the claim are wanted.
    pub fn wants_any(&self, claim: impl Fn(State) -> bool) -> bool {
        self.states.iter().any(|&state| claim(state))
    }
}

fn invalid(message: String) -> ApiError {
    ApiError::new(ErrorCode::InvalidArgument, message)
}

fn words(key: &str, text: Option<&str>) -> Result<Option<Vec<String>>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    let words: Vec<String> = text.split(',').map(str::to_owned).collect();
    if words.iter().any(String::is_empty) {
        return Err(invalid(format!(
            "{key} \"{text}\" has an empty name: expected names with commas between them"
        )));
    }
    Ok(Some(words))
}

fn states(text: &str) -> Result<Vec<State>, ApiError> {
    if text.eq_ignore_ascii_case("all") {
        return Ok(State::all().collect());
    }
    text.split(',').map(|word| word.parse::<State>().map_err(|error| invalid(error.to_string()))).collect()
}

/// Ids with commas between them; a comma within brackets belongs to the id.
fn ids(text: &str) -> Result<BTreeMap<i64, Option<IndexSet>>, ApiError> {
    let mut inside = false;
    let pieces = text.split(|c| {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        c == ',' && !inside
    });
    let mut all: BTreeMap<i64, Option<IndexSet>> = BTreeMap::new();
    for (count, piece) in pieces.enumerate() {
        if count == ACT_IDS_MAX {
            let message = format!("more than {ACT_IDS_MAX} ids in one query");
            return Err(ApiError::new(ErrorCode::TooLarge, message).hint("ask in several queries"));
        }
        let job: JobRef =
            piece.parse().map_err(|error: proto::id::JobRefError| invalid(error.to_string()))?;
        // The whole job, or several pieces of it.
        all.entry(job.job)
            .and_modify(|before| {
                *before = match (before.take(), &job.tasks) {
                    (Some(a), Some(b)) => {
                        Some(IndexSet::from_ranges(a.ranges().iter().chain(b.ranges()).copied()))
                    }
                    _ => None,
                }
            })
            .or_insert(job.tasks);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_ids(text: &str) -> Result<Filter, ApiError> {
        Filter::read(&JobQuery { ids: Some(text.to_owned()), ..JobQuery::default() })
    }

    #[test]
    fn live_states_are_the_default_and_all_states_when_ids_are_given() {
        let filter = Filter::read(&JobQuery::default()).unwrap();
        assert!(
            filter.wants(State::Pending) && filter.wants(State::Completing) && !filter.wants(State::Failed)
        );
        assert!(with_ids("3").unwrap().wants(State::Failed));
    }

    #[test]
    fn commas_in_brackets_belong_to_the_id_and_pieces_of_one_job_are_joined() {
        let filter = with_ids("12_[1-3,7],15,12_5,15_2").unwrap();
        let ids = filter.ids.unwrap();
        assert_eq!(ids[&12].as_ref().unwrap().to_string(), "1-3,5,7");
        assert_eq!(ids[&15], None);
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_name() {
        let named = |query: JobQuery| Filter::read(&query).unwrap_err().message;
        assert!(with_ids("12,x").unwrap_err().message.contains("\"x\""));
        assert!(with_ids("12,").unwrap_err().message.contains("\"\""));
        assert!(
            named(JobQuery { states: Some("R,runing".into()), ..Default::default() }).contains("\"runing\"")
        );
        assert!(named(JobQuery { users: Some("a,,b".into()), ..Default::default() }).contains("\"a,,b\""));
        assert!(named(JobQuery { limit: Some(0), ..Default::default() }).contains("1 to 100000"));
        assert!(named(JobQuery { limit: Some(100_001), ..Default::default() }).contains("100001"));
    }
}
