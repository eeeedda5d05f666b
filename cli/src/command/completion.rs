//! `quire completion`

use clap_complete::generate;

use crate::cli::Completion;
use crate::failure::Failure;
use crate::{output, settings};

/// # Errors
/// When stdout cannot be written.
pub(crate) fn run(arguments: &Completion) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(arguments.shell, &mut settings::command(), "quire", &mut script);
    output::write_stdout(&script)
}
