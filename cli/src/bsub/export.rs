//! The job's environment: what `--export` and `--export-file` take from the caller's.
//!
//! `ALL` is everything of the caller's but `SLURM_*` and `BC_*` (those of an enclosing job must not pass for this one's;
//! `BC_SERVER` stays, so that the job finds its cluster). Anything else begins with a minimum that works: `PATH HOME USER LOGNAME
//! SHELL`. Unlike Slurm, a value given with `NAME=VALUE` wins over the caller's, and a list keeps the minimum.

use crate::fail::Fail;
use std::collections::BTreeMap;
use std::ffi::OsString;

/// The `PATH` of a job that does not take the caller's.
pub const PATH_MINIMUM: &str = "/usr/local/bin:/usr/bin:/bin";

/// The caller, as far as the minimum needs it.
#[derive(Clone, Debug)]
pub struct Person {
    /// The login name.
    pub name: String,
    /// The home directory.
    pub home: String,
    /// The login shell.
    pub shell: String,
}

/// The environment and what to say about it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Names and values.
    pub env: BTreeMap<String, String>,
    /// Names that were skipped, and why.
    pub warnings: Vec<String>,
}

/// Works out the environment. `file` is the content of `--export-file`.
pub fn export(
    lists: &[String],
    file: Option<&[u8]>,
    caller: impl Iterator<Item = (OsString, OsString)>,
    person: &Person,
) -> Result<Exported, Fail> {
    let mut warnings = Vec::new();
    let caller = readable(caller, &mut warnings);
    let items = lists.iter().map(|list| split(list)).collect::<Result<Vec<_>, _>>()?.concat();
    let word = |item: &String, word: &str| item.eq_ignore_ascii_case(word);
    let all = items.iter().any(|item| word(item, "ALL")) || (items.is_empty() && file.is_none());
    let none = items.iter().any(|item| word(item, "NONE") || word(item, "NIL"));
    if none && items.len() > 1 {
        return Err(Fail::usage("--export=NONE cannot be joined with other entries")
            .hint("a list without ALL already leaves out everything that is not named"));
    }
    let mut env = if all { inherited(&caller) } else { minimum(person) };
    if let Some(file) = file {
        env.extend(entries(file)?);
    }
    for item in items.iter().filter(|item| !["ALL", "NONE", "NIL"].iter().any(|w| word(item, w))) {
        match item.split_once('=') {
            Some((name, value)) => {
                env.insert(checked(name)?.to_owned(), value.to_owned());
            }
            None => match caller.get(checked(item)?) {
                Some(value) => {
                    env.insert(item.clone(), value.clone());
                }
                None => {
                    warnings.push(format!("--export: {item} is not set here, so the job does not get it"))
                }
            },
        }
    }
    Ok(Exported { env, warnings })
}

/// The caller's variables that are UTF-8; the others are named.
fn readable(
    caller: impl Iterator<Item = (OsString, OsString)>,
    warnings: &mut Vec<String>,
) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for (name, value) in caller {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => {
                variables.insert(name, value);
            }
            (Ok(name), Err(_)) => warnings.push(format!("{name} is not UTF-8, so the job does not get it")),
            (Err(name), _) => warnings.push(format!("a variable's name is not UTF-8: {name:?} is left out")),
        }
    }
    variables
}

fn inherited(caller: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let foreign = |name: &str| {
        (name.starts_with("BC_") && name != crate::client::server::VARIABLE)
            || name.starts_with("SLURM_")
            || name.starts_with("SLURMD_")
            || name == "_"
    };
    caller.iter().filter(|(name, _)| !foreign(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
}

fn minimum(person: &Person) -> BTreeMap<String, String> {
    let pairs = [
        ("PATH", PATH_MINIMUM),
        ("HOME", &person.home),
        ("USER", &person.name),
        ("LOGNAME", &person.name),
        ("SHELL", &person.shell),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Cuts a list at its commas; a quoted value keeps its own (`A='1,2'`).
fn split(list: &str) -> Result<Vec<String>, Fail> {
    let mut items = Vec::new();
    let mut item = String::new();
    let mut letters = list.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ',' => items.push(std::mem::take(&mut item)),
            // A quote counts only where a value begins, so that A=it's stays as it is.
            quote @ ('\'' | '"') if item.ends_with('=') && item.matches('=').count() == 1 => loop {
                match letters.next() {
                    Some(c) if c == quote => break,
                    Some(c) => item.push(c),
                    None => {
                        return Err(Fail::usage(format!("--export={list}: a quote ({quote}) is not closed")));
                    }
                }
            },
            c => item.push(c),
        }
    }
    items.push(item);
    items.retain(|item| !item.is_empty());
    Ok(items)
}

fn checked(name: &str) -> Result<&str, Fail> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    // bash hands exported functions on as BASH_FUNC_name%%.
    let function = name.starts_with("BASH_FUNC_");
    if name.is_empty()
        || name.starts_with(|c: char| c.is_ascii_digit())
        || !(name.chars().all(plain) || function)
    {
        return Err(Fail::usage(format!("--export: {name:?} is no variable's name"))
            .hint("expected ALL, NONE, or names and NAME=VALUE separated by commas; quote a value that holds commas: A='1,2'"));
    }
    Ok(name)
}

/// The entries of an export file: `NAME=VALUE`, each ended by a NUL.
fn entries(file: &[u8]) -> Result<BTreeMap<String, String>, Fail> {
    let wrong = |text: &[u8]| {
        Fail::usage(format!("--export-file: {:?} is no NAME=VALUE", String::from_utf8_lossy(text)))
            .hint("entries end in a NUL byte; `env -0 > FILE` makes such a file")
    };
    let mut found = BTreeMap::new();
    for entry in file.split(|b| *b == 0).filter(|entry| !entry.is_empty()) {
        let text = std::str::from_utf8(entry).map_err(|_| wrong(entry))?;
        let (name, value) =
            text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| wrong(entry))?;
        found.insert(name.to_owned(), value.to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    const CALLER: &[(&str, &str)] = &[
        ("FOO", "outer"),
        ("HOME", "/home/alice"),
        ("PATH", "/opt/bin"),
        ("SLURM_JOB_ID", "9"),
        ("BC_JOB_ID", "9"),
        ("BC_SERVER", "/run/x.sock"),
    ];

    fn of(lists: &[&str], file: Option<&[u8]>) -> Result<Exported, Fail> {
        let lists: Vec<String> = lists.iter().map(|l| (*l).to_owned()).collect();
        let person = Person {
            name: "alice".to_owned(),
            home: "/home/alice".to_owned(),
            shell: "/bin/bash".to_owned(),
        };
        export(&lists, file, CALLER.iter().map(|(n, v)| (n.into(), v.into())), &person)
    }

    fn show(exported: &Exported) -> String {
        exported.env.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn everything_and_some_assignments_of_which_the_given_value_wins() {
        let env = of(&["ALL,FOO=inner,PORT=29999,EQ=a=b=c"], None).unwrap().env;
        assert_eq!(
            (env["FOO"].as_str(), env["PORT"].as_str(), env["EQ"].as_str()),
            ("inner", "29999", "a=b=c")
        );
        assert_eq!(env["HOME"], "/home/alice");
    }

    #[test]
    fn an_enclosing_jobs_variables_do_not_leak() {
        assert_eq!(
            show(&of(&[], None).unwrap()),
            "BC_SERVER=/run/x.sock FOO=outer HOME=/home/alice PATH=/opt/bin"
        );
    }

    #[test]
    fn none_is_the_documented_minimum_and_a_list_adds_to_it() {
        let minimum =
            "HOME=/home/alice LOGNAME=alice PATH=/usr/local/bin:/usr/bin:/bin SHELL=/bin/bash USER=alice";
        for none in ["NONE", "none", "NIL"] {
            assert_eq!(show(&of(&[none], None).unwrap()), minimum);
        }
        assert_eq!(show(&of(&["FOO"], None).unwrap()), format!("FOO=outer {minimum}"));
    }

    #[test]
    fn repeated_lists_add_up() {
        let env = of(&["A=1", "B=2"], None).unwrap().env;
        assert_eq!((env["A"].as_str(), env["B"].as_str()), ("1", "2"));
    }

    #[test]
    fn what_is_not_set_is_skipped_with_a_warning() {
        let exported = of(&["ALL,MISSING"], None).unwrap();
        assert_eq!(exported.warnings, ["--export: MISSING is not set here, so the job does not get it"]);
        assert!(!exported.env.contains_key("MISSING"));
    }

    #[test]
    fn a_quoted_value_keeps_its_commas() {
        let env = of(&["ALL,A='1,2',B=it's,C=\"x\""], None).unwrap().env;
        assert_eq!((env["A"].as_str(), env["B"].as_str(), env["C"].as_str()), ("1,2", "it's", "x"));
    }

    #[test]
    fn a_file_of_entries_is_taken() {
        let env = of(&[], Some(b"A=1\0B=x=y\nz\0")).unwrap().env;
        assert_eq!((env["A"].as_str(), env["B"].as_str(), env["USER"].as_str()), ("1", "x=y\nz", "alice"));
        for wrong in [&b"A\0"[..], b"=x\0", b"\xff=1\0"] {
            assert!(of(&[], Some(wrong)).is_err());
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for list in ["1A=x", "=x", "a b", "A='x", "NONE,A=1", "ALL;rm"] {
            let fail = of(&[list], None).expect_err(list);
            assert_eq!(fail.exit_code(), 2);
        }
    }

    #[test]
    fn a_variable_that_is_not_utf8_is_named() {
        let person = Person { name: String::new(), home: String::new(), shell: String::new() };
        let caller = [("BAD".into(), OsString::from_vec(vec![0xff]))];
        let exported = export(&[], None, caller.into_iter(), &person).unwrap();
        assert_eq!(exported.warnings, ["BAD is not UTF-8, so the job does not get it"]);
    }
}
