//! Where the controllers are: `BC_SERVER`, else the user's `client.toml`, else the machine's, else the default socket.
//!
//! There may be several over one database, each as good as the other: the variable separates them by commas, a file gives a list.
//! A file that is there but cannot be read or understood is an error that names it; it is never skipped, since the command
//! would then speak to another cluster. Only regular files are opened, so that a FIFO cannot hang a command.

use crate::fail::Fail;
use crate::text::os_error;
use serde::Deserialize;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The socket of a controller that was installed as a service.
pub const SOCKET_DEFAULT: &str = "/run/better-compute/ctld.sock";
/// The machine's configuration of the commands.
pub const CONFIG_MACHINE: &str = "/etc/better-compute/client.toml";
/// The environment variable that names the controller.
pub const VARIABLE: &str = "BC_SERVER";

const CONFIG_BYTES_MAX: u64 = 64 << 10;

/// The most addresses: each is tried, and a command must not take for ever to say that none answers.
const SERVERS_MAX: usize = 16;

/// The addresses of the controllers of one cluster, in the order in which they are tried, and where they were found (for messages).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers {
    /// Their unix sockets, one at least.
    pub sockets: Vec<PathBuf>,
    /// `BC_SERVER`, a file's name, or `the default`.
    pub source: String,
}

impl Servers {
    /// A cluster with one controller.
    pub fn one(socket: PathBuf, source: &str) -> Servers {
        Servers { sockets: vec![socket], source: source.to_owned() }
    }
}

impl std::fmt::Display for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sockets: Vec<String> = self.sockets.iter().map(|socket| socket.display().to_string()).collect();
        write!(f, "{} (from {})", sockets.join(", "), self.source)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    server: Option<OneOrMore>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an address, or a list of addresses")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// Finds the controllers' addresses.
pub fn find() -> Result<Servers, Fail> {
    let variable = std::env::var_os(VARIABLE).filter(|v| !v.is_empty());
    if let Some(text) = variable {
        let text = text.into_string().map_err(|t| Fail::usage(format!("{VARIABLE} {t:?} is not UTF-8")))?;
        return read(text.split(',').map(str::trim), VARIABLE);
    }
    let personal = config_home().map(|home| home.join("better-compute/client.toml"));
    find_in(personal.as_deref().into_iter().chain([Path::new(CONFIG_MACHINE)]))
}

fn config_home() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))
}

fn find_in<'a>(files: impl Iterator<Item = &'a Path>) -> Result<Servers, Fail> {
    for file in files {
        let Some(text) =
            read_file(file).map_err(|e| Fail::usage(format!("cannot read {}: {e}", file.display())))?
        else {
            continue;
        };
        let config: Config = toml::from_str(&text).map_err(|error| {
            let message = error.message().replace('\n', " ");
            let line =
                error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            Fail::usage(format!("{}: line {line}: {message}", file.display())).hint(
                "the one key there is: server = \"unix:///run/better-compute/ctld.sock\", or a list of such",
            )
        })?;
        if let Some(server) = config.server {
            let texts = match server {
                OneOrMore::One(text) => vec![text],
                OneOrMore::More(texts) => texts,
            };
            return read(texts.iter().map(String::as_str), &file.display().to_string());
        }
    }
    Ok(Servers::one(SOCKET_DEFAULT.into(), "the default"))
}

/// The file's text, `None` where there is no such file.
fn read_file(path: &Path) -> Result<Option<String>, String> {
    let open = std::fs::File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let file = match open {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        other => other.map_err(|e| os_error(&e))?,
    };
    if !file.metadata().map_err(|e| os_error(&e))?.is_file() {
        return Err("not a regular file".to_owned());
    }
    let mut text = String::new();
    let size = file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| os_error(&e))?;
    if size as u64 > CONFIG_BYTES_MAX {
        return Err(format!("larger than {CONFIG_BYTES_MAX} bytes"));
    }
    Ok(Some(text))
}

/// Reads a cluster's addresses. Nothing is passed over: an address that cannot be read is an error though others could.
fn read<'a>(texts: impl Iterator<Item = &'a str>, source: &str) -> Result<Servers, Fail> {
    let sockets: Vec<PathBuf> = texts.map(|text| socket(text, source)).collect::<Result<_, _>>()?;
    match sockets.len() {
        1..=SERVERS_MAX => Ok(Servers { sockets, source: source.to_owned() }),
        0 => Err(Fail::usage(format!("{source}: the list of controllers is empty"))
            .hint(format!("name one at least, such as unix://{SOCKET_DEFAULT}"))),
        count => Err(Fail::usage(format!(
            "{source}: {count} controllers are too many: at most {SERVERS_MAX} accepted"
        ))),
    }
}

/// Reads `unix:///path`, `unix:/path` or `/path`.
fn socket(text: &str, source: &str) -> Result<PathBuf, Fail> {
    let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
    if let Some(scheme) = ["https", "http", "tcp"].iter().find(|s| text.starts_with(&format!("{s}://"))) {
        return Err(Fail::usage(format!("{source}: {text:?}: {scheme}:// is not supported yet"))
            .hint(format!("name the controller's socket, such as unix://{SOCKET_DEFAULT}")));
    }
    if !path.starts_with('/') || path.contains('\0') {
        return Err(Fail::usage(format!(
            "{source}: {text:?} names no controller: expected unix:///PATH or /PATH"
        ))
        .hint(format!("such as unix://{SOCKET_DEFAULT}")));
    }
    Ok(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_named_by_path_or_url() {
        for text in ["/run/x.sock", "unix:///run/x.sock", "unix:/run/x.sock"] {
            assert_eq!(socket(text, "BC_SERVER").unwrap(), Path::new("/run/x.sock"), "{text}");
        }
        for text in ["https://host", "http://h:1", "x.sock", "unix://x", ""] {
            let fail = socket(text, "BC_SERVER").unwrap_err();
            assert_eq!(fail.exit_code(), 2);
            assert!(fail.error.message.contains(&format!("{text:?}")), "{fail}");
        }
    }

    #[test]
    fn several_controllers_keep_their_order_and_none_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("client.toml");
        let find = |text: &str| {
            std::fs::write(&file, text).unwrap();
            find_in([file.as_path()].into_iter())
        };
        let both = [Path::new("/a.sock"), Path::new("/b,c.sock")];
        assert_eq!(find("server = [\"unix:///a.sock\", \"/b,c.sock\"]").unwrap().sockets, both);
        for (text, said) in [
            ("server = []", "the list of controllers is empty"),
            ("server = [\"/a\", \"b\"]", "\"b\" names no controller"),
            ("server = [3]", "expected an address, or a list of addresses"),
        ] {
            let fail = find(text).unwrap_err();
            assert!(fail.exit_code() == 2 && fail.error.message.contains(said), "{text}: {fail}");
        }
        let many = format!("server = [{}]", "\"/a\",".repeat(SERVERS_MAX + 1));
        assert!(find(&many).unwrap_err().error.message.contains("at most 16"));
        assert!(read("/a, /b,".split(',').map(str::trim), VARIABLE).is_err(), "an empty address");
        let shown = read("/a, unix:///b".split(',').map(str::trim), VARIABLE).unwrap().to_string();
        assert_eq!(shown, "/a, /b (from BC_SERVER)");
    }

    #[test]
    fn the_first_file_that_names_a_server_wins_and_a_broken_one_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (missing, empty) = (dir.path().join("none"), file("empty", ""));
        let (good, other) = (file("good", "server = \"/a.sock\"\n"), file("other", "server = \"/b.sock\"\n"));
        let find = |files: &[&PathBuf]| find_in(files.iter().map(|p| p.as_path()));
        assert_eq!(find(&[&missing, &empty, &good, &other]).unwrap().sockets, [Path::new("/a.sock")]);
        assert_eq!(find(&[&missing]).unwrap().sockets, [Path::new(SOCKET_DEFAULT)]);

        for broken in [
            file("key", "\nservr = \"/a\"\n"),
            file("syntax", "\nserver = \n"),
            file("type", "\nserver = 3\n"),
        ] {
            let fail = find(&[&broken, &good]).unwrap_err();
            assert!(fail.error.message.starts_with(&format!("{}: line 2", broken.display())), "{fail}");
        }
        let bytes = dir.path().join("bytes");
        std::fs::write(&bytes, b"\xff\xfe").unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [&bytes, &fifo, &dir.path().to_owned()] {
            let fail = find(&[path]).unwrap_err();
            assert!(fail.error.message.contains(&path.display().to_string()), "{fail}");
        }
    }
}
