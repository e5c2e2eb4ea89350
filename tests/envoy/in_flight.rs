//! Exports in flight, `config/examples/in-flight`: never more than the limit, nothing returned that was
//! not taken, and what nobody returns comes back after the lease.
