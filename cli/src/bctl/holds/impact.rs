//! What a hold would touch, as lines for whoever decides.

use crate::text::visible;
use crate::wall;
use proto::HoldKind;
use proto::api::{HeldJob, HoldImpact};
use std::fmt::Write;

/// Whether anybody would notice.
pub fn touches(impact: &HoldImpact) -> bool {
    !impact.jobs.is_empty() || !impact.reservations.is_empty()
}

/// The hold, who runs there until when, and which reservations lose their place.
pub fn lines(impact: &HoldImpact) -> String {
    let until = impact
        .until
        .map_or_else(|| "until it is lifted".to_owned(), |at| format!("until {}", wall::show(at)));
    let mut text = format!("{} of {} from {} {until}\n", impact.kind, impact.target, wall::show(impact.from));
    let mut line = |label: &str, what: String| {
        writeln!(text, "  {label} {}", visible(&what)).expect("a String takes all");
    };
    for job in &impact.jobs {
        line("runs there:", ran(job, impact.kind));
    }
    for r in &impact.reservations {
        let (from, until) = (wall::show(r.from), wall::show(r.until));
        line("loses its place:", format!("reservation {} of {} from {from} until {until}", r.name, r.owner));
    }
    if !touches(impact) {
        line("nothing runs there,", "and nothing is reserved there".to_owned());
    }
    text
}

fn ran(job: &HeldJob, kind: HoldKind) -> String {
    let until = match job.until {
        Some(until) => format!("until {} at the latest", wall::show(until)),
        None => "without a time limit".to_owned(),
    };
    let then = match (job.runs_into, kind) {
        (true, HoldKind::Maintenance) => "; it may run into the maintenance, which does not end it",
        (true, _) => "",
        (false, _) => "; it is over before the hold begins",
    };
    format!("job {} of {} {until}{then}", job.job, job.user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::HeldReservation;

    #[test]
    fn who_is_touched_is_named_and_until_when() {
        let at = |text: &str| text.parse().unwrap();
        let job =
            |job: &str, until, runs_into| HeldJob { job: job.into(), user: "ann".into(), until, runs_into };
        let mut impact = HoldImpact {
            target: "n1".into(),
            kind: HoldKind::Maintenance,
            from: at("2126-01-01T08:00:00Z"),
            until: None,
            jobs: vec![job("7", None, true), job("8_3", Some(at("2126-01-01T07:00:00Z")), false)],
            reservations: vec![HeldReservation {
                name: "tue".into(),
                owner: "bob".into(),
                from: at("2126-01-01T10:00:00Z"),
                until: at("2126-01-01T11:00:00Z"),
            }],
        };
        let text = lines(&impact);
        let shown: Vec<&str> = text.lines().collect();
        assert!(
            shown[0].starts_with("maintenance of n1 from 2126-") && shown[0].ends_with(" until it is lifted")
        );
        assert!(
            shown[1].starts_with("  runs there: job 7 of ann without a time limit; it may run into"),
            "{text}"
        );
        assert!(shown[2].ends_with("at the latest; it is over before the hold begins"), "{text}");
        assert!(shown[3].starts_with("  loses its place: reservation tue of bob from 2126-"), "{text}");
        (impact.jobs, impact.reservations) = (vec![], vec![]);
        assert!(!touches(&impact) && lines(&impact).contains("nothing runs there"));
    }
}
