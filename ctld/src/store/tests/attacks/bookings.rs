//! Bookings of one GPU against each other, through the store and by hand at psql.

use super::*;
use proto::api::CancelRequest;

/// Inserts a booking of the only GPU for these minutes from now.
const BOOK: &str = "INSERT INTO device_bookings (gpu_id, span, during, reservation_id, atom, kind)
     SELECT g.id, $1::text::int4range, tstzrange(compute_now() + make_interval(mins => $3), compute_now() + make_interval(mins => $4)),
         r.id, $2, 'reservation' FROM gpus g, reservations r ON CONFLICT DO NOTHING";

/// A GPU, and a reservation that owns what is booked by hand.
async fn one_gpu(db: &PgPool) {
    with_pool(db).await;
    mig_placements::fill(db).await.unwrap();
    node(db, "n1", 8, 1).await;
    let own = ReserveRequest { cpus: 1, ..reservation("own", Some(Begin::AfterS(60)), 86400) };
    reserve(db, &caller("alice"), &own).await.unwrap();
}

async fn book(db: impl sqlx::PgExecutor<'_>, span: &str, atom: &str, from: i32, to: i32) -> bool {
    let done = sqlx::query(BOOK).bind(span).bind(atom).bind(from).bind(to).execute(db).await.unwrap();
    done.rows_affected() == 1
}

#[sqlx::test(migrations = "../migrations")]
async fn of_whole_slice_slot_and_window_no_two_overlap(db: PgPool) {
    one_gpu(&db).await;
    let all = [
        ("(,)", "gpu"),
        ("[0,4)", "mig:3g.40gb@0"),
        ("[2,4)", "mig:2g.20gb@2"),
        ("[4,8)", "mig:3g.40gb@4"),
        ("[3,4)", "slot:3/8"),
        ("[5,6)", "mps:5/8"),
    ];
    // What the spans say, worked out here by their ends.
    let ends = |span: &str| match span {
        "(,)" => (i32::MIN, i32::MAX),
        span => {
            let (from, to) = span[1..span.len() - 1].split_once(',').unwrap();
            (from.parse().unwrap(), to.parse().unwrap())
        }
    };
    for first in all {
        for second in all {
            for (from, to) in [(0, 10), (9, 20), (10, 20), (5, 6)] {
                let mut tx = db.begin().await.unwrap();
                assert!(book(&mut *tx, first.0, first.1, 0, 10).await);
                let ((a, b), (c, d)) = (ends(first.0), ends(second.0));
                let together = a < d && c < b && from < 10 && to > 0;
                assert_eq!(
                    book(&mut *tx, second.0, second.1, from, to).await,
                    !together,
                    "{first:?} until 10 and {second:?} from {from} to {to}"
                );
                tx.rollback().await.unwrap();
            }
        }
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_span_that_is_not_its_atoms_is_refused(db: PgPool) {
    one_gpu(&db).await;
    for (span, atom) in [
        ("[0,1)", "gpu"),
        ("(,)", "mig:1g.10gb@0"),
        ("[1,2)", "mig:1g.10gb@0"),
        ("[0,2)", "slot:0/8"),
        ("[8,9)", "slot:8/8"),
        ("[0,1)", "half"),
    ] {
        let error = sqlx::query(BOOK).bind(span).bind(atom).bind(0).bind(1).execute(&db).await.unwrap_err();
        assert_eq!(code(error), "23514", "{atom} as {span}");
    }
}

/// The second waits for the first and is then told by a missing row, or has the place if the first gave up.
#[sqlx::test(migrations = "../migrations")]
async fn of_two_racing_ranges_the_second_waits_and_gets_no_row(db: PgPool) {
    one_gpu(&db).await;
    for commits in [true, false] {
        let mut first = db.begin().await.unwrap();
        assert!(book(&mut *first, "(,)", "gpu", 0, 10).await);
        let other = db.clone();
        let second = tokio::spawn(async move { book(&other, "[3,4)", "slot:3/8", 5, 15).await });
        // Until it is seen to wait for the first.
        loop {
            let waits: bool = sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')",
            )
            .fetch_one(&db)
            .await
            .unwrap();
            if waits {
                break;
            }
            tokio::task::yield_now().await;
        }
        if commits {
            first.commit().await.unwrap()
        } else {
            first.rollback().await.unwrap()
        }
        assert_eq!(second.await.unwrap(), !commits);
        sqlx::query("DELETE FROM device_bookings").execute(&db).await.unwrap();
    }
}

/// A booking that one looked for and did not find: the search is not what decides.
#[sqlx::test(migrations = "../migrations")]
async fn a_booking_that_appears_after_the_search_is_met_by_the_constraint(db: PgPool) {
    one_gpu(&db).await;
    submit_one(&db, Submission { gpus: 1, ..job("a") }).await;
    let planned = plan(&db).await.placements;
    assert_eq!(planned.len(), 1, "nothing is in the way");
    let phantom = ReserveRequest { gpus: 1, ..reservation("phantom", Some(Begin::AfterS(60)), 600) };
    reserve(&db, &caller("bob"), &phantom).await.unwrap();
    let applied = apply(&db, Scope::Pool, &planned, GRACE_S).await.unwrap();
    assert_eq!((applied.placed, applied.conflicts), (0, 1));
    assert!(live(&db).await.is_empty(), "and nothing of it is left");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gpu_is_given_whole_only_where_it_is_whole_for_the_whole_time(db: PgPool) {
    one_gpu(&db).await;
    // In five minutes it is divided; the job is booked for eleven and a half.
    sqlx::raw_sql(
        "UPDATE gpu_modes SET during = tstzrange(lower(during), compute_now() + interval '5 min');
         INSERT INTO gpu_modes (gpu_id, mode, slots, during) SELECT id, 'mig', 1, tstzrange(compute_now() + interval '5 min', NULL) FROM gpus",
    )
    .execute(&db)
    .await
    .unwrap();
    let long = submit_one(&db, Submission { gpus: 1, ..job("long") }).await;
    assert_eq!(place(&db).await.placed, 0);
    let ids = vec![long.to_string()];
    let over = CancelRequest { ids, ..CancelRequest::default() };
    super::super::super::act::cancel(&db, &caller("alice"), &over).await.unwrap();
    submit_one(&db, Submission { gpus: 1, time_limit_s: Some(100), ..job("short") }).await;
    assert_eq!(place(&db).await.placed, 1);
    audit(&db).await;
}
