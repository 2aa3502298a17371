//! What the file may say, and how each mistake is reported.

use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    check::parse(text, Path::new("ctld.toml"), false)
}

fn problems(text: &str) -> Vec<String> {
    match parse(text) {
        Ok(config) => panic!("accepted as {config:?}"),
        Err(error) => error.to_string().lines().map(str::to_owned).collect(),
    }
}

#[test]
fn an_empty_file_is_one_pool_on_an_embedded_database() {
    let config = Config::default();
    assert_eq!(config.database, Database::Embedded);
    assert_eq!(config.socket, Path::new(SOCKET_PATH));
    assert_eq!(config.kill_grace_s, 30);
    let pool = &config.pools["main"];
    assert!(pool.default && pool.time_limit_max_s.is_none() && pool.mem_per_cpu_default_mib == 1024);
    let embedded = config.embedded_settings().unwrap();
    assert_eq!(embedded.dir, Path::new("/var/lib/better-compute/ctld/postgres"));
}

#[test]
fn every_key_is_read() {
    let text = r#"
        database = "embedded"
        state_dir = "/srv/bc"
        socket = "/srv/bc/ctld.sock"
        listen = "[::]:7443"
        listen_names = ["ctld.example.org", "10.0.0.1"]
        node_certificate_days = 90
        cluster = "lab-1"
        log = "info,ctld::store=debug"
        operators = ["ada", "o.grace"]
        kill_grace_s = 5
        embedded_user = "bcdb"
        events_keep = "2-00:00:00"
        events_keep_unserved = "3-00:00:00"
        dead_letters_keep = "12:00:00"
        webhooks_allow = ["10.0.0.0/8", "::1"]
        webhooks_ca = "/etc/ssl/own.pem"
        [pools.gpu]
        default = true
        time_limit_max = "2-00:00:00"
        time_limit_default = "1:00:00"
        mem_per_cpu_default = "4G"
        cpu_ratio = 1.5
        disk_ratio = 2
        kind = "provider"
        lost_after = "30:00"
        [pools.long]
    "#;
    let config = parse(text).unwrap();
    assert_eq!((config.cluster.as_str(), config.kill_grace_s), ("lab-1", 5));
    assert_eq!(config.operators, ["ada", "o.grace"]);
    assert_eq!(config.listen, Some("[::]:7443".parse().unwrap()));
    assert_eq!(config.listen_names, ["ctld.example.org", "10.0.0.1"]);
    assert_eq!(config.node_certificate_days, 90);
    assert_eq!(config.webhooks_allow, ["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()]);
    assert_eq!(config.webhooks_ca.as_deref(), Some(Path::new("/etc/ssl/own.pem")));
    let hours = |keep: std::time::Duration| keep.as_secs() / 3600;
    assert_eq!(
        (hours(config.keep.events), hours(config.keep.unserved), hours(config.keep.dead_letters)),
        (48, 72, 12)
    );
    assert_eq!(config.embedded_settings().unwrap().user.as_deref(), Some("bcdb"));
    let gpu = PoolConfig {
        default: true,
        time_limit_max_s: Some(172_800),
        time_limit_default_s: Some(3600),
        mem_per_cpu_default_mib: 4096,
        ratios: Ratios { cpus: 150, mem: 100, disk: 200 },
        kind: PoolKind::Provider,
        lost_after_s: Some(1800),
    };
    assert_eq!(config.pools["gpu"], gpu);
    assert!(!config.pools["long"].default);
}

#[test]
fn the_sample_file_means_what_an_empty_one_does() {
    let sample = include_str!("../../../contrib/ctld.toml");
    assert_eq!(parse(sample).unwrap(), Config::default());
    // Its commented keys are real ones: uncommented, they are accepted too.
    let uncommented: String = sample
        .lines()
        .map(|line| line.strip_prefix("#").filter(|rest| !rest.starts_with([' ', '#'])).unwrap_or(line))
        .fold(String::new(), |text, line| text + line + "\n");
    let config = parse(&uncommented).unwrap();
    assert_ne!(config, Config::default());
    for key in check::KEYS {
        assert!(
            uncommented.lines().any(|line| line.starts_with(key) || line.starts_with(&format!("[{key}."))),
            "{key}"
        );
    }
}

#[test]
fn an_unknown_key_names_its_line_and_the_nearest_known_one() {
    assert_eq!(
        problems("\ndatbase = \"embedded\"\n"),
        ["ctld.toml:2: unknown key `datbase`: did you mean `database`?"]
    );
    assert_eq!(
        problems("[pools.main]\ndefault = true\ntime_limt_max = \"1:00:00\"\n"),
        ["ctld.toml:3: unknown key in pool \"main\" `time_limt_max`: did you mean `time_limit_max`?"]
    );
    let far = problems("zzz = 1\n");
    assert!(far[0].contains("the known ones are cluster, database"), "{far:?}");
}

#[test]
fn the_known_keys_are_the_ones_that_are_read() {
    // The reader refuses what it does not know, and this refusal names what it does.
    for (keys, text) in
        [(&check::KEYS[..], "nonsense = 1"), (&check::POOL_KEYS[..], "[pools.a]\nnonsense = 1")]
    {
        let error = check::read(text).err().unwrap().message().to_owned();
        for key in keys {
            assert!(error.contains(&format!("`{key}`")), "{key}: {error}");
        }
        assert_eq!(error.matches('`').count() / 2, keys.len() + 1, "{error}");
    }
}

#[test]
fn all_problems_are_reported_at_once_in_the_files_order() {
    let found =
        problems("kill_grace_s = 4000\nsocket = \"ctld.sock\"\ncluster = \"My Lab\"\nlog = \"a=b=c\"\n");
    assert_eq!(found.len(), 4, "{found:?}");
    for (line, words) in [(1, "at most 3600"), (2, "absolute path"), (3, "\"My Lab\""), (4, "log filter")] {
        let text = &found[line - 1];
        assert!(text.starts_with(&format!("ctld.toml:{line}: ")) && text.contains(words), "{text}");
    }
}

#[test]
fn values_that_will_not_do_are_refused_with_the_reason() {
    for (text, words) in [
        ("database = \"mysql://x\"", "database must be \"embedded\" or a URL"),
        ("database = \"postgres://[::1\"", "no URL that PostgreSQL understands"),
        ("database = \"postgres://h/d\"\nembedded_user = \"x\"", "no meaning when `database` is a URL"),
        ("operators = [\"a b\"]", "\"a b\" is no user name"),
        ("kill_grace_s = \"soon\"", "invalid type"),
        ("webhooks_allow = [\"10.0.0.0/40\"]", "is no network"),
        ("webhooks_ca = \"own.pem\"", "absolute path"),
        ("events_keep = \"1\"", "an hour or more"),
        ("events_keep = \"week\"", "events_keep"),
        ("events_keep_unserved = \"2:00:00\"", "shorter than events_keep"),
        ("dead_letters_keep = \"unlimited\"", "an hour or more"),
        ("kill_grace_s = -1", "integer"),
        ("pools = {}", "pools is empty"),
        (
            "[pools.a]\ndefault = true\n[pools.b]\ndefault = true",
            "pools \"a\" and \"b\" are both the default",
        ),
        ("[pools.a]\nkind = \"cloud\"", "kind \"cloud\" is not known: expected one of \"bare-metal\""),
        ("[pools.a]\nlost_after = \"1:00:00\"", "lost_after is for pools of kind"),
        ("[pools.a]\nkind = \"provider\"\nlost_after = \"soon\"", "lost_after"),
        (
            "[pools.a]\ntime_limit_max = \"1:00:00\"\ntime_limit_default = \"2:00:00\"",
            "longer than time_limit_max",
        ),
        (
            "[pools.a]\ntime_limit_max = \"1:00:00\"\ntime_limit_default = \"UNLIMITED\"",
            "longer than time_limit_max",
        ),
        ("[pools.a]\ntime_limit_max = \"2h\"", "pool \"a\": time_limit_max: \"2h\" is not a time limit"),
        ("[pools.a]\nmem_per_cpu_default = \"much\"", "mem_per_cpu_default: \"much\" is not an amount"),
        ("[pools.a]\nmem_per_cpu_default = \"0\"", "mem_per_cpu_default is zero"),
        ("[pools.a]\ncpu_ratio = 0.5", "cpu_ratio is 0.5: expected 1"),
        ("[pools.a]\nmem_ratio = 101", "mem_ratio is 101: expected 1"),
        ("[pools.\"A B\"]", "pool \"A B\" will not do"),
        ("database = ", "ctld.toml:1: "),
    ] {
        let found = problems(text);
        assert!(found.iter().any(|problem| problem.contains(words)), "{text}: {found:?}");
    }
    let long = format!("socket = \"/{}\"", "s".repeat(120));
    assert!(problems(&long)[0].contains("121 bytes long, the system allows 107"));
}

#[test]
fn a_pool_with_a_longest_limit_gives_it_to_jobs_that_name_none() {
    let config = parse("[pools.a]\ntime_limit_max = \"1:00:00\"").unwrap();
    assert_eq!(config.pools["a"].time_limit_default_s, Some(3600));
}

#[test]
fn a_password_is_never_shown_and_must_not_be_in_a_file_everybody_can_read() {
    let text = "database = \"postgres://bc:s3cret@db.example/bc?sslmode=require&password=s3cret\"";
    let config = parse(text).unwrap();
    assert_eq!(config.database.shown(), "postgres://bc@db.example/bc?sslmode=require");
    assert!(!format!("{config:?}").contains("s3cret"));
    let error = check::parse(text, Path::new("ctld.toml"), true).unwrap_err().to_string();
    assert!(error.contains("chmod o-r") && !error.contains("s3cret"), "{error}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::load("/nonexistent/ctld.toml").unwrap_err().to_string();
    assert!(error.contains("/nonexistent/ctld.toml"), "{error}");
}

#[test]
fn where_nodes_connect_is_checked() {
    for (text, said) in [
        ("listen = \"7443\"", "listen \"7443\" is no address and port"),
        ("listen = \"h:7443\"", "no address and port"),
        ("listen_names = [\"a\"]", "no meaning without `listen`"),
        ("listen = \"0.0.0.0:1\"\nlisten_names = [\"a b\"]", "\"a b\" is no host name and no address"),
        ("node_certificate_days = 0", "node_certificate_days is 0: expected 1 to 90"),
        ("node_certificate_days = 91", "expected 1 to 90"),
    ] {
        let found = problems(text);
        assert!(found.len() == 1 && found[0].contains(said), "{text}: {found:?}");
    }
}
