//! Completions and the option sections of the man pages, from the flag definitions.
//!
//! A page is a template written by hand (`man/NAME.N.in`) with the line `@OPTIONS@`, which is replaced by the options here; so
//! a page cannot lack an option, nor name one that is gone. `@INCLUDE files@` is replaced by `man/common/files.in`, prose that
//! pages share. Used when the project is built and by `bctl completions`.

use crate::bctl::args::Shell;
use clap::{Arg, ArgAction, Command};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The line of a template that the options replace.
pub const MARK: &str = "@OPTIONS@";
/// How a line begins that the text of a file in `common` replaces; its name and `@` follow.
const INCLUDE: &str = "@INCLUDE ";
/// A comment, for the templates' authors only.
const COMMENT: &str = r#".\""#;

/// Appends a command's completion script for a shell.
pub fn complete(shell: Shell, command: &mut Command, script: &mut Vec<u8>) {
    let name = command.get_name().to_owned();
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    clap_complete::generate(shell, command, name, script);
}

/// The section of one command's man page: every option with its help, by heading; for `bctl` those of every subcommand.
pub fn options(command: &Command) -> String {
    let mut text = String::new();
    section(&mut text, command);
    let subcommands: Vec<(String, &Command)> = walk(command, "");
    for (path, sub) in subcommands {
        let _ = writeln!(text, ".SS {}", escape(&format!("{path}{}", usage(sub))));
        if let Some(about) = sub.get_long_about().or(sub.get_about()) {
            let _ = writeln!(text, "{}", sentence(&about.to_string()));
        }
        section(&mut text, sub);
    }
    text
}

/// The subcommands that do something, each with its path.
fn walk<'a>(command: &'a Command, path: &str) -> Vec<(String, &'a Command)> {
    let mut found = Vec::new();
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help" && !sub.is_hide_set()) {
        let path = format!("{path}{}", sub.get_name());
        if sub.has_subcommands() {
            found.extend(walk(sub, &format!("{path} ")));
        } else {
            found.push((path, sub));
        }
    }
    found
}

/// The positional arguments, as in a synopsis.
fn usage(command: &Command) -> String {
    let mut text = String::new();
    for arg in command.get_positionals() {
        let name = arg.get_value_names().and_then(|names| names.first()).map_or("ARG", |name| name.as_str());
        let more = if matches!(arg.get_action(), ArgAction::Append) { "..." } else { "" };
        let _ = write!(text, " {name}{more}");
    }
    text
}

fn section(text: &mut String, command: &Command) {
    let mut heading: Option<&str> = None;
    let mut args: Vec<&Arg> = command.get_arguments().filter(|arg| !arg.is_hide_set()).collect();
    // Stable: within a heading the order is that of the definition.
    let headings: Vec<Option<&str>> = args.iter().fold(Vec::new(), |mut all, arg| {
        if !all.contains(&arg.get_help_heading()) {
            all.push(arg.get_help_heading());
        }
        all
    });
    args.sort_by_key(|arg| headings.iter().position(|h| *h == arg.get_help_heading()));
    for arg in args {
        if arg.is_positional() && command.get_name() != "bctl" && arg.get_help().is_none() {
            continue;
        }
        if arg.get_help_heading() != heading {
            heading = arg.get_help_heading();
            if let Some(heading) = heading {
                let _ = writeln!(text, ".SS {}", escape(heading));
            }
        }
        let _ = writeln!(text, ".TP\n{}", name(arg));
        if let Some(help) = arg.get_long_help().or(arg.get_help()) {
            let _ = writeln!(text, "{}", sentence(&help.to_string()));
        }
        for value in arg.get_possible_values().iter().filter(|_| arg.get_action().takes_values()) {
            if let Some(help) = value.get_help() {
                let _ = writeln!(text, ".br\n{}: {}", escape(value.get_name()), sentence(&help.to_string()));
            }
        }
    }
}

/// `\fB\-t\fR, \fB\-\-time\fR=\fITIME\fR`
fn name(arg: &Arg) -> String {
    let values: Vec<&str> =
        arg.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect();
    let value = values.join(" ");
    if arg.is_positional() {
        let more = if matches!(arg.get_action(), ArgAction::Append) { "..." } else { "" };
        return format!("\\fI{}\\fR{more}", escape(&value));
    }
    let mut spellings = Vec::new();
    spellings.extend(arg.get_short().map(|short| format!("\\fB\\-{short}\\fR")));
    let longs = arg.get_long().into_iter().chain(arg.get_visible_aliases().unwrap_or_default());
    spellings.extend(longs.map(|long| format!("\\fB\\-\\-{}\\fR", escape(long))));
    let mut text = spellings.join(", ");
    if arg.get_action().takes_values() {
        let optional = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
        let value = format!("=\\fI{}\\fR", escape(&value));
        text.push_str(&if optional { format!("[{value}]") } else { value });
    }
    text
}

/// Help texts have no full stop; a page's paragraphs do.
fn sentence(help: &str) -> String {
    let mut text = escape(help.trim());
    if !text.ends_with(['.', '!', '?', ':']) {
        text.push('.');
    }
    text
}

/// Text as roff takes it: no line may begin as a request, hyphens stay hyphens, and what is not ASCII is named by its number.
fn escape(text: &str) -> String {
    let mut ascii = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' => ascii.push_str("\\e"),
            '-' => ascii.push_str("\\-"),
            letter if letter.is_ascii() => ascii.push(letter),
            letter => ascii.push_str(&format!("\\[u{:04X}]", u32::from(letter))),
        }
    }
    let text = ascii;
    let lines = text.lines().map(|line| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A template with its options filled in.
pub fn fill(template: &str, command: Option<&Command>) -> Result<String, String> {
    let marked = template.lines().any(|line| line == MARK);
    match (marked, command) {
        (false, Some(command)) => Err(format!("the page of {} has no line {MARK}", command.get_name())),
        (true, None) => Err(format!("there is {MARK} in a page of no command")),
        (false, None) => Ok(template.to_owned()),
        (true, Some(command)) => {
            let options = options(command);
            let lines = template.lines().map(|line| if line == MARK { options.trim_end() } else { line });
            Ok(lines.map(|line| format!("{line}\n")).collect())
        }
    }
}

/// A template with the shared prose that it names put in, without its comments.
fn include(template: &str, common: &Path) -> Result<String, String> {
    let mut text = String::new();
    for line in template.lines().filter(|line| !line.starts_with(COMMENT)) {
        match line.strip_prefix(INCLUDE).and_then(|rest| rest.strip_suffix('@')) {
            None => text.push_str(&format!("{line}\n")),
            Some(name) => {
                let path = common.join(format!("{name}.in"));
                let prose = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
                text.extend(
                    prose.lines().filter(|line| !line.starts_with(COMMENT)).map(|line| format!("{line}\n")),
                );
            }
        }
    }
    Ok(text)
}

/// Writes every completion script and every page: `templates` holds `*.in`. Gives the files that were written.
pub fn generate(templates: &Path, out: &Path) -> Result<Vec<PathBuf>, String> {
    let mut written = Vec::new();
    let mut write = |path: PathBuf, text: &[u8]| {
        let dir = path.parent().unwrap_or(out);
        std::fs::create_dir_all(dir)
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|e| format!("{}: {e}", path.display()))?;
        written.push(path);
        Ok::<(), String>(())
    };
    for mut command in crate::commands() {
        let name = command.get_name().to_owned();
        for (shell, file) in [
            (Shell::Bash, name.clone()),
            (Shell::Zsh, format!("_{name}")),
            (Shell::Fish, format!("{name}.fish")),
        ] {
            let mut script = Vec::new();
            complete(shell, &mut command, &mut script);
            let dir = format!("{shell:?}").to_lowercase();
            write(out.join("completions").join(dir).join(file), &script)?;
        }
    }
    let commands = crate::commands();
    let entries = std::fs::read_dir(templates).map_err(|e| format!("{}: {e}", templates.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|e| e.path())).collect();
    paths.sort();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|ext| ext == "in")) {
        let template = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let page = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let command =
            page.rsplit_once('.').and_then(|(name, _)| commands.iter().find(|c| c.get_name() == name));
        let text = include(&template, &templates.join("common"))
            .and_then(|template| fill(&template, command))
            .map_err(|e| format!("{}: {e}", path.display()))?;
        write(out.join("man").join(page), text.as_bytes())?;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each_arg(command: &Command, see: &mut impl FnMut(&Command, &Arg)) {
        command.get_arguments().for_each(|arg| see(command, arg));
        command.get_subcommands().for_each(|sub| each_arg(sub, see));
    }

    #[test]
    fn every_option_of_every_command_has_a_help_text() {
        for command in crate::commands() {
            command.clone().debug_assert();
            each_arg(&command, &mut |command, arg| {
                assert!(arg.get_help().is_some(), "{} {}", command.get_name(), arg.get_id());
            });
        }
    }

    #[test]
    fn a_page_names_every_option() {
        for command in crate::commands() {
            let page = fill(&format!(".TH X 1\n{MARK}\n.SH SEE ALSO\n"), Some(&command)).unwrap();
            each_arg(&command, &mut |_, arg| {
                let long = arg.get_long().map(|long| format!("\\fB\\-\\-{}\\fR", long.replace('-', "\\-")));
                assert!(
                    long.is_none_or(|long| page.contains(&long)),
                    "{}: {}",
                    command.get_name(),
                    arg.get_id()
                );
            });
            assert!(page.ends_with(".SH SEE ALSO\n"));
        }
        assert!(fill("no mark\n", crate::commands().first()).is_err());
        assert!(fill(&format!("{MARK}\n"), None).is_err());
    }

    #[test]
    fn an_option_is_set_as_man_pages_set_it() {
        let arg = Arg::new("t")
            .short('t')
            .long("time-limit")
            .value_name("TIME")
            .help("a.b\n.c…d")
            .action(ArgAction::Set);
        assert_eq!(
            options(&Command::new("x").disable_help_flag(true).arg(arg)),
            ".TP\n\\fB\\-t\\fR, \\fB\\-\\-time\\-limit\\fR=\\fITIME\\fR\na.b\n\\&.c\\[u2026]d.\n"
        );
    }

    #[test]
    fn completions_are_made_for_every_command_and_shell() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            for mut command in crate::commands() {
                let mut script = Vec::new();
                complete(shell, &mut command, &mut script);
                let script = String::from_utf8(script).unwrap();
                assert!(script.contains(command.get_name()) && script.contains("json"), "{shell:?}");
            }
        }
    }

    #[test]
    fn pages_and_completions_are_written_where_they_are_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let (man, out) = (dir.path().join("in"), dir.path().join("out"));
        std::fs::create_dir(&man).unwrap();
        std::fs::write(man.join("bq.1.in"), format!("{MARK}\n")).unwrap();
        std::fs::create_dir(man.join("common")).unwrap();
        std::fs::write(man.join("common/shared.in"), ".\\\" for authors\nshared\n").unwrap();
        std::fs::write(man.join("ctld.8.in"), ".\\\" for authors\ntext\n@INCLUDE shared@\n").unwrap();
        let written = generate(&man, &out).unwrap();
        assert_eq!(written.len(), 5 * 3 + 2);
        assert_eq!(std::fs::read_to_string(out.join("man/ctld.8")).unwrap(), "text\nshared\n");
        assert!(std::fs::read_to_string(out.join("man/bq.1")).unwrap().contains("\\-\\-states"));
        std::fs::write(man.join("ctld.8.in"), "@INCLUDE nonesuch@\n").unwrap();
        assert!(generate(&man, &out).unwrap_err().contains("common/nonesuch.in"));
    }
}
