//! The algorithms as pure functions: (state, limit, now, cost) → (outcome, state).
