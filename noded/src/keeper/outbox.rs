//! What the controller has yet to acknowledge.
//!
//! Facts leave in the order they happened, many to a report. A report is kept until it is acknowledged; a session that
//! ends puts everything back to the front. Ages are counted at sending, from stamps on a clock that nobody sets.

use crate::attempt::End;
use crate::clock::boottime_us;
use proto::session::{AllocationEvent, Ended, Event, Report};
use std::collections::VecDeque;

/// The most facts of one report: keeps a frame far below what either side takes.
const FACTS_MAX: usize = 500;
/// The most reports that are on their way at once. With more, acknowledgements would not gather facts any better.
const IN_FLIGHT_MAX: usize = 4;

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// To which allocation.
    pub id: i64,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The script started.
    Started {
        /// When.
        at_us: u64,
        /// Its files.
        paths: [String; 3],
    },
    /// It is being ended.
    Completing,
    /// It is over.
    Ended {
        /// How.
        end: End,
        /// Its times are of an earlier boot, whose clock is gone.
        earlier_boot: bool,
    },
}

/// The queue.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: VecDeque<Fact>,
    in_flight: VecDeque<(u64, Vec<Fact>)>,
    seq: u64,
}

impl Outbox {
    /// Adds a fact.
    pub fn push(&mut self, fact: Fact) {
        self.waiting.push_back(fact);
    }

    /// A new session: numbers begin anew, and all that is not acknowledged goes again.
    pub fn reopen(&mut self) {
        self.seq = 0;
        for (_, facts) in self.in_flight.drain(..).rev() {
            for fact in facts.into_iter().rev() {
                self.waiting.push_front(fact);
            }
        }
    }

    /// Whether there is something to send and room for it.
    pub fn ready(&self) -> bool {
        !self.waiting.is_empty() && self.in_flight.len() < IN_FLIGHT_MAX
    }

    /// Whether facts should rather wait a moment for company: a report is on its way, and there is not a full one waiting.
    pub fn better_to_wait(&self) -> bool {
        !self.in_flight.is_empty() && self.waiting.len() < FACTS_MAX
    }

    /// The next report.
    pub fn next(&mut self, observed_generation: u64) -> Option<Report> {
        if !self.ready() {
            return None;
        }
        let facts: Vec<Fact> = self.waiting.drain(..self.waiting.len().min(FACTS_MAX)).collect();
        let now = boottime_us();
        let events = facts
            .iter()
            .map(|fact| AllocationEvent { allocation_id: fact.id, event: event(&fact.what, now) });
        self.seq += 1;
        let report = Report { seq: self.seq, observed_generation, events: events.collect() };
        self.in_flight.push_back((self.seq, facts));
        Some(report)
    }

    /// Reports up to `seq` are recorded. The allocations whose end was among them.
    pub fn acknowledge(&mut self, seq: u64) -> Vec<i64> {
        let mut ended = Vec::new();
        while self.in_flight.front().is_some_and(|(sent, _)| *sent <= seq) {
            for fact in self.in_flight.pop_front().map(|(_, facts)| facts).unwrap_or_default() {
                if matches!(fact.what, What::Ended { .. }) {
                    ended.push(fact.id);
                }
            }
        }
        ended
    }
}

fn event(what: &What, now: u64) -> Event {
    match what {
        What::Started { at_us, paths } => {
            Event::Started { age_us: now.saturating_sub(*at_us), paths: paths.clone() }
        }
        What::Completing => Event::Completing,
        What::Ended { end, earlier_boot } => {
            // How long before this boot it ended nobody knows: it is at least as old as the boot, and its length is known.
            let ended_us = if *earlier_boot { 0 } else { end.at_us };
            let age_us = now.saturating_sub(ended_us);
            let started_age_us = end.started_us.map(|started| age_us + end.at_us.saturating_sub(started));
            Event::Ended(Ended {
                age_us,
                started_age_us,
                cause: end.cause,
                exit_code: end.exit_code,
                signal: end.signal,
                message: end.message.clone(),
                usage: end.usage.clone(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::session::EndCause;

    fn completing(id: i64) -> Fact {
        Fact { id, what: What::Completing }
    }

    fn ended(id: i64) -> Fact {
        Fact { id, what: What::Ended { end: End::without_run(EndCause::Lost, "m"), earlier_boot: false } }
    }

    fn ids(report: Option<Report>) -> (u64, Vec<i64>) {
        let report = report.expect("a report");
        (report.seq, report.events.iter().map(|e| e.allocation_id).collect())
    }

    #[test]
    fn facts_are_kept_in_order_until_acknowledged_and_go_again_in_a_new_session() {
        let mut outbox = Outbox::default();
        outbox.push(completing(1));
        outbox.push(ended(1));
        assert_eq!(ids(outbox.next(0)), (1, vec![1, 1]));
        outbox.push(completing(2));
        assert_eq!(ids(outbox.next(0)), (2, vec![2]));
        outbox.push(ended(3));
        outbox.reopen();
        assert_eq!(ids(outbox.next(0)), (1, vec![1, 1, 2, 3]));
        assert_eq!(outbox.acknowledge(1), [1, 3]);
        assert_eq!(outbox.acknowledge(1), Vec::<i64>::new());
        assert!(outbox.next(0).is_none());
    }

    #[test]
    fn only_some_reports_are_on_their_way_at_once() {
        let mut outbox = Outbox::default();
        for id in 0..10 {
            outbox.push(completing(id));
            outbox.next(0);
        }
        assert!(!outbox.ready());
        outbox.acknowledge(1);
        assert_eq!(ids(outbox.next(0)).1.len(), 6);
    }

    #[test]
    fn an_end_of_an_earlier_boot_keeps_its_length() {
        let end = End {
            at_us: 9_000_000_000_000,
            started_us: Some(8_999_990_000_000),
            ..End::without_run(EndCause::Exited, "")
        };
        let Event::Ended(ended) = event(&What::Ended { end, earlier_boot: true }, 500) else {
            panic!("an end")
        };
        assert_eq!((ended.age_us, ended.started_age_us), (500, Some(10_000_500)));
    }
}
