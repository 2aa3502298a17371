//! File name patterns of a job's output, error and input: `slurm-%j.out`, `log/%x-%4a.txt`.
//!
//! Owns which letters there are and what each becomes. `check` is for submission (an unknown letter is refused there, by
//! name), `expand` is for the node and never fails: what `check` would refuse stays as it was written. A name can
//! never lead out of the directory that the pattern names: `/` and control characters in `%x`, `%u` and `%N` become `_`.

use std::fmt::Write;

/// The widest zero padding, as in `%10j`; a larger width counts as this.
pub const WIDTH_MAX: usize = 10;

/// What the letters stand for.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// `%j`, `%J`: the job's id.
    pub job_id: i64,
    /// `%A`: the array's id; the job's own where there is no array.
    pub array_job_id: i64,
    /// `%a`: the array index; 0 is written where there is no array.
    pub task: Option<u32>,
    /// `%x`: the job's name.
    pub job_name: &'a str,
    /// `%u`: the user's name.
    pub user: &'a str,
    /// `%N`: the node that runs the script, up to its first dot.
    pub node: &'a str,
    /// `%n`: that node's place among the job's nodes, from 0.
    pub node_index: u32,
    /// The attempt, from 1; `%r` is the restarts before it.
    pub attempt: i32,
}

/// A pattern that names no file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Nothing at all.
    #[error("the file name is empty")]
    Empty,
    /// A NUL byte or a line break.
    #[error("file name {0:?} holds a control character")]
    Control(String),
    /// LSF's array index.
    #[error("file name {0:?}: %I is unknown: write %a for the array index")]
    Lsf(String),
    /// A letter that stands for nothing.
    #[error(
        "file name {pattern:?}: %{letter} is unknown: known are %j %A %a %b %x %u %N %n %J %r %s %t, and %% for a percent sign"
    )]
    Letter {
        /// The whole pattern.
        pattern: String,
        /// The letter.
        letter: char,
    },
    /// A percent sign with nothing after it.
    #[error("file name {0:?} ends in a lone percent sign: write %% for one")]
    Lone(String),
}

/// The default output pattern. The error file joins the output, the input is `/dev/null`.
pub fn default_output(is_array: bool) -> &'static str {
    if is_array { "slurm-%A_%a.out" } else { "slurm-%j.out" }
}

/// Whether every letter of the pattern is known.
pub fn check(pattern: &str) -> Result<(), PatternError> {
    if pattern.is_empty() {
        return Err(PatternError::Empty);
    }
    if pattern.chars().any(|c| c.is_control()) {
        return Err(PatternError::Control(pattern.to_owned()));
    }
    for piece in pieces(pattern) {
        match piece {
            Piece::Text(_) | Piece::Field { letter: Letter::Known(_), .. } => {}
            Piece::Field { letter: Letter::Unknown('I'), .. } => {
                return Err(PatternError::Lsf(pattern.to_owned()));
            }
            Piece::Field { letter: Letter::Unknown(letter), .. } => {
                return Err(PatternError::Letter { pattern: pattern.to_owned(), letter });
            }
            Piece::Field { letter: Letter::None, .. } => return Err(PatternError::Lone(pattern.to_owned())),
        }
    }
    Ok(())
}

/// The pattern with its letters filled in.
///
/// A pattern that holds a backslash is taken as it is, without its backslashes (`\\` is one), as Slurm does.
pub fn expand(pattern: &str, names: &Names<'_>) -> String {
    let mut path = String::with_capacity(pattern.len() + 16);
    for piece in pieces(pattern) {
        match piece {
            Piece::Text(text) => path.push_str(&text),
            Piece::Field { letter: Letter::Known(letter), width, .. } => {
                fill(&mut path, letter, width, names)
            }
            Piece::Field { source, .. } => path.push_str(source),
        }
    }
    path
}

fn fill(path: &mut String, letter: char, width: usize, names: &Names<'_>) {
    let task = names.task.unwrap_or(0);
    let number = match letter {
        'j' | 'J' => names.job_id,
        'A' => names.array_job_id,
        'a' => i64::from(task),
        'b' => i64::from(task % 10),
        'n' => i64::from(names.node_index),
        'r' => i64::from(names.attempt.max(1) - 1),
        // The batch script is the only step so far, and rank 0 in it.
        't' => 0,
        's' => return path.push_str("batch"),
        'x' => return path.push_str(&safe(names.job_name)),
        'u' => return path.push_str(&safe(names.user)),
        'N' => return path.push_str(&safe(names.node.split('.').next().unwrap_or_default())),
        _ => unreachable!("pieces() gives only known letters"),
    };
    write!(path, "{number:0width$}").expect("a String takes all that is written");
}

/// A name as a part of one path segment.
fn safe(name: &str) -> String {
    match name {
        "." => "_".to_owned(),
        ".." => "__".to_owned(),
        _ => name.chars().map(|c| if c == '/' || c.is_control() { '_' } else { c }).collect(),
    }
}

const LETTERS: &str = "jJAabnrtsxuN";

enum Letter {
    Known(char),
    Unknown(char),
    None,
}

enum Piece<'a> {
    Text(String),
    Field { letter: Letter, width: usize, source: &'a str },
}

fn pieces(pattern: &str) -> Vec<Piece<'_>> {
    if pattern.contains('\\') {
        return vec![Piece::Text(without_backslashes(pattern))];
    }
    let mut all = Vec::new();
    let mut rest = pattern;
    while let Some(at) = rest.find('%') {
        if at > 0 {
            all.push(Piece::Text(rest[..at].to_owned()));
        }
        let field = &rest[at..];
        let digits = field[1..].bytes().take_while(u8::is_ascii_digit).count();
        let letter = field[1 + digits..].chars().next();
        let length = 1 + digits + letter.map_or(0, char::len_utf8);
        let (source, after) = field.split_at(length);
        all.push(match letter {
            Some('%') if digits == 0 => Piece::Text("%".to_owned()),
            letter => {
                let width = field[1..1 + digits].parse().unwrap_or(if digits == 0 { 0 } else { WIDTH_MAX });
                let letter = match letter {
                    None => Letter::None,
                    Some(letter) if LETTERS.contains(letter) => Letter::Known(letter),
                    Some(letter) => Letter::Unknown(letter),
                };
                Piece::Field { letter, width: width.min(WIDTH_MAX), source }
            }
        });
        rest = after;
    }
    if !rest.is_empty() {
        all.push(Piece::Text(rest.to_owned()));
    }
    all
}

fn without_backslashes(pattern: &str) -> String {
    let mut text = String::with_capacity(pattern.len());
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => text.extend(letters.next()),
            letter => text.push(letter),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names<'static> = Names {
        job_id: 42,
        array_job_id: 40,
        task: Some(17),
        job_name: "train",
        user: "alice",
        node: "node1.example.org",
        node_index: 0,
        attempt: 3,
    };

    #[test]
    fn every_letter_is_filled_in() {
        for (pattern, path) in [
            ("slurm-%j.out", "slurm-42.out"),
            ("%J", "42"),
            ("%A_%a", "40_17"),
            ("%b", "7"),
            ("%x/%u@%N", "train/alice@node1"),
            ("%n%r%t", "020"),
            ("%s", "batch"),
            ("100%%", "100%"),
            ("%%j", "%j"),
            ("%4j-%010A-%3x", "0042-0000000040-train"),
            ("%99999999999999999999j", "0000000042"),
        ] {
            assert_eq!(expand(pattern, &NAMES), path, "{pattern}");
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
    }

    #[test]
    fn a_backslash_stops_all_of_it() {
        assert_eq!(expand(r"\%j.out", &NAMES), "%j.out");
        assert_eq!(expand(r"a\\%x", &NAMES), r"a\%x");
        assert_eq!(check(r"\%I"), Ok(()));
    }

    #[test]
    fn a_name_cannot_leave_its_directory() {
        let names = Names { job_name: "../../etc/passwd", ..NAMES };
        assert_eq!(expand("logs/%x", &names), "logs/.._.._etc_passwd");
        let names = Names { job_name: "..", user: ".", ..NAMES };
        assert_eq!(expand("%x/%u/f", &names), "__/_/f");
        let names = Names { job_name: "a\nb\0c", ..NAMES };
        assert_eq!(expand("%x", &names), "a_b_c");
    }

    #[test]
    fn a_job_that_is_no_array_writes_index_0() {
        let names = Names { task: None, array_job_id: 42, ..NAMES };
        assert_eq!(expand("%A_%a_%b", &names), "42_0_0");
    }

    #[test]
    fn unknown_letters_are_refused_by_name_and_kept_as_written() {
        assert!(check("x_%J_%I.out").unwrap_err().to_string().contains("write %a"));
        assert!(check("%q").unwrap_err().to_string().contains("%q is unknown"));
        assert!(check("50%").unwrap_err().to_string().contains("lone percent"));
        assert!(check("").is_err());
        assert!(check("a\nb").is_err());
        assert_eq!(expand("x_%I-%5q-50%", &NAMES), "x_%I-%5q-50%");
        assert_eq!(expand("ä%ß", &NAMES), "ä%ß");
    }

    #[test]
    fn defaults_tell_tasks_apart() {
        assert_eq!(expand(default_output(false), &NAMES), "slurm-42.out");
        assert_eq!(expand(default_output(true), &NAMES), "slurm-40_17.out");
    }
}
