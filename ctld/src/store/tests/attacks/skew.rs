//! Write skew: two that each fit alone, and together do not.

use super::*;

const SIXES: [&str; 2] = ["one", "other"];

/// A node of eight CPUs and two jobs that want six.
async fn two_sixes_and_an_eight(db: &PgPool) {
    with_pool(db).await;
    node(db, "n1", 8, 0).await;
    for key in SIXES {
        submit_one(db, Submission { cpus: 6, ..job(key) }).await;
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn two_sixes_planned_against_the_same_eight_get_six(db: PgPool) {
    two_sixes_and_an_eight(&db).await;
    // Two planners, each of which sees eight free and takes another of the two.
    let mut first = plan(&db).await.placements;
    let mut second = first.clone();
    first.truncate(1);
    second.truncate(1);
    second[0].job_id = first[0].job_id + 1;
    let (one, other) =
        tokio::join!(apply(&db, Scope::Pool, &first, GRACE_S), apply(&db, Scope::Pool, &second, GRACE_S));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!((one.placed + other.placed, one.conflicts + other.conflicts), (1, 1));
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_six_now_and_a_six_reserved_meanwhile_are_not_both_given(db: PgPool) {
    two_sixes_and_an_eight(&db).await;
    let placements = plan(&db).await.placements;
    let six = ReserveRequest { cpus: 6, ..reservation("six", Some(Begin::AfterS(60)), 3600) };
    let alice = caller("alice");
    let (placed, reserved) =
        tokio::join!(apply(&db, Scope::Pool, &placements[..1], GRACE_S), reserve(&db, &alice, &six));
    assert_eq!(placed.unwrap().placed + usize::from(reserved.is_ok()), 1);
    audit(&db).await;
}

/// The same attack on the naive form: each transaction reads what is booked in its snapshot, compares, and inserts; there is no
/// row that both must change. Under snapshot isolation both commit, twelve of eight are sold, and the audit says so. Should this
/// test fail, the ones above prove nothing.
#[sqlx::test(migrations = "../migrations")]
async fn read_compare_and_insert_without_a_common_row_sells_twelve_of_eight(db: PgPool) {
    two_sixes_and_an_eight(&db).await;
    sqlx::query("INSERT INTO reservations (tenant_id, pool_id, name, owner, author, during, state, request, created_at)
         SELECT 1, id, 'r', 'a', 'a', tstzrange(compute_now(), compute_now() + interval '1 h'), 'booked', '{}', compute_now() FROM pools")
        .execute(&db).await.unwrap();
    let mut open = Vec::new();
    for _ in SIXES {
        let mut tx = at_level(&db, "REPEATABLE READ").await;
        let booked: i64 = sqlx::query_scalar("SELECT coalesce(sum(cpus), 0) FROM node_bookings")
            .fetch_one(&mut *tx)
            .await
            .unwrap();
        open.push((tx, booked));
    }
    for (mut tx, booked) in open {
        assert!(booked + 6 <= 8, "each alone fits");
        sqlx::query(
            "INSERT INTO node_bookings (reservation_id, node_id, cpus, mem_mib, during)
             SELECT r.id, n.id, 6, 0, r.during FROM nodes n, reservations r",
        )
        .execute(&mut *tx)
        .await
        .unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(violations(&db, "amounts").await, 1);
}
