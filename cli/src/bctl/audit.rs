//! `bctl audit`.

use super::args::AuditArgs;
use crate::client::{Client, decode, escape};
use crate::fail::Fail;
use crate::out;
use crate::table::{Column, Table, terminal_width};
use crate::text::visible;
use proto::api::Audit;
use std::borrow::Cow;
use std::fmt::Write;
use std::process::ExitCode;

/// Has the controller check its invariants and shows what it found; exit code 1 if one is broken or was not checked.
pub async fn audit(args: AuditArgs) -> Result<ExitCode, Fail> {
    let named = match args.invariants.as_slice() {
        [] => String::new(),
        names => format!("?invariant={}", names.iter().map(|n| escape(n)).collect::<Vec<_>>().join(",")),
    };
    let body = Client::find()?.get(&format!("/v1/audit{named}")).await?;
    let audit: Audit = decode(&body)?;
    if args.json {
        out::write_json(&body)?;
    } else {
        out::write(show(&audit, terminal_width()).as_bytes())?;
    }
    Ok(if audit.ok { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn show(audit: &Audit, terminal: Option<usize>) -> String {
    let rows = audit.invariants.iter().map(|i| {
        vec![
            Cow::Borrowed(i.name.as_str()),
            Cow::Owned(i.checked.to_string()),
            Cow::Owned(i.violations.map_or("unknown".to_owned(), |n| n.to_string())),
            Cow::Borrowed(i.says.as_str()),
        ]
    });
    let columns = vec![
        Column::whole("INVARIANT"),
        Column::number("CHECKED"),
        Column::number("VIOLATIONS"),
        Column::soft("SAYS"),
    ];
    let mut text = Table { columns, rows: rows.collect() }.render(true, terminal);
    for invariant in audit.invariants.iter().filter(|i| !i.rows.is_empty()) {
        writeln!(text, "\n{}: {}", invariant.name, invariant.says).expect("a String takes all");
        for row in &invariant.rows {
            writeln!(text, "  {}: {}", visible(&row.what), visible(&row.detail)).expect("a String takes all");
        }
        let told = invariant.rows.len() as u64;
        if let Some(more) = invariant.violations.map(|n| n.saturating_sub(told)).filter(|more| *more > 0) {
            writeln!(text, "  and {more} more").expect("a String takes all");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::{Audited, Violation};

    #[test]
    fn what_is_broken_is_shown_below_the_table() {
        let whole = Audited {
            name: "devices".into(),
            says: "no part twice".into(),
            checked: 12,
            violations: Some(0),
            rows: vec![],
        };
        let row = Violation { what: "job 7".into(), detail: "it counts 1 live attempts, and has 0".into() };
        let broken = Audited { name: "tasks".into(), violations: Some(3), rows: vec![row], ..whole.clone() };
        let slow = Audited { name: "history".into(), violations: None, ..whole.clone() };
        let audit = Audit { ok: false, took_s: 0.1, invariants: vec![whole, broken, slow] };
        insta::assert_snapshot!(show(&audit, None), @"
        INVARIANT CHECKED VIOLATIONS SAYS
        devices        12          0 no part twice
        tasks          12          3 no part twice
        history        12    unknown no part twice

        tasks: no part twice
          job 7: it counts 1 live attempts, and has 0
          and 2 more
        ");
    }
}
