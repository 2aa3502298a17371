//! Lists of names as people write them: `node1,node2`, `node[1-4,7]`, `gpu[01-16]-ib`.

use crate::bcancel::split;
use crate::fail::Fail;

/// The most names that one list may stand for.
const NAMES_MAX: usize = 10_000;

/// The names that a list stands for, in its order; `option` is named in a refusal.
pub fn names(option: &str, text: &str) -> Result<Vec<String>, Fail> {
    let mut names = Vec::new();
    for word in split(text) {
        if word.is_empty() {
            return Err(Fail::usage(format!("{option}={text}: a name is missing between commas")));
        }
        expand(word, &mut names).map_err(|what| {
            Fail::usage(format!("{option}={text}: {what}"))
                .hint("name them with commas between them, or as a range: node[1-4,7]")
        })?;
    }
    Ok(names)
}

fn expand(word: &str, names: &mut Vec<String>) -> Result<(), String> {
    let Some((before, rest)) = word.split_once('[') else {
        return match word.contains(']') {
            true => Err(format!("{word:?} has a ] without its [")),
            false => push(word.to_owned(), names),
        };
    };
    let (ranges, after) = rest.split_once(']').ok_or_else(|| format!("{word:?} has a [ without its ]"))?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
            true => text.parse::<u32>().map_err(|_| format!("{text:?} in {word:?} is no number")),
            false => Err(format!("{text:?} in {word:?} is no number")),
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err(format!("the range {range:?} in {word:?} runs backwards"));
        }
        // "01-16" keeps its zeros.
        let digits = if first.starts_with('0') { first.len() } else { 1 };
        for n in from..=to {
            // Further brackets stand for further ranges.
            expand(&format!("{before}{n:0digits$}{after}"), names)?;
        }
    }
    Ok(())
}

fn push(name: String, names: &mut Vec<String>) -> Result<(), String> {
    if names.len() >= NAMES_MAX {
        return Err(format!("more than {NAMES_MAX} names"));
    }
    names.push(name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stand_for_their_names() {
        for (text, all) in [
            ("n1", "n1"),
            ("n1,n2", "n1 n2"),
            ("n[1-3,7],m", "n1 n2 n3 n7 m"),
            ("gpu[08-11]-ib", "gpu08-ib gpu09-ib gpu10-ib gpu11-ib"),
            ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ] {
            assert_eq!(names("--nodelist", text).unwrap().join(" "), all, "{text}");
        }
        for text in ["", "n1,", "n[1-", "n1]", "n[3-1]", "n[a-b]", "n[]", "n[1-2", "n[0-4000000000]", "n[+1]"]
        {
            let fail = names("--nodelist", text).unwrap_err();
            assert!(
                fail.error.message.starts_with(&format!("--nodelist={text}: ")),
                "{}",
                fail.error.message
            );
        }
    }
}
