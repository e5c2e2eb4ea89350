//! Entry point of the `tidegate` binary: runs the command line and returns its exit code.

use std::process::ExitCode;

/// Global allocator. Decisions make many small, short-lived allocations on many threads. mimalloc
/// allocates them without locks and, unlike the system allocator, returns memory to the OS after a
/// burst.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tidegate::cli::run(std::env::args_os())
}
