//! The front by raw bytes over real sockets.

mod connections; // places, keep-alive, pipelining, deadlines, panics, stopping
mod framing; // what is a request, and what is refused
mod listening; // addresses, Unix sockets, sockets that are handed over, lack of descriptors
mod support; // a service that shows what it was given, and a client that speaks bytes
