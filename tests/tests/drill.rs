//! The drill in short, on the database that the tests have: its attack bites, and what the system relies on survives it.

use serde_json::Value;
use std::process::Command;

#[test]
fn the_drill_catches_the_naive_form_overselling_and_no_other() {
    let ran = Command::new(env!("CARGO_BIN_EXE_drill"))
        .args(["--seconds", "1", "--rounds", "20", "--json"])
        .output()
        .expect("the drill runs");
    let (lines, complaints) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{lines}{complaints}");
    let found: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let twelves: Vec<_> = found.iter().map(|form| form["rounds_oversold"].as_i64()).collect();
    assert_eq!(twelves, [Some(20), Some(0), Some(0), Some(0)], "{lines}");
    for form in &found[1..] {
        assert_eq!(form["rounds_accepted"], 20, "one of two sixes is sold, each time: {form}");
    }
}

#[test]
fn the_drill_refuses_what_it_does_not_know() {
    for wrong in [vec!["--seconds", "soon"], vec!["--seconds"], vec!["--rounds", "0"], vec!["--fast"]] {
        let ran = Command::new(env!("CARGO_BIN_EXE_drill")).args(&wrong).output().expect("the drill runs");
        assert_eq!(ran.status.code(), Some(2), "{wrong:?}");
        let complaint = String::from_utf8_lossy(&ran.stderr);
        assert!(complaint.contains(wrong.last().expect("one")), "{wrong:?}: {complaint}");
    }
}
