//! The embedded store: counters in this process's memory, sharded over all cores.
