//! Job and task ids: `12`, `12_3`, and for commands that take many, `12_[1-3,7]`.

use crate::index_set::{IndexSet, IndexSetError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// One job that is not an array (`12`), or one task of an array (`12_3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskId {
    /// The job's id: 64 bits, never reused.
    pub job: i64,
    /// The array index, for a task of an array.
    pub task: Option<u32>,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.task {
            Some(task) => write!(f, "{}_{task}", self.job),
            None => write!(f, "{}", self.job),
        }
    }
}

/// What a person names on a command line: a job or whole array (`12`), a task (`12_3`), or some tasks (`12_[1-3]`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRef {
    /// The job's id.
    pub job: i64,
    /// The tasks named; `None` is the whole job.
    pub tasks: Option<IndexSet>,
}

/// Text that names no job.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobRefError {
    /// Not a number, or not one that a job can have.
    #[error("\"{0}\" is not a job id: expected a number (12), an array task (12_3) or tasks (12_[1-3])")]
    NotAnId(String),
    /// The tasks cannot be read.
    #[error("\"{text}\" names no tasks: {cause}")]
    Tasks {
        /// The whole text.
        text: String,
        /// What is wrong with the part after the underscore.
        cause: IndexSetError,
    },
}

impl FromStr for JobRef {
    type Err = JobRefError;

    fn from_str(text: &str) -> Result<JobRef, JobRefError> {
        let (job, tasks) = match text.split_once('_') {
            Some((job, tasks)) => (job, Some(tasks)),
            None => (text, None),
        };
        let not_an_id = || JobRefError::NotAnId(text.to_owned());
        if job.is_empty() || !job.bytes().all(|b| b.is_ascii_digit()) {
            return Err(not_an_id());
        }
        let job: i64 = job.parse().map_err(|_| not_an_id())?;
        if job < 1 {
            return Err(not_an_id());
        }
        let tasks = tasks
            .map(|tasks| {
                let inner = tasks.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(tasks);
                inner.parse().map_err(|cause| JobRefError::Tasks { text: text.to_owned(), cause })
            })
            .transpose()?;
        Ok(JobRef { job, tasks })
    }
}

impl fmt::Display for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tasks {
            None => write!(f, "{}", self.job),
            Some(tasks) if tasks.len() == 1 => write!(f, "{}_{tasks}", self.job),
            Some(tasks) => write!(f, "{}_[{tasks}]", self.job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_as_they_are_shown() {
        for text in ["12", "12_3", "12_[1-3,7]"] {
            assert_eq!(text.parse::<JobRef>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_id_is_refused_by_name() {
        for text in ["", "0", "-1", "abc", "12_", "12_x", "1.2", "99999999999999999999", "12_[3-1]"] {
            let error = text.parse::<JobRef>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
