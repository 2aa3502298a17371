//! `#BATCH` and `#SBATCH` lines: which lines of a script are options, and the words in them.
//!
//! The block of directives ends at the first line that is neither blank nor a comment; a later one changes nothing and
//! is only reported. A line is cut into words as a shell would, without expanding anything; an unquoted `#` ends it, as in
//! Slurm. What the words mean is for `args`.

/// A directive's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Its number in the script, from 1.
    pub number: usize,
    /// Whose it is.
    pub kind: Kind,
    /// What follows the prefix.
    pub text: &'a str,
}

/// Whose directive it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `#BATCH`, ours.
    Batch,
    /// `#SBATCH`, Slurm's.
    Sbatch,
    /// `#BSUB`, LSF's.
    Bsub,
    /// `#PBS`.
    Pbs,
}

impl Kind {
    /// The prefix.
    pub fn prefix(self) -> &'static str {
        match self {
            Kind::Batch => "#BATCH",
            Kind::Sbatch => "#SBATCH",
            Kind::Bsub => "#BSUB",
            Kind::Pbs => "#PBS",
        }
    }
}

/// The directives of a script.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found<'a> {
    /// Those in the leading block.
    pub block: Vec<Line<'a>>,
    /// Those after the first command, which change nothing.
    pub late: Vec<Line<'a>>,
}

/// Finds the directives. The first line, the interpreter's, is none.
pub fn find(script: &str) -> Found<'_> {
    let mut found = Found::default();
    let mut block = true;
    for (at, line) in script.lines().enumerate().skip(1) {
        let start = line.trim_start();
        if let Some((kind, text)) = directive(line) {
            let line = Line { number: at + 1, kind, text };
            if block { &mut found.block } else { &mut found.late }.push(line);
        } else if !start.is_empty() && !start.starts_with('#') {
            block = false;
        }
    }
    found
}

fn directive(line: &str) -> Option<(Kind, &str)> {
    // Most lines are no comments at all.
    if !line.starts_with('#') {
        return None;
    }
    [Kind::Batch, Kind::Sbatch, Kind::Bsub, Kind::Pbs].into_iter().find_map(|kind| {
        let text = line.strip_prefix(kind.prefix())?;
        // "#BATCHES are…" is a remark; "#BATCH" and a hard space is not, and is refused when its words are read.
        (!text.starts_with(|c: char| c.is_alphanumeric() || c == '_')).then_some((kind, text))
    })
}

/// A line whose words cannot be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordsError {
    /// A quote that is not closed.
    #[error("a quote ({0}) is not closed")]
    Quote(char),
    /// Nothing after the last backslash.
    #[error("the line ends in a backslash: an option cannot go on in the next line")]
    Backslash,
}

/// Cuts a directive's text into words.
pub fn words(text: &str) -> Result<Vec<String>, WordsError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '#' => break,
            c if c.is_ascii_whitespace() => words.extend(word.take()),
            quote @ ('\'' | '"') => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next().ok_or(WordsError::Quote(quote))? {
                        c if c == quote => break,
                        '\\' if quote == '"' && letters.peek().is_some_and(|c| "\"\\$`".contains(*c)) => {
                            word.extend(letters.next());
                        }
                        c => word.push(c),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(letters.next().ok_or(WordsError::Backslash)?),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers(lines: &[Line<'_>]) -> Vec<usize> {
        lines.iter().map(|line| line.number).collect()
    }

    #[test]
    fn blank_and_comment_lines_do_not_end_the_block() {
        let found = find("#!/bin/bash\n\n# note\n#BATCH --mem=1G\n\n#SBATCH --time=5\ntrue\n");
        assert_eq!((numbers(&found.block), numbers(&found.late)), (vec![4, 6], vec![]));
        assert_eq!(found.block[1], Line { number: 6, kind: Kind::Sbatch, text: " --time=5" });
    }

    #[test]
    fn the_first_command_ends_the_block() {
        let found = find("#!/bin/bash\nset -euo pipefail\n#SBATCH --time=4:00:00\n#BATCH --mem=64G\ntrue\n");
        assert_eq!((numbers(&found.block), numbers(&found.late)), (vec![], vec![3, 4]));
        let found = find("#!/bin/bash\ncat <<E\n#SBATCH --mem=999G\nE\n");
        assert_eq!((numbers(&found.block), numbers(&found.late)), (vec![], vec![3]));
    }

    #[test]
    fn remarks_are_no_directives() {
        let found =
            find("#!/bin/bash\n##SBATCH --a\n# SBATCH --b\n#BATCHES\n #SBATCH --c\n#sbatch --d\n#SBATCH\n");
        assert_eq!(numbers(&found.block), vec![7]);
    }

    #[test]
    fn words_are_cut_as_a_shell_would_without_expanding() {
        for (text, want) in [
            (" --a=b  -c d", vec!["--a=b", "-c", "d"]),
            (" --comment=\"two words\" # rest", vec!["--comment=two words"]),
            (" --comment='a # b'\\ c", vec!["--comment=a # b c"]),
            (" --mem=4G# four", vec!["--mem=4G"]),
            (r#" "a\"b\c$HOME" ''"#, vec!["a\"b\\c$HOME", ""]),
            ("", vec![]),
        ] {
            assert_eq!(words(text).unwrap(), want, "{text}");
        }
        assert_eq!(words("'a"), Err(WordsError::Quote('\'')));
        assert_eq!(words("a\\"), Err(WordsError::Backslash));
    }

    proptest! {
        #[test]
        fn a_quoted_word_comes_back(word in "\\PC*") {
            prop_assert_eq!(words(&shell_words::quote(&word)), Ok(vec![word]));
        }
    }
}
