//! To come.
/// To come.
pub fn start(
    _: crate::config::Retention,
    _: crate::store::Store,
    _: crate::threads::Stop,
    deaths: &crate::threads::Deaths,
) -> std::io::Result<crate::threads::Thread> {
    crate::threads::spawn("pruner", deaths, || {})
}
