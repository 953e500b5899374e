//! To come.
use crate::outcome::Fault;
/// To come.
#[derive(Default)]
pub struct Backlog {
    /// a
    pub pending: i64,
    /// a
    pub oldest_seconds: i64,
    /// a
    pub dead: i64,
}
/// To come.
pub fn backlog(_: &mut postgres::Client) -> Result<Backlog, Fault> {
    Ok(Backlog::default())
}
