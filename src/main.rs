//! The `onced` program: see the library for what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Reads FAILPOINTS, and nothing where the feature is off.
    #[cfg(feature = "fail-points")]
    let _scenario = fail::FailScenario::setup();
    onced::cli::main()
}
