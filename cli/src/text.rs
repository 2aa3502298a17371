//! Text from elsewhere, made fit for a line on a terminal: control characters shown, width counted in display cells.
//!
//! Names and comments come from other people. Whatever they hold, a line stays a line and no escape sequence reaches the
//! terminal. Also the wording of an operating system's error.

use std::borrow::Cow;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The mark of a cut.
pub const CUT: char = '…';

fn hidden(c: char) -> bool {
    // Control characters, and those that turn the direction of what follows.
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with every control character as `\n`, `\t` or `\u{1b}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    // Nearly every cell is printable ASCII, which is told without decoding it.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || !text.chars().any(hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if hidden(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// The same for a message, whose line breaks stay.
pub fn visible_lines(text: &str) -> String {
    text.split('\n').map(visible).collect::<Vec<_>>().join("\n")
}

/// How many cells of a terminal the text takes.
pub fn width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.width() }
}

/// The text cut to so many cells, the cut shown by [`CUT`].
pub fn cut(text: &str, cells: usize) -> Cow<'_, str> {
    if width(text) <= cells {
        return Cow::Borrowed(text);
    }
    if cells == 0 {
        return Cow::Borrowed("");
    }
    let mut short = take(text, cells - 1).to_owned();
    short.push(CUT);
    Cow::Owned(short)
}

/// As much of the text's beginning as fits so many cells; never a half of a wide character.
pub fn take(text: &str, cells: usize) -> &str {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += c.width().unwrap_or(0);
        if used > cells {
            return &text[..at];
        }
    }
    text
}

/// An operating system's error in our wording: lower case, without its number.
pub fn os_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        // "No such file" becomes "no such file", "I/O error" stays.
        Some(first) if !letters.as_str().starts_with(|c: char| c.is_uppercase() || c == '/') => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_a_line_and_no_escape_gets_through() {
        assert_eq!(visible("crazy|name"), "crazy|name");
        assert_eq!(visible("a\nb\t\x1b[31m"), r"a\nb\t\u{1b}[31m");
        assert_eq!(visible("right\u{202e}to left"), r"right\u{202e}to left");
        assert_eq!(visible_lines("one\ntwo\r"), "one\ntwo\\r");
    }

    #[test]
    fn width_is_counted_in_cells() {
        assert_eq!(width("日本語"), 6);
        assert_eq!(width("e\u{301}"), 1);
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abcd", 4), "abcd");
        assert_eq!(cut("abcd", 0), "");
        assert_eq!(take("日本語", 3), "日");
    }

    #[test]
    fn an_error_of_the_system_reads_as_ours() {
        assert_eq!(os_error(&std::io::Error::from_raw_os_error(2)), "no such file or directory");
        assert_eq!(os_error(&std::io::Error::from_raw_os_error(28)), "no space left on device");
    }
}
