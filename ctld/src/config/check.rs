//! From the file's text to a checked [`Config`], or to everything that is wrong with it.

use super::{
    Config, ConfigError, Database, PoolConfig, PoolKind, Problem, Ratios, SOCKET_PATH, without_password,
};
use crate::store::events::Keep;
use crate::store::servers;
use proto::duration;
use proto::memory::{self, Memory};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;
use toml::de::DeTable;

const STATE_DIR: &str = "/var/lib/better-compute/ctld";
/// Bytes of a unix socket's path, without the closing zero.
const SOCKET_PATH_MAX: usize = 107;
const NAME_MAX: usize = 64;
/// The longest grace between SIGTERM and SIGKILL: an hour covers a checkpoint of any size.
const KILL_GRACE_MAX_S: u64 = 3600;
const KILL_GRACE_S: u64 = 30;
const NODE_CERTIFICATE_DAYS: u32 = 30;
/// As long as a new authority is known to nodes before controllers show its certificates.
const NODE_CERTIFICATE_DAYS_MAX: u32 = 90;
const MEM_PER_CPU_MIB: u64 = 1024;
const EVENTS_KEEP_DAYS: u64 = 7;
const UNSERVED_KEEP_DAYS: u64 = 30;
/// Whoever follows events must have time to come back after a restart.
const KEEP_MIN_S: u64 = 3600;

/// The keys of the file and of a pool; the tests hold them against the structs that read them.
pub(super) const KEYS: [&str; 17] = [
    "cluster",
    "database",
    "dead_letters_keep",
    "embedded_user",
    "events_keep",
    "events_keep_unserved",
    "kill_grace_s",
    "listen",
    "listen_names",
    "log",
    "node_certificate_days",
    "operators",
    "pools",
    "socket",
    "state_dir",
    "webhooks_allow",
    "webhooks_ca",
];
pub(super) const POOL_KEYS: [&str; 9] = [
    "cpu_ratio",
    "default",
    "disk_ratio",
    "kind",
    "lost_after",
    "mem_per_cpu_default",
    "mem_ratio",
    "time_limit_default",
    "time_limit_max",
];

/// Checks the text of a file; a password in it is refused when everybody can read the file.
pub(super) fn parse(text: &str, path: &Path, world_readable: bool) -> Result<Config, ConfigError> {
    let mut problems = Problems { path, text, found: Vec::new() };
    problems.unknown_keys();
    // An unknown key would only be reported again, with less help.
    if problems.found.is_empty() {
        match read(text) {
            Ok(raw) => {
                let config = problems.check(raw, world_readable);
                if problems.found.is_empty() {
                    return Ok(config);
                }
            }
            Err(error) => problems.add(error.span().unwrap_or(0..0), error.message().to_owned()),
        }
    }
    problems.found.sort_by_key(|problem| problem.line);
    Err(ConfigError::Invalid { problems: problems.found })
}

pub(super) fn read(text: &str) -> Result<RawConfig, toml::de::Error> {
    toml::from_str(text)
}

/// The file as it is written; [`Problems::check`] turns it into a [`Config`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    database: Option<Spanned<String>>,
    state_dir: Option<Spanned<PathBuf>>,
    socket: Option<Spanned<PathBuf>>,
    listen: Option<Spanned<String>>,
    #[serde(default)]
    listen_names: Vec<Spanned<String>>,
    node_certificate_days: Option<Spanned<u32>>,
    cluster: Option<Spanned<String>>,
    log: Option<Spanned<String>>,
    #[serde(default)]
    operators: Vec<Spanned<String>>,
    pools: Option<Spanned<BTreeMap<String, Spanned<RawPool>>>>,
    kill_grace_s: Option<Spanned<u64>>,
    embedded_user: Option<Spanned<String>>,
    events_keep: Option<Spanned<String>>,
    events_keep_unserved: Option<Spanned<String>>,
    dead_letters_keep: Option<Spanned<String>>,
    #[serde(default)]
    webhooks_allow: Vec<Spanned<String>>,
    webhooks_ca: Option<Spanned<PathBuf>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPool {
    default: Option<bool>,
    time_limit_max: Option<Spanned<String>>,
    time_limit_default: Option<Spanned<String>>,
    mem_per_cpu_default: Option<Spanned<String>>,
    cpu_ratio: Option<Spanned<f64>>,
    mem_ratio: Option<Spanned<f64>>,
    disk_ratio: Option<Spanned<f64>>,
    kind: Option<Spanned<String>>,
    lost_after: Option<Spanned<String>>,
}

struct Problems<'a> {
    path: &'a Path,
    text: &'a str,
    found: Vec<Problem>,
}

impl Problems<'_> {
    fn add(&mut self, span: Range<usize>, message: String) {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        self.found.push(Problem { path: self.path.to_path_buf(), line, message });
    }

    fn unknown_keys(&mut self) {
        // What does not parse at all is reported by the reading proper.
        let Ok(table) = DeTable::parse(self.text) else { return };
        for (key, value) in table.get_ref() {
            if !KEYS.contains(&key.get_ref().as_ref()) {
                self.add(key.span(), unknown("key", key.get_ref(), &KEYS));
            }
            let pools = (key.get_ref() == "pools").then(|| value.get_ref().as_table()).flatten();
            for (name, pool) in pools.into_iter().flatten() {
                for (key, _) in pool.get_ref().as_table().into_iter().flatten() {
                    if !POOL_KEYS.contains(&key.get_ref().as_ref()) {
                        let what = format!("key in pool \"{}\"", name.get_ref());
                        self.add(key.span(), unknown(&what, key.get_ref(), &POOL_KEYS));
                    }
                }
            }
        }
    }

    fn check(&mut self, raw: RawConfig, world_readable: bool) -> Config {
        let database = self.database(raw.database, world_readable);
        if let (Database::Url(_), Some(user)) = (&database, &raw.embedded_user) {
            let text = "embedded_user has no meaning when `database` is a URL: remove it, or set database = \"embedded\"";
            self.add(user.span(), text.into());
        }
        Config {
            database,
            state_dir: self.absolute("state_dir", raw.state_dir, STATE_DIR, usize::MAX),
            socket: self.absolute("socket", raw.socket, SOCKET_PATH, SOCKET_PATH_MAX),
            listen_names: self.listen_names(raw.listen_names, raw.listen.is_some()),
            listen: self.listen(raw.listen),
            node_certificate_days: self.node_certificate_days(raw.node_certificate_days),
            cluster: self.cluster(raw.cluster),
            log: self.log(raw.log),
            operators: raw.operators.into_iter().map(|user| self.user("operators", user)).collect(),
            pools: self.pools(raw.pools),
            kill_grace_s: self.kill_grace_s(raw.kill_grace_s),
            embedded_user: raw.embedded_user.map(|user| self.user("embedded_user", user)),
            webhooks_allow: raw.webhooks_allow.into_iter().filter_map(|net| self.network(&net)).collect(),
            webhooks_ca: raw.webhooks_ca.map(|path| self.absolute("webhooks_ca", Some(path), "", usize::MAX)),
            keep: self.keep(raw.events_keep, raw.events_keep_unserved, raw.dead_letters_keep),
        }
    }

    fn database(&mut self, raw: Option<Spanned<String>>, world_readable: bool) -> Database {
        let Some(raw) = raw else { return Database::Embedded };
        let (span, value) = (raw.span(), raw.into_inner());
        if value == "embedded" {
            return Database::Embedded;
        }
        let scheme_fits = value.starts_with("postgres://") || value.starts_with("postgresql://");
        // The value is not repeated: it may hold a password.
        if !scheme_fits {
            self.add(
                span,
                "database must be \"embedded\" or a URL like \"postgres://user@host/name\"".into(),
            );
        } else if let Err(error) = servers::read(&value) {
            self.add(span, format!("database is no URL that PostgreSQL understands: {error}"));
        } else if world_readable && without_password(&value) != value {
            let text = format!(
                "database holds a password and everybody can read this file: `chmod o-r {}`",
                self.path.display()
            );
            self.add(span, text);
        }
        Database::Url(value)
    }

    fn absolute(
        &mut self,
        key: &str,
        raw: Option<Spanned<PathBuf>>,
        default: &str,
        longest: usize,
    ) -> PathBuf {
        let Some(raw) = raw else { return default.into() };
        let (span, path) = (raw.span(), raw.into_inner());
        let length = path.as_os_str().len();
        if !path.is_absolute() {
            self.add(span, format!("{key} must be an absolute path, not \"{}\"", path.display()));
        } else if length > longest {
            let text = format!(
                "{key} is {length} bytes long, the system allows {longest} for a unix socket: use a shorter path"
            );
            self.add(span, text);
        }
        path
    }

    fn listen(&mut self, raw: Option<Spanned<String>>) -> Option<SocketAddr> {
        let raw = raw?;
        match raw.get_ref().parse() {
            Ok(address) => Some(address),
            Err(_) => {
                let text = format!(
                    "listen \"{}\" is no address and port, such as \"0.0.0.0:7443\" or \"[::]:7443\"",
                    raw.get_ref().escape_default()
                );
                self.add(raw.span(), text);
                None
            }
        }
    }

    fn listen_names(&mut self, raw: Vec<Spanned<String>>, listening: bool) -> Vec<String> {
        for name in &raw {
            if rustls::pki_types::ServerName::try_from(name.get_ref().as_str()).is_err() {
                let text = format!(
                    "listen_names: \"{}\" is no host name and no address",
                    name.get_ref().escape_default()
                );
                self.add(name.span(), text);
            } else if !listening {
                let text = "listen_names has no meaning without `listen`: set that, or remove this";
                self.add(name.span(), text.into());
            }
        }
        raw.into_iter().map(Spanned::into_inner).collect()
    }

    fn node_certificate_days(&mut self, raw: Option<Spanned<u32>>) -> u32 {
        let Some(raw) = raw else { return NODE_CERTIFICATE_DAYS };
        if !(1..=NODE_CERTIFICATE_DAYS_MAX).contains(raw.get_ref()) {
            let text = format!(
                "node_certificate_days is {}: expected 1 to {NODE_CERTIFICATE_DAYS_MAX}",
                raw.get_ref()
            );
            self.add(raw.span(), text);
        }
        raw.into_inner()
    }

    fn cluster(&mut self, raw: Option<Spanned<String>>) -> String {
        let Some(raw) = raw else { return "better-compute".into() };
        self.name("cluster", raw.span(), raw.get_ref());
        raw.into_inner()
    }

    fn name(&mut self, what: &str, span: Range<usize>, name: &str) {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(fits) || name.starts_with(['-', '.'])
        {
            let text = format!(
                "{what} \"{}\" will not do: 1 to {NAME_MAX} of a to z, 0 to 9, `-`, `_` and `.`, the first a letter, a digit \
                 or `_`",
                name.escape_default()
            );
            self.add(span, text);
        }
    }

    fn log(&mut self, raw: Option<Spanned<String>>) -> String {
        let Some(raw) = raw else { return "info".into() };
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(raw.get_ref()) {
            let text = format!(
                "log \"{}\" is no log filter, such as \"info\" or \"info,ctld::store=debug\": {error}",
                raw.get_ref().escape_default()
            );
            self.add(raw.span(), text);
        }
        raw.into_inner()
    }

    /// Only the form is checked: an account that a directory service serves may not be there yet when ctld starts.
    fn user(&mut self, key: &str, raw: Spanned<String>) -> String {
        let name = raw.get_ref();
        let fits = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, ':' | ',' | '/' | '"');
        if name.is_empty() || !name.chars().all(fits) || name.starts_with('-') {
            self.add(raw.span(), format!("{key}: \"{}\" is no user name", name.escape_default()));
        }
        raw.into_inner()
    }

    fn kill_grace_s(&mut self, raw: Option<Spanned<u64>>) -> u64 {
        let Some(raw) = raw else { return KILL_GRACE_S };
        if *raw.get_ref() > KILL_GRACE_MAX_S {
            let text =
                format!("kill_grace_s is {}, at most {KILL_GRACE_MAX_S} seconds are allowed", raw.get_ref());
            self.add(raw.span(), text);
        }
        raw.into_inner()
    }

    fn network(&mut self, raw: &Spanned<String>) -> Option<ipnet::IpNet> {
        let text = raw.get_ref();
        let net = text.parse().ok();
        let net = net.or_else(|| text.parse::<std::net::IpAddr>().ok().map(ipnet::IpNet::from));
        if net.is_none() {
            let text = format!(
                "webhooks_allow: \"{}\" is no network: expected addresses such as \"10.0.0.0/8\" or \"127.0.0.1/32\"",
                text.escape_default()
            );
            self.add(raw.span(), text);
        }
        net
    }

    fn keep(
        &mut self,
        events: Option<Spanned<String>>,
        unserved: Option<Spanned<String>>,
        dead_letters: Option<Spanned<String>>,
    ) -> Keep {
        let span = unserved.as_ref().map(Spanned::span);
        let keep = Keep {
            events: self.kept("events_keep", events, EVENTS_KEEP_DAYS),
            unserved: self.kept("events_keep_unserved", unserved, UNSERVED_KEEP_DAYS),
            dead_letters: self.kept("dead_letters_keep", dead_letters, UNSERVED_KEEP_DAYS),
        };
        if let Some(span) = span
            && keep.unserved < keep.events
        {
            self.add(span, "events_keep_unserved is shorter than events_keep: nothing is kept for less long because a sink waits for it".into());
        }
        keep
    }

    fn kept(&mut self, key: &str, raw: Option<Spanned<String>>, default_days: u64) -> Duration {
        let seconds =
            raw.map(|raw| match duration::parse_limit(raw.get_ref()).map(|limit| limit.seconds()) {
                Ok(Some(seconds)) if seconds >= KEEP_MIN_S => seconds,
                Ok(_) => {
                    let text = format!(
                        "{key} is \"{}\": expected a time of an hour or more, such as \"7-00:00:00\"",
                        raw.get_ref()
                    );
                    self.add(raw.span(), text);
                    KEEP_MIN_S
                }
                Err(error) => {
                    self.add(raw.span(), format!("{key}: {error}"));
                    KEEP_MIN_S
                }
            });
        Duration::from_secs(seconds.unwrap_or(default_days * 86_400))
    }

    fn pools(
        &mut self,
        raw: Option<Spanned<BTreeMap<String, Spanned<RawPool>>>>,
    ) -> BTreeMap<String, PoolConfig> {
        let plain = PoolConfig {
            default: true,
            time_limit_max_s: None,
            time_limit_default_s: None,
            mem_per_cpu_default_mib: MEM_PER_CPU_MIB,
            ratios: Ratios::default(),
            kind: PoolKind::default(),
            lost_after_s: None,
        };
        let Some(raw) = raw else { return BTreeMap::from([("main".to_owned(), plain)]) };
        let (span, raw) = (raw.span(), raw.into_inner());
        if raw.is_empty() {
            self.add(span, "pools is empty: leave it out for one pool \"main\", or name one".into());
        }
        let only = raw.len() == 1;
        let mut default: Option<String> = None;
        let mut pools = BTreeMap::new();
        for (name, pool) in raw {
            let (span, pool) = (pool.span(), pool.into_inner());
            self.name("pool", span.clone(), &name);
            let pool = self.pool(&name, pool, only);
            if pool.default {
                match &default {
                    Some(other) => {
                        self.add(
                            span,
                            format!(
                                "pools \"{other}\" and \"{name}\" are both the default: one at most can be"
                            ),
                        );
                    }
                    None => default = Some(name.clone()),
                }
            }
            pools.insert(name, pool);
        }
        pools
    }

    fn pool(&mut self, name: &str, raw: RawPool, only: bool) -> PoolConfig {
        let default_span = raw.time_limit_default.as_ref().map(Spanned::span);
        let time_limit_max_s = self.limit(name, "time_limit_max", raw.time_limit_max);
        let named_default = raw.time_limit_default.is_some();
        let time_limit_default_s = match self.limit(name, "time_limit_default", raw.time_limit_default) {
            // A job that names no limit gets the longest allowed, unless the pool says otherwise.
            None if !named_default => time_limit_max_s,
            limit => limit,
        };
        if let (Some(span), Some(max)) = (default_span, time_limit_max_s)
            && time_limit_default_s.is_none_or(|default| default > max)
        {
            self.add(span, format!("pool \"{name}\": time_limit_default is longer than time_limit_max"));
        }
        let mem_per_cpu_default_mib =
            raw.mem_per_cpu_default.map_or(MEM_PER_CPU_MIB, |raw| self.memory(name, &raw));
        let ratios = Ratios {
            cpus: self.ratio(name, "cpu_ratio", raw.cpu_ratio),
            mem: self.ratio(name, "mem_ratio", raw.mem_ratio),
            disk: self.ratio(name, "disk_ratio", raw.disk_ratio),
        };
        let kind = raw.kind.map_or(PoolKind::default(), |raw| self.pool_kind(name, &raw));
        let lost_after_span = raw.lost_after.as_ref().map(Spanned::span);
        let lost_after_s = self.limit(name, "lost_after", raw.lost_after);
        if let (Some(span), PoolKind::BareMetal) = (lost_after_span, kind) {
            self.add(
                span,
                format!(
                    "pool \"{name}\": lost_after is for pools of kind \"provider\" or \"vps-host\": what runs on bare metal \
                     that is cut off may still be running"
                ),
            );
        }
        // The only pool is the default, unless it says that it is not.
        PoolConfig {
            default: raw.default.unwrap_or(only),
            time_limit_max_s,
            time_limit_default_s,
            mem_per_cpu_default_mib,
            ratios,
            kind,
            lost_after_s,
        }
    }

    fn pool_kind(&mut self, pool: &str, raw: &Spanned<String>) -> PoolKind {
        let given = raw.get_ref();
        PoolKind::ALL.into_iter().find(|kind| kind.name() == given).unwrap_or_else(|| {
            let names = PoolKind::ALL.map(|kind| format!("\"{}\"", kind.name())).join(", ");
            self.add(
                raw.span(),
                format!("pool \"{pool}\": kind {given:?} is not known: expected one of {names}"),
            );
            PoolKind::default()
        })
    }

    /// Hundredths.
    fn ratio(&mut self, pool: &str, key: &str, raw: Option<Spanned<f64>>) -> u32 {
        let Some(raw) = raw else { return 100 };
        let given = *raw.get_ref();
        if !(1.0..=100.0).contains(&given) {
            let text =
                format!("pool \"{pool}\": {key} is {given}: expected 1 (no more than there is) to 100");
            self.add(raw.span(), text);
            return 100;
        }
        (given * 100.0).round() as u32
    }

    fn limit(&mut self, pool: &str, key: &str, raw: Option<Spanned<String>>) -> Option<u64> {
        let raw = raw?;
        match duration::parse_limit(raw.get_ref()) {
            Ok(limit) => limit.seconds(),
            Err(error) => {
                self.add(raw.span(), format!("pool \"{pool}\": {key}: {error}"));
                None
            }
        }
    }

    fn memory(&mut self, pool: &str, raw: &Spanned<String>) -> u64 {
        match memory::parse(raw.get_ref()) {
            Ok(Memory::All) => {
                let text =
                    format!("pool \"{pool}\": mem_per_cpu_default is zero: give an amount such as \"1G\"");
                self.add(raw.span(), text);
                MEM_PER_CPU_MIB
            }
            Ok(Memory::Mib(mib)) => mib,
            Err(error) => {
                self.add(raw.span(), format!("pool \"{pool}\": mem_per_cpu_default: {error}"));
                MEM_PER_CPU_MIB
            }
        }
    }
}

fn unknown(what: &str, key: &str, known: &[&str]) -> String {
    let near = known
        .iter()
        .map(|known| (strsim::jaro_winkler(key, known), known))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let key = key.escape_default();
    match near {
        Some((_, near)) => format!("unknown {what} `{key}`: did you mean `{near}`?"),
        None => format!("unknown {what} `{key}`: the known ones are {}", known.join(", ")),
    }
}
