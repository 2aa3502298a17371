//! What the drill found: as a table, as JSON lines, and as what is wrong with it.

use crate::forms::Form;
use crate::ledger::{Audit, CAPACITY};
use crate::load::{Figures, Load};
use serde_json::json;

/// What was found of each form.
pub struct Report {
    load: Load,
    durable: bool,
    found: Vec<Found>,
}

struct Found {
    form: Form,
    /// In how many rounds both sixes were sold.
    sold_twelve: i64,
    sixes: Figures,
    contended: Figures,
    audit: Audit,
}

const HEADINGS: [&str; 12] = [
    "FORM",
    "12 OF 8 SOLD",
    "OVERSOLD",
    "BY",
    "WORST",
    "RIGHTS",
    "ACCEPTED",
    "REFUSED",
    "RETRIES",
    "P50 ms",
    "P99 ms",
    "ACCEPTED/s",
];

impl Report {
    pub fn new(load: Load, durable: bool) -> Report {
        Report { load, durable, found: Vec::new() }
    }

    pub fn add(&mut self, form: Form, sold_twelve: i64, sixes: Figures, contended: Figures, audit: Audit) {
        self.found.push(Found { form, sold_twelve, sixes, contended, audit });
    }

    pub fn print_table(&self) {
        let Load { seed, seconds, rounds } = self.load;
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let durability = if self.durable { "on" } else { "off" };
        println!("seed {seed}, {cores} cores, durability {durability}: of an event with {CAPACITY} to sell,");
        println!("two sixes at once {rounds} times, then eight buyers of 1 to 6 at once for {seconds} s\n");
        let mut rows = vec![HEADINGS.map(str::to_owned)];
        rows.extend(self.found.iter().map(|found| found.row(rounds)));
        for row in &rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
                // Words to the left, numbers to the right.
                if column == 0 {
                    line += &format!("{cell:<width$}");
                } else {
                    line += &format!("  {cell:>width$}");
                }
            }
            println!("{line}");
        }
        for found in &self.found {
            let form = found.form;
            println!(
                "\n{}\n  yes means  {}\n  refuses    {}",
                form.name(),
                form.acknowledged_at(),
                form.refuses()
            );
        }
    }

    pub fn print_json(&self) {
        for found in &self.found {
            println!("{}", found.json(self));
        }
    }

    /// Why this is no pass; nothing if it is one.
    pub fn complaints(&self) -> Vec<String> {
        self.found.iter().flat_map(Found::complaints).collect()
    }
}

impl Found {
    fn row(&self, rounds: i64) -> [String; 12] {
        let (contended, audit) = (&self.contended, &self.audit);
        let rights = match self.form {
            Form::Escrow if audit.rights_lost == 0 => "conserved".to_owned(),
            Form::Escrow => format!("{} broken", audit.rights_lost),
            _ => "-".to_owned(),
        };
        [
            self.form.name().to_owned(),
            format!("{} of {rounds}", self.sold_twelve),
            format!("{} events", audit.oversold_events),
            audit.oversold_by.to_string(),
            audit.worst.to_string(),
            rights,
            contended.accepted.to_string(),
            contended.refused.to_string(),
            contended.retries.to_string(),
            format!("{:.2}", contended.percentile_ms(50)),
            format!("{:.2}", contended.percentile_ms(99)),
            format!("{:.0}", self.accepted_per_s()),
        ]
    }

    fn json(&self, report: &Report) -> serde_json::Value {
        let (sixes, contended, audit) = (&self.sixes, &self.contended, &self.audit);
        json!({
            "drill": self.form.name(),
            "seed": report.load.seed,
            "durable": report.durable,
            "rounds": report.load.rounds,
            "rounds_oversold": self.sold_twelve,
            "rounds_accepted": sixes.accepted,
            "rounds_retries": sixes.retries,
            "accepted": contended.accepted,
            "refused": contended.refused,
            "gave_up": sixes.gave_up + contended.gave_up,
            "retries": contended.retries,
            "p50_ms": contended.percentile_ms(50),
            "p99_ms": contended.percentile_ms(99),
            "accepted_per_s": self.accepted_per_s(),
            "oversold_events": audit.oversold_events,
            "oversold_by": audit.oversold_by,
            "oversold_worst": audit.worst,
            "rights_conserved": (self.form == Form::Escrow).then_some(audit.rights_lost == 0),
            "acknowledged_at": self.form.acknowledged_at(),
            "refuses": self.form.refuses(),
            "passed": self.complaints().is_empty(),
        })
    }

    fn accepted_per_s(&self) -> f64 {
        self.contended.accepted as f64 / self.contended.seconds
    }

    fn complaints(&self) -> Vec<String> {
        let (name, audit) = (self.form.name(), &self.audit);
        let mut complaints = Vec::new();
        if self.form.oversells() {
            // Both ways: the history made on purpose, and the one that load makes.
            if self.sold_twelve == 0 || audit.oversold_events == self.sold_twelve {
                complaints.push(format!(
                    "{name}: was not caught overselling: what the others survived proves nothing"
                ));
            }
        } else if audit.oversold_events > 0 {
            complaints
                .push(format!("{name}: oversold {} events by {}", audit.oversold_events, audit.oversold_by));
        }
        let accepted = self.sixes.accepted + self.contended.accepted;
        if audit.purchases != accepted {
            complaints.push(format!("{name}: {accepted} were accepted and {} stand", audit.purchases));
        }
        if accepted == 0 {
            complaints.push(format!("{name}: sold nothing"));
        }
        if self.form == Form::Escrow && audit.rights_lost > 0 {
            complaints.push(format!(
                "{name}: the rights of {} events do not add up to {CAPACITY}",
                audit.rights_lost
            ));
        }
        complaints
    }
}
