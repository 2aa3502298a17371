//! Colours on a terminal: which, and whether.
//!
//! Colour repeats what a word says already. It is off in a pipe, and where `NO_COLOR`, `CLICOLOR=0` or `TERM=dumb` say so.

use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use proto::State;
use std::io::IsTerminal;

/// Titles of columns.
pub const TITLE: Style = Style::new().bold();
/// The word that opens an error.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// The word that opens a hint.
pub const HINT: Style = AnsiColor::Cyan.on_default();

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default();
const WAITING: Style = AnsiColor::Yellow.on_default();
const CHANGING: Style = AnsiColor::Cyan.on_default();
const PLAIN: Style = Style::new();

/// Whether stdout takes colour.
pub fn wanted() -> bool {
    std::io::stdout().is_terminal() && AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
}

/// Whether stderr takes colour.
pub fn wanted_on_stderr() -> bool {
    std::io::stderr().is_terminal() && AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never
}

/// The text in this style; as it is in the plain one.
pub fn push(to: &mut String, style: Style, text: &str) {
    if style.is_plain() {
        to.push_str(text);
    } else {
        to.push_str(&format!("{style}{text}{style:#}"));
    }
}

/// A job's state by any of its names.
pub fn of_job_state(word: &str) -> Style {
    match word.parse() {
        Ok(State::Running | State::Completed) => GOOD,
        Ok(State::Pending | State::Booked | State::Suspended) => WAITING,
        Ok(State::Starting | State::Completing) => CHANGING,
        Ok(State::Cancelled | State::Preempted | State::Expired) => PLAIN,
        Ok(State::Failed | State::Timeout | State::OutOfMemory | State::NodeFail) => BAD,
        Err(_) => PLAIN,
    }
}

/// A node's state as `binfo` words it.
pub fn of_node_state(word: &str) -> Style {
    match word {
        "idle" | "mixed" | "full" | "free" => GOOD,
        "draining" | "drained" | "held" => WAITING,
        "disconnected" | "unreachable" | "lost" => BAD,
        _ => PLAIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_of_a_job_has_its_colour_under_each_name() {
        for state in State::all() {
            assert_eq!(of_job_state(state.name()), of_job_state(state.slurm()), "{state}");
        }
        assert_eq!(of_job_state("OOM"), BAD);
        assert_eq!(of_job_state("no state"), PLAIN);
    }

    #[test]
    fn plain_text_gets_no_escape_and_coloured_text_is_closed() {
        let mut text = String::new();
        push(&mut text, PLAIN, "a");
        push(&mut text, BAD, "b");
        assert_eq!(text, "a\u{1b}[31mb\u{1b}[0m");
    }
}
