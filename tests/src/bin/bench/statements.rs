//! Where the database's time goes: the statements that took most of it while many short jobs ran.
//!
//! Needs `pg_stat_statements`, which comes with the distribution's server package. Counting costs a little: the rates of
//! this run are not those of `e2e`.

use crate::figures::{Report, rounded};
use crate::load::{self, cluster_with, drained, submit_singly};
use serde_json::json;
use std::time::Instant;
use tests::User;

const SETTINGS: &str = "shared_preload_libraries = 'pg_stat_statements'\npg_stat_statements.track = all\n\
                        pg_stat_statements.track_planning = on\n";
const SHOWN: usize = 15;

/// 1,000 and 3,000 jobs through one client, then the statements.
pub fn run(report: &mut Report) {
    let user = User::one();
    for count in [1000, 3000] {
        let cluster = cluster_with(report, SETTINGS);
        cluster.sql_as_postgres("CREATE EXTENSION pg_stat_statements");
        let began = Instant::now();
        submit_singly(&cluster, &user, &load::true_job(&cluster, &user), count, 16);
        drained(&cluster);
        let rate = count as f64 / began.elapsed().as_secs_f64();
        let query = format!(
            "SELECT json_build_object('calls', calls, 'ms', round((total_exec_time + total_plan_time)::numeric), \
                    'mean_ms', round(((total_exec_time + total_plan_time) / calls)::numeric, 3), \
                    'plan_ms', round(total_plan_time::numeric), 'rows', rows, 'buffers', shared_blks_hit + shared_blks_read, \
                    'query', left(regexp_replace(query, '\\s+', ' ', 'g'), 200)) \
             FROM pg_stat_statements ORDER BY total_exec_time + total_plan_time DESC LIMIT {SHOWN}"
        );
        for line in cluster.sql_as_postgres(&query).lines() {
            let figures = serde_json::from_str(line).expect("the database writes JSON");
            report.line("statement", json!({ "jobs": count, "jobs_per_s": rounded(rate) }), figures);
        }
    }
}
