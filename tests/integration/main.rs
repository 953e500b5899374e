//! Everything that is tested from the outside.

mod dev; // the private cluster, and everything that `onced dev` starts
