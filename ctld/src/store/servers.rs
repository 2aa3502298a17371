//! Several PostgreSQL servers of which one takes writes: finding it, and turning to another when that changes.
//!
//! The pool connects to the server that [`Servers::watch`] last found; a connection to a standby, or to a server that an older
//! promotion left behind, is never handed out, nor one made before the last change. sqlx knows only one host, so the URL's list
//! is taken apart here, as libpq reads it. While no server takes writes, whoever asks for a connection is told to try again.

use super::{ACQUIRE_TIMEOUT, CONNECTIONS_MAX, application};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::{Connection, PgPool};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How often the server in use is asked whether it still takes writes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between rounds while none does; it grows to the longest.
const SEARCH_MIN: Duration = Duration::from_millis(50);
const SEARCH_MAX: Duration = Duration::from_secs(1);
/// How long one server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The most servers of one URL.
const SERVERS_MAX: usize = 16;

/// The timeline of a server that takes writes: each promotion begins a new one. `NULL` of a standby.
const TIMELINE: &str =
    "SELECT CASE WHEN NOT pg_is_in_recovery() AND NOT current_setting('transaction_read_only')::bool
    THEN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END";

/// The servers of one database.
pub struct Servers {
    all: Vec<PgConnectOptions>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Which one is used.
    at: usize,
    /// Since when: connections made before are not handed out.
    since: Option<Instant>,
    /// The newest timeline seen: a server on an older one was left behind by a promotion.
    timeline: i32,
}

/// Reads a URL's servers: hosts and ports as libpq takes them, in the authority or in `host=` and `port=`, separated by commas.
pub fn read(url: &str) -> Result<Vec<PgConnectOptions>, String> {
    let (main, query) = url.split_once('?').unwrap_or((url, ""));
    let (scheme, rest) = main.split_once("://").ok_or("it has no scheme")?;
    let (authority, path) = rest.split_once('/').map_or((rest, String::new()), |(a, p)| (a, format!("/{p}")));
    let (login, hosts) = authority.rsplit_once('@').map_or(("", authority), |(login, hosts)| (login, hosts));
    let login = if login.is_empty() { String::new() } else { format!("{login}@") };
    let mut kept = Vec::new();
    let (mut query_hosts, mut query_ports, mut writable) = (Vec::new(), Vec::new(), false);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("host", value)) => query_hosts = value.split(',').collect(),
            Some(("port", value)) => query_ports = value.split(',').collect(),
            Some(("target_session_attrs", "read-write" | "primary")) => writable = true,
            Some(("target_session_attrs", other)) => {
                return Err(format!("target_session_attrs={other} is not accepted: expected read-write"));
            }
            _ => kept.push(pair),
        }
    }
    let hosts: Vec<&str> =
        if query_hosts.is_empty() { hosts.split(',').collect() } else { query_hosts.clone() };
    if hosts.len() > SERVERS_MAX {
        return Err(format!("{} servers, at most {SERVERS_MAX} accepted", hosts.len()));
    }
    if hosts.len() > 1 && hosts.iter().any(|host| host.is_empty()) {
        return Err("one of its servers has no name".into());
    }
    if hosts.len() > 1 && !writable {
        return Err("it names several servers: add target_session_attrs=read-write".into());
    }
    if query_ports.len() > 1 && query_ports.len() != hosts.len() {
        return Err(format!("{} ports for {} servers", query_ports.len(), hosts.len()));
    }
    let one = |(index, host): (usize, &&str)| {
        let mut pairs: Vec<String> = kept.iter().map(|pair| (*pair).to_owned()).collect();
        let authority = match query_hosts.is_empty() {
            true => format!("{login}{host}"),
            false => {
                pairs.push(format!("host={host}"));
                login.clone()
            }
        };
        if let Some(port) = query_ports.get(index).or(query_ports.first()) {
            pairs.push(format!("port={port}"));
        }
        let url = format!("{scheme}://{authority}{path}?{}", pairs.join("&"));
        PgConnectOptions::from_str(&url).map_err(|error| error.to_string())
    };
    hosts.iter().enumerate().map(one).collect()
}

impl Servers {
    /// A pool of connections to whichever of these takes writes. [`Servers::watch`] has to run beside it.
    pub fn pool(all: Vec<PgConnectOptions>) -> (PgPool, Arc<Servers>) {
        let all: Vec<PgConnectOptions> = all.into_iter().map(application).collect();
        let first = all[0].clone();
        let servers = Arc::new(Servers { all, state: Mutex::default() });
        let (new, old) = (servers.clone(), servers.clone());
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .min_connections(2)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .test_before_acquire(false)
            .after_connect(move |connection, _| {
                let servers = new.clone();
                Box::pin(async move {
                    match timeline(connection).await? {
                        Some(timeline) if servers.accept(timeline) => Ok(()),
                        _ => Err(sqlx::Error::Protocol("this server takes no writes now".into())),
                    }
                })
            })
            .before_acquire(move |_, about| {
                let stale = old.state().since.is_some_and(|since| about.age >= since.elapsed());
                Box::pin(async move { Ok(!stale) })
            })
            .connect_lazy_with(first);
        (pool, servers)
    }

    /// Keeps the pool at the server that takes writes, until the controller stops.
    pub async fn watch(&self, pool: &PgPool, stopping: &CancellationToken) {
        let watching = async {
            let mut own: Option<PgConnection> = None;
            let mut search = SEARCH_MIN;
            loop {
                if let Some(connection) = &mut own
                    && let Ok(Ok(Some(_))) = tokio::time::timeout(ANSWER_WITHIN, timeline(connection)).await
                {
                    tokio::time::sleep(jittered(LOOK_EVERY)).await;
                    continue;
                }
                own = self.find(pool).await;
                if own.is_some() {
                    search = SEARCH_MIN;
                    continue;
                }
                tokio::time::sleep(jittered(search)).await;
                search = (search * 2).min(SEARCH_MAX);
            }
        };
        stopping.run_until_cancelled(watching).await;
    }

    /// Asks every server at once, and turns to the one that takes writes: of several, to the one that was promoted last.
    async fn find(&self, pool: &PgPool) -> Option<PgConnection> {
        let asked = self.all.iter().enumerate().map(|(at, options)| async move {
            let answer = async {
                let mut connection = PgConnection::connect_with(options).await.ok()?;
                let timeline = timeline(&mut connection).await.ok()??;
                Some((timeline, at, connection))
            };
            tokio::time::timeout(ANSWER_WITHIN, answer).await.ok()?
        });
        let answers = futures_util::future::join_all(asked).await;
        // Of the same timeline the one that the URL names first.
        let best = answers.into_iter().flatten().max_by_key(|(timeline, at, _)| (*timeline, usize::MAX - at));
        let (timeline, at, connection) = best?;
        if !self.accept(timeline) {
            tracing::warn!(server = %shown(&self.all[at]), "it takes writes, but an older promotion left it behind: it is not used");
            return None;
        }
        let mut state = self.state();
        if state.at != at || state.since.is_none() {
            tracing::info!(server = %shown(&self.all[at]), timeline, "this PostgreSQL server takes writes, and is used");
        }
        // Whatever is open may be to the one that failed, or half open.
        (state.at, state.since) = (at, Some(Instant::now()));
        pool.set_connect_options(self.all[at].clone());
        Some(connection)
    }

    /// Whether a server on this timeline may be used: one that takes writes and is not behind the newest seen.
    fn accept(&self, timeline: i32) -> bool {
        let mut state = self.state();
        state.timeline = state.timeline.max(timeline);
        timeline == state.timeline
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn timeline(connection: &mut PgConnection) -> Result<Option<i32>, sqlx::Error> {
    sqlx::query_scalar(TIMELINE).fetch_one(connection).await
}

fn shown(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => format!("{} port {}", socket.display(), options.get_port()),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

/// Several controllers do not ask in step.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(url: &str) -> Vec<String> {
        read(url).unwrap().iter().map(shown).collect()
    }

    #[test]
    fn a_url_names_servers_as_libpq_reads_it() {
        assert_eq!(servers("postgres://u@a/db"), ["a:5432"]);
        let two = "postgres://u:p@a:1,b:2/db?target_session_attrs=read-write";
        assert_eq!(servers(two), ["a:1", "b:2"]);
        for options in read(two).unwrap() {
            assert_eq!((options.get_username(), options.get_database()), ("u", Some("db")));
        }
        let sockets = "postgres:///db?host=/a,/b&user=u&target_session_attrs=primary";
        assert_eq!(servers(sockets), ["/a port 5432", "/b port 5432"]);
        assert_eq!(servers(&format!("{sockets}&port=1,2")), ["/a port 1", "/b port 2"]);
        assert_eq!(servers(&format!("{sockets}&port=7")), ["/a port 7", "/b port 7"]);
    }

    #[test]
    fn a_url_that_could_lead_to_a_standby_or_to_nobody_is_refused() {
        for (url, said) in [
            ("postgres://a,b/db", "add target_session_attrs=read-write"),
            ("postgres://a,b/db?target_session_attrs=any", "target_session_attrs=any is not accepted"),
            ("postgres://a,,b/db?target_session_attrs=read-write", "has no name"),
            ("postgres:///db?host=/a,/b&port=1,2,3&target_session_attrs=read-write", "3 ports for 2 servers"),
            ("postgres://a:x/db", "port"),
        ] {
            let error = read(url).unwrap_err();
            assert!(error.contains(said), "{url}: {error}");
        }
        let many = format!("postgres://{}/db?target_session_attrs=read-write", ["h"; 17].join(","));
        assert!(read(&many).unwrap_err().contains("at most 16"));
    }

    #[test]
    fn a_server_that_a_promotion_left_behind_is_not_taken_again() {
        let servers = Servers { all: vec![], state: Mutex::default() };
        assert!(servers.accept(1) && servers.accept(1) && servers.accept(2));
        assert!(!servers.accept(1) && servers.accept(2));
    }
}
