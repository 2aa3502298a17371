//! What is being waited for: a line that changes on a terminal, plain lines elsewhere. Always on stderr.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// What a command waits for just now.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    said: String,
}

impl Progress {
    pub(super) fn new() -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg}")
                .expect("the template is a constant that parses");
            let bar = ProgressBar::new_spinner().with_style(style);
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Progress { bar, said: String::new() }
    }

    /// Says it, once however often it is repeated.
    pub(super) fn say(&mut self, text: &str) {
        if self.said == text {
            return;
        }
        text.clone_into(&mut self.said);
        match &self.bar {
            Some(bar) => bar.set_message(text.to_owned()),
            // Progress that cannot be shown is no failure.
            None => drop(writeln!(std::io::stderr(), "{text}")),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
