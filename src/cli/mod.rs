//! The command line.

pub mod dev;
