//! `-o` and `-S`: names of columns, or Slurm's letters with their widths.
//!
//! In Slurm's form (`%.18i %j`) text between the fields is kept and a field with a width is cut to it silently, as `squeue` does:
//! programs rely on both. Names give a table that is never cut in a pipe.

use super::columns::{self, Kind};
use super::row::Row;
use crate::fail::Fail;
use crate::text::{take, visible, width};

/// A form of Slurm's.
#[derive(Debug, PartialEq, Eq)]
pub struct Form {
    parts: Vec<Part>,
}

#[derive(Debug)]
enum Part {
    Text(String),
    Field { kind: &'static Kind, width: Option<usize>, right: bool },
}

impl PartialEq for Part {
    fn eq(&self, other: &Part) -> bool {
        match (self, other) {
            (Part::Text(one), Part::Text(other)) => one == other,
            (Part::Field { kind: a, width: b, right: c }, Part::Field { kind: d, width: e, right: f }) => {
                a.name == d.name && b == e && c == f
            }
            _ => false,
        }
    }
}

impl Eq for Part {}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Reads names: `id,name,state`.
pub fn names(list: &str) -> Result<Vec<&'static Kind>, Fail> {
    list.split(',').map(|name| named(name.trim(), "--format")).collect()
}

fn named(name: &str, option: &str) -> Result<&'static Kind, Fail> {
    columns::named(name).ok_or_else(|| {
        let fail = Fail::usage(format!("{option}: there is no column {name:?}"));
        let all: Vec<&str> = columns::all().iter().map(|kind| kind.name).collect();
        let near = all.iter().max_by(|a, b| strsim::jaro(a, name).total_cmp(&strsim::jaro(b, name)));
        match near.filter(|near| strsim::jaro(near, name) > 0.8) {
            Some(near) => fail.hint(format!("{near:?} is one; bq(1) lists all")),
            None => fail.hint(format!("there are {}", all.join(", "))),
        }
    })
}

fn lettered(letter: char, option: &str) -> Result<&'static Kind, Fail> {
    columns::lettered(letter).ok_or_else(|| {
        let all: Vec<String> =
            columns::all().iter().filter_map(|k| k.letter.map(|l| format!("%{l}"))).collect();
        Fail::usage(format!("{option}: %{letter} is not supported"))
            .hint(format!("there are {}", all.join(" ")))
    })
}

/// Reads Slurm's form: `%.18i %.9P`. `None` where there is no `%` in it.
pub fn form(text: &str) -> Option<Result<Form, Fail>> {
    text.contains('%').then(|| read_form(text))
}

fn read_form(text: &str) -> Result<Form, Fail> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        if at > 0 {
            parts.push(Part::Text(rest[..at].to_owned()));
        }
        let field = &rest[at + 1..];
        let (right, field) = match field.strip_prefix('.') {
            Some(field) => (true, field),
            None => (false, field),
        };
        let digits = field.bytes().take_while(u8::is_ascii_digit).count();
        let size = match &field[..digits] {
            "" => None,
            size => Some(
                size.parse::<usize>()
                    .ok()
                    .filter(|size| *size <= 10_000)
                    .ok_or_else(|| Fail::usage(format!("--format: %{size}: the largest width is 10000")))?,
            ),
        };
        let Some(letter) = field[digits..].chars().next() else {
            return Err(Fail::usage(format!("--format: {text:?} ends in an unfinished field"))
                .hint("a field is %[[.]WIDTH]LETTER, such as %.18i"));
        };
        parts.push(Part::Field { kind: lettered(letter, "--format")?, width: size, right });
        rest = &field[digits + letter.len_utf8()..];
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    Ok(Form { parts })
}

impl Form {
    /// The columns in it.
    pub fn kinds(&self) -> impl Iterator<Item = &'static Kind> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Field { kind, .. } => Some(*kind),
        })
    }

    /// The jobs in this form.
    pub fn render(&self, rows: &[Row<'_>], header: bool) -> String {
        let mut text = String::new();
        if header {
            self.line(&mut text, |kind| kind.title.into());
        }
        for row in rows {
            self.line(&mut text, |kind| visible(&(kind.fill)(row)).into_owned());
        }
        text
    }

    fn line(&self, text: &mut String, fill: impl Fn(&'static Kind) -> String) {
        for part in &self.parts {
            match part {
                Part::Text(between) => text.push_str(between),
                Part::Field { kind, width: None, .. } => text.push_str(&fill(kind)),
                Part::Field { kind, width: Some(cells), right } => {
                    let cell = fill(kind);
                    let cell = take(&cell, *cells);
                    let blanks = std::iter::repeat_n(' ', cells - width(cell));
                    if *right {
                        text.extend(blanks);
                        text.push_str(cell);
                    } else {
                        text.push_str(cell);
                        text.extend(blanks);
                    }
                }
            }
        }
        text.push('\n');
    }
}

/// Reads `-S`: names with commas, or Slurm's letters (`P,t,-p`), each with an optional `+` or `-` before it.
pub fn sort_keys(text: &str) -> Result<Vec<(&'static Kind, bool)>, Fail> {
    let key = |word: &str| {
        let (down, name) = match word.strip_prefix('-') {
            Some(name) => (true, name),
            None => (false, word.strip_prefix('+').unwrap_or(word)),
        };
        let mut letters = name.trim_start_matches('%').chars();
        let kind = match (letters.next(), letters.next()) {
            // Slurm sorts by the priority's fraction, which is the priority's order.
            (Some('p'), None) => lettered('Q', "--sort"),
            (Some(letter), None) => lettered(letter, "--sort"),
            _ => named(name, "--sort"),
        };
        kind.map(|kind| (kind, down))
    };
    text.split(',').map(str::trim).map(key).collect()
}

/// Sorts by the keys; what is equal in all of them stays in order.
pub fn sort(rows: &mut [Row<'_>], keys: &[(&'static Kind, bool)]) {
    rows.sort_by(|one, other| {
        let orders = keys.iter().map(|(kind, down)| {
            let order = kind.compare(one, other);
            if *down { order.reverse() } else { order }
        });
        orders.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
    });
}
