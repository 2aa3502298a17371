//! Tables for people, and separated values for programs.
//!
//! A table knows its titles and its cells; where it goes decides the rest. Into a pipe or file nothing is cut. On a terminal
//! columns that may be are cut to fit, with a mark; ids and states never are, the line is then too long. Colour is for terminals
//! only, is never the only sign of anything, and is left out where `NO_COLOR`, `CLICOLOR=0` or `TERM=dumb` say so.

use crate::colour;
use crate::text::{cut, visible, width};
use anstyle::Style;
use std::borrow::Cow;
use std::io::IsTerminal;

/// The narrowest a column is cut to.
const CELLS_MIN: usize = 5;
/// What a terminal of unknown width counts as.
const WIDTH_DEFAULT: usize = 80;
/// A width below this is not believed.
const WIDTH_MIN: usize = 20;

/// A column's title and manners.
#[derive(Clone, Debug)]
pub struct Column {
    /// What stands on top.
    pub title: Cow<'static, str>,
    /// Numbers stand to the right.
    pub right: bool,
    /// Whether it may be cut on a narrow terminal.
    pub cut: bool,
    /// The colour of a cell that says this.
    pub paint: Option<Paint>,
}

/// From what a cell says to its colour.
pub type Paint = fn(&str) -> Style;

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Table<'a> {
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows, each with a cell a column.
    pub rows: Vec<Vec<Cow<'a, str>>>,
}

/// The width of the terminal that stdout is; `None` if it is none.
pub fn terminal_width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let said = std::env::var("COLUMNS").ok().and_then(|c| c.parse::<usize>().ok());
    Some(choose_width(said, window_width()))
}

fn choose_width(said: Option<usize>, window: Option<usize>) -> usize {
    let believed = |width: &usize| (WIDTH_MIN..=10_000).contains(width);
    said.filter(believed).or(window.filter(believed)).unwrap_or(WIDTH_DEFAULT)
}

fn window_width() -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes a winsize to the pointer, which is valid for one.
    let rc = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) };
    (rc == 0 && size.ws_col > 0).then_some(size.ws_col.into())
}

impl Column {
    /// A column that is never cut.
    pub fn whole(title: impl Into<Cow<'static, str>>) -> Column {
        Column { title: title.into(), right: false, cut: false, paint: None }
    }

    /// A column that may be cut.
    pub fn soft(title: impl Into<Cow<'static, str>>) -> Column {
        Column { title: title.into(), right: false, cut: true, paint: None }
    }

    /// A column of numbers.
    pub fn number(title: impl Into<Cow<'static, str>>) -> Column {
        Column { title: title.into(), right: true, cut: false, paint: None }
    }
}

impl Column {
    /// The same, its cells coloured on a terminal.
    pub fn painted(self, paint: Paint) -> Column {
        Column { paint: Some(paint), ..self }
    }
}

impl Table<'_> {
    /// The table as lines. `terminal` is the width to fit, if it goes to a terminal.
    pub fn render(&self, header: bool, terminal: Option<usize>) -> String {
        let mut widths: Vec<usize> =
            self.columns.iter().map(|c| if header { width(&c.title) } else { 0 }).collect();
        for row in &self.rows {
            for (cells, cell) in widths.iter_mut().zip(row) {
                *cells = (*cells).max(width(&visible(cell)));
            }
        }
        if let Some(terminal) = terminal {
            self.fit(&mut widths, terminal);
        }
        let mut text =
            String::with_capacity((self.rows.len() + 1) * (widths.iter().sum::<usize>() + widths.len() + 1));
        let colour = terminal.is_some() && colour::wanted();
        if header {
            let style = |_: usize, _: &str| if colour { colour::TITLE } else { Style::new() };
            self.line(
                &mut text,
                &widths,
                self.columns.iter().map(|c| Cow::Borrowed(c.title.as_ref())),
                style,
            );
        }
        for row in &self.rows {
            let style = |column: usize, cell: &str| match self.columns[column].paint {
                Some(paint) if colour => paint(cell),
                _ => Style::new(),
            };
            self.line(&mut text, &widths, row.iter().map(|cell| visible(cell)), style);
        }
        text
    }

    /// Takes cells from the widest column that may be cut, one by one, so that columns shrink together.
    fn fit(&self, widths: &mut [usize], terminal: usize) {
        let mut over =
            (widths.iter().sum::<usize>() + widths.len().saturating_sub(1)).saturating_sub(terminal);
        while over > 0 {
            let soft = (0..widths.len()).filter(|&i| self.columns[i].cut && widths[i] > CELLS_MIN);
            let Some(widest) = soft.max_by_key(|&i| widths[i]) else { return };
            // A cell as long as a script's comment must not make this loop long.
            let most = over.min(widths[widest] - CELLS_MIN);
            let step = widths[widest].saturating_sub(terminal).clamp(1, most);
            widths[widest] -= step;
            over -= step;
        }
    }

    fn line<'c>(
        &self,
        text: &mut String,
        widths: &[usize],
        cells: impl Iterator<Item = Cow<'c, str>>,
        style: impl Fn(usize, &str) -> Style,
    ) {
        let mut pending = 0;
        for (i, (cell, cells)) in cells.zip(widths).enumerate() {
            let cell = cut(&cell, *cells);
            let fill = cells - width(&cell);
            let gap = usize::from(i > 0);
            // Blanks are written only before something, so that no line ends in them.
            let (before, after) = if self.columns[i].right { (fill, 0) } else { (0, fill) };
            pending += gap + before;
            if !cell.is_empty() {
                text.extend(std::iter::repeat_n(' ', pending));
                colour::push(text, style(i, &cell), &cell);
                pending = 0;
            }
            pending += after;
        }
        text.push('\n');
    }

    /// The rows with their cells joined by `|`, for programs: a backslash, a bar and every control character in a cell are
    /// escaped by a backslash (`\\`, `\|`, `\n`, `\t`, `\r`, `\u{1b}`).
    pub fn separated(&self, header: bool) -> String {
        let mut text = String::new();
        if header {
            let titles: Vec<&str> = self.columns.iter().map(|c| c.title.as_ref()).collect();
            text.push_str(&titles.join("|"));
            text.push('\n');
        }
        for row in &self.rows {
            for (i, cell) in row.iter().enumerate() {
                if i > 0 {
                    text.push('|');
                }
                escape_into(&mut text, cell);
            }
            text.push('\n');
        }
        text
    }
}

fn escape_into(text: &mut String, cell: &str) {
    for c in cell.chars() {
        match c {
            '\\' => text.push_str(r"\\"),
            '|' => text.push_str(r"\|"),
            c if c.is_control() => text.extend(c.escape_default()),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table<'static> {
        Table {
            columns: vec![
                Column::number("JOBID"),
                Column::soft("NAME"),
                Column::whole("ST").painted(colour::of_job_state),
                Column::soft("REASON"),
            ],
            rows: vec![
                vec!["7".into(), "a-long-name-of-a-job".into(), "PD".into(), "(Unschedulable)".into()],
                vec!["123456_[4-9%2]".into(), "日本語".into(), "OOM".into(), "a\nb".into()],
                vec!["8".into(), "x".into(), "R".into(), "".into()],
            ],
        }
    }

    #[test]
    fn nothing_is_cut_in_a_pipe() {
        insta::assert_snapshot!(table().render(true, None), @r"
                 JOBID NAME                 ST  REASON
                     7 a-long-name-of-a-job PD  (Unschedulable)
        123456_[4-9%2] 日本語               OOM a\nb
                     8 x                    R
        ");
    }

    #[test]
    fn nothing_is_coloured_in_a_pipe() {
        assert!(!table().render(true, None).contains('\u{1b}'));
    }

    #[test]
    fn a_terminal_is_fitted_without_cutting_ids_and_states() {
        insta::assert_snapshot!(table().render(true, Some(40)), @r"
                 JOBID NAME       ST  REASON
                     7 a-long-na… PD  (Unschedu…
        123456_[4-9%2] 日本語     OOM a\nb
                     8 x          R
        ");
        for terminal in [20, 1, 0] {
            let narrow = table().render(false, Some(terminal));
            assert!(narrow.contains("123456_[4-9%2]") && narrow.contains(" OOM "), "{narrow}");
            assert_eq!(narrow.lines().count(), 3);
        }
        assert_eq!(table().render(true, Some(10_000)), table().render(true, None));
    }

    #[test]
    fn a_width_that_cannot_be_is_not_believed() {
        assert_eq!(choose_width(Some(100), Some(60)), 100);
        assert_eq!(choose_width(Some(1), Some(60)), 60);
        assert_eq!(choose_width(Some(99_999), None), WIDTH_DEFAULT);
        assert_eq!(choose_width(None, Some(3)), WIDTH_DEFAULT);
    }

    #[test]
    fn separated_cells_can_be_told_apart_whatever_they_hold() {
        let table = Table {
            columns: vec![Column::whole("id"), Column::whole("name")],
            rows: vec![vec!["1".into(), "crazy|name\\\n".into()], vec!["2".into(), "".into()]],
        };
        assert_eq!(table.separated(true), "id|name\n1|crazy\\|name\\\\\\n\n2|\n");
    }
}
