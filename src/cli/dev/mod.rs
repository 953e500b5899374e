//! `onced dev`: everything on this machine, with nothing to configure.

pub mod cluster;
pub mod installation;
mod place;
