//! The shared store: counters in Redis, decided by Lua.
