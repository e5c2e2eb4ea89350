//! Parse, run, exit code.

use std::process::ExitCode;

/// Up to 20 % cheaper per decision than the system's allocator, measured with many small, short-lived
/// allocations on many threads. The system's allocator also keeps the memory of a past burst.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tidegate::cli::run(std::env::args_os())
}
