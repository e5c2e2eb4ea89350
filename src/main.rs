//! Entry point of the `tidegate` binary: runs the command line and returns its exit code.

use std::process::ExitCode;

/// Global allocator. Decisions make many small, short-lived allocations on many threads. With
/// mimalloc, a decision is up to 20 % cheaper than with the system allocator, which also does not
/// return memory to the OS after a burst.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tidegate::cli::run(std::env::args_os())
}
