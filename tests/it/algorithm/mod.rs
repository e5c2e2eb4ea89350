//! The pure functions of `src/algorithm`: the shared vectors, and properties over random traces.

mod changed_limits;
mod double_precision;
mod governor_crate;
mod reported_values;
mod shared_vectors;
mod trace_generator;
mod worst_case;
