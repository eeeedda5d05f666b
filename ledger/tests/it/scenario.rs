//! A scenario file is a title, commands, a line of dashes, and the log that
//! running the commands makes. `UPDATE_EXPECT=1` writes the logs anew.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::world::World;

const LINE: &str = "----\n";

/// Runs the commands and returns the log: each command, and below it what
/// happened.
fn run(commands: &str) -> Result<String, String> {
    let mut world = World::default();
    let mut log = String::new();
    for command in commands.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        world.command(command).map_err(|why| format!("`{command}`: {why}"))?;
        let _ = writeln!(log, "> {command}");
        for line in world.take_log() {
            let _ = writeln!(log, "  {line}");
        }
    }
    let _ = writeln!(log, "{}", world.verdict()?);
    Ok(log)
}

fn check(path: &Path) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let (commands, expected) = text.split_once(LINE).unwrap_or((&text, ""));
    let log = run(commands)?;
    if log == expected {
        return Ok(());
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let commands = commands.trim_end();
        return fs::write(path, format!("{commands}\n{LINE}{log}")).map_err(|error| error.to_string());
    }
    Err(format!("the log differs (UPDATE_EXPECT=1 writes it anew); it is now:\n{log}"))
}

#[test]
fn every_scenario_has_the_log_that_its_file_says() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 12, "scenario files are missing");
    let failures: Vec<String> = files
        .iter()
        .filter_map(|path| {
            check(path).err().map(|why| format!("{}: {why}", path.file_name().unwrap().display()))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Each rule that is broken on purpose shows in a scenario.
#[cfg(feature = "planted-faults")]
#[test]
fn a_planted_fault_changes_the_log_of_a_scenario() {
    use quire_ledger::fault::{Fault, plant};

    for (fault, file) in [
        (Fault::RollEndBeyondCommitted, "entries-past-the-end"),
        (Fault::AckBeforeRollApplied, "pipelined-acks"),
        (Fault::AckAfterRollIssued, "metadata-unknown-at-roll"),
        (Fault::FewerFences, "uncertain-answer-does-not-count"),
        (Fault::UncertainCounted, "uncertain-answer-does-not-count"),
        (Fault::SealBelowGreatest, "fence-race"),
        (Fault::ImportTargetCounted, "outside-bookie-steps-in"),
    ] {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
        let text = fs::read_to_string(directory.join(file).with_extension("txt")).unwrap();
        let (commands, expected) = text.split_once(LINE).unwrap();
        plant(Some(fault));
        let log = run(commands);
        plant(None);
        assert_ne!(log.as_deref(), Ok(expected), "{fault:?} goes unnoticed by {file}");
    }
}
