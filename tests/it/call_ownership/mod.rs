//! A call belongs to the store from its queueing to its end: a caller that is dropped, or never polled
//! again, changes nothing but who hears the answer.
//!
//! Scripts run on a real Redis, over a transport that decides when each command is written, run, and
//! answered, in a runtime whose time is paused.

mod each_await;
mod real_servers;
mod scripted_transport;
mod sequences;
