//! A database without a controller: the product's own PostgreSQL with its own settings (durability on), migrated, in which a
//! benchmark calls the store's acts in its own process. What it measures is then the act, not the way to it.

use crate::figures::Report;
use ctld::embedded::{Embedded, EmbeddedSettings, start};
use ctld::store::pools::{DeclaredPool, declare};
use ctld::store::{connect, migrate};
use sqlx::PgPool;
use std::future::Future;
use tests::Scratch;
use tokio::runtime::Runtime;

/// A running database. Stopped when dropped.
pub struct Database {
    /// Connections as a controller has them.
    pub db: PgPool,
    embedded: Embedded,
    runtime: Runtime,
    _scratch: Scratch,
}

impl Database {
    /// A fresh one with one pool, and these lines in its `local.conf`.
    pub fn start(report: &mut Report, settings: &str) -> Database {
        let scratch = Scratch::new();
        report.cluster(scratch.name());
        let runtime = Runtime::new().expect("threads can be started");
        let dir = scratch.dir().join("postgres");
        let (embedded, db) = runtime.block_on(async {
            let embedded =
                start(&EmbeddedSettings { dir: dir.clone(), user: None }).await.expect("the database starts");
            if !settings.is_empty() {
                embedded.stop().await.expect("the database stops");
                std::fs::write(dir.join("data/local.conf"), settings).expect("its directory can be written");
                embedded.ensure_running().await.expect("the database starts again");
            }
            let (db, _) = connect(&embedded.url()).expect("its URL is one");
            migrate(&db).await.expect("the migrations apply");
            let pool = DeclaredPool {
                name: "main".into(),
                is_default: true,
                time_limit_max_s: None,
                time_limit_default_s: None,
                mem_per_cpu_default_mib: 1024,
                ratios: Default::default(),
                kind: Default::default(),
                lost_after_s: None,
            };
            declare(&db, &[pool]).await.expect("a pool can be declared");
            (embedded, db)
        });
        Database { db, embedded, runtime, _scratch: scratch }
    }

    /// Runs it to its end.
    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Err(error) = self.runtime.block_on(async {
            self.db.close().await;
            self.embedded.stop().await
        }) {
            eprintln!("bench: {error}");
        }
    }
}
