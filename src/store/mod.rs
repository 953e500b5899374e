//! To come.

/// Whether a connection string has the right form. The message never shows it.
///
/// # Errors
/// What is wrong with it.
pub fn check_dsn(dsn: &str) -> Result<(), String> {
    dsn.parse::<postgres::Config>().map(|_| ()).map_err(|error| error.to_string())
}
