//! Figures: repeated measurements summed up, written as a JSON line each.

use crate::foreign::Foreign;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Where the figures go, and how many are taken.
pub struct Report {
    quick: bool,
    foreign: Foreign,
}

impl Report {
    /// A report on stdout.
    pub fn new(quick: bool) -> Report {
        Report { quick, foreign: Foreign::new() }
    }

    /// How often to repeat: `full` times, or `quick` times in a hurry.
    pub fn times(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// What runs belongs to this cluster.
    pub fn cluster(&mut self, base: &str) {
        self.foreign.cluster(base);
    }

    /// Writes one line: the benchmark's name, its parameters, and its figures.
    pub fn line(&mut self, name: &str, parameters: Value, figures: Value) {
        let mut line = Map::new();
        line.insert("bench".into(), json!(name));
        line.insert("foreign_cpu".into(), json!(self.foreign.share()));
        for part in [parameters, figures] {
            if let Value::Object(part) = part {
                line.extend(part);
            }
        }
        println!("{}", Value::Object(line));
    }
}

/// Median, extremes, 95th percentile and number of some measurements.
pub fn summary(values: &[f64]) -> Value {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let Some((&min, &max)) = sorted.first().zip(sorted.last()) else { return json!({ "n": 0 }) };
    let middle = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0;
    let p95 = sorted[(n * 95 / 100).min(n - 1)];
    json!({ "median": rounded(middle), "min": rounded(min), "max": rounded(max), "p95": rounded(p95), "n": n })
}

/// Median, 99th percentile, longest and number of some latencies.
pub fn latencies(values: &[f64]) -> Value {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(max) = sorted.last() else { return json!({ "n": 0 }) };
    let at = |percent: usize| rounded(sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]);
    json!({ "p50": at(50), "p99": at(99), "max": rounded(*max), "n": sorted.len() })
}

/// Four figures are as many as are true.
pub fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let places = (3 - value.abs().log10().floor() as i32).clamp(0, 6);
    let factor = 10f64.powi(places);
    (value * factor).round() / factor
}

/// Milliseconds.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
