//! `tidegate ask --batch FILE`: sends the requests of a file in batches and prints one line per
//! result.
//!
//! Not here: the gRPC client (`wire::client`).

use std::path::Path;

use super::terminal;
use crate::app::{self, Failure};
use crate::domain::Bounds;
use crate::wire::client::{BatchItemResult, BatchRequest, CallResponse, Client, WireError};

/// Reads a file with one request per line, in JSON. Skips empty lines.
///
/// # Errors
///
/// Returns an error if the file cannot be read, has no requests, or has a line that is not a valid
/// request.
pub(super) fn read(path: &Path) -> Result<Vec<BatchRequest>, Failure> {
    let text = app::read_text_file(path).map_err(Failure::File)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let request = |(at, line)| {
        BatchRequest::from_json(line)
            .map_err(|error| Failure::Usage(format!("{}:{}: {error}", path.display(), at + 1)))
    };
    let requests: Vec<_> = lines.map(request).collect::<Result<_, _>>()?;
    match requests.is_empty() {
        true => Err(Failure::Usage(format!("{} has no requests", path.display()))),
        false => Ok(requests),
    }
}

/// Sends the requests, and prints their results in the same order.
///
/// # Errors
///
/// Returns an error if the service rejects a whole batch or does not respond.
pub(super) async fn send(
    client: &mut Client,
    requests: &[BatchRequest],
    json: bool,
) -> Result<(), WireError> {
    for batch in requests.chunks(Bounds::DEFAULT.batch_requests_max) {
        for result in client.send_batch(batch).await? {
            // Never an error.
            let _ = terminal::print(&format_result(&result, json));
        }
    }
    Ok(())
}

fn format_result(result: &BatchItemResult, json: bool) -> String {
    match result {
        BatchItemResult::Response(response) if json => format!("{}\n", response.json),
        BatchItemResult::Response(response) => format_response(response),
        BatchItemResult::Error { code, message } if json => {
            format!("{}\n", serde_json::json!({"error": {"code": code, "message": message}}))
        }
        BatchItemResult::Error { code, message } => format!("{code}: {message}\n"),
    }
}

/// Formats a decision: the code and, if the request was rejected, the time until a retry.
fn format_response(response: &CallResponse) -> String {
    let waits = response.statuses.iter().filter(|status| status.refused);
    match waits.filter_map(|status| status.reset_seconds).max() {
        Some(seconds) => format!("{}, retry after {seconds} s\n", response.code),
        None => format!("{}\n", response.code),
    }
}
