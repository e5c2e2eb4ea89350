//! `tidegate ask --batch FILE`: sends the requests of a file in batches and prints one line per
//! result.
//!
//! Not here: connecting (`ask_client`).

use std::path::Path;

use bytes::Bytes;
use tonic::Code;
use tonic::transport::Channel;

use super::ask_client::CallError;
use super::terminal;
use crate::app::{self, Failure};
use crate::domain::Bounds;
use crate::wire::messages::check_result::Result as BatchResult;
use crate::wire::messages::limits_client::LimitsClient;
use crate::wire::messages::rate_limit_response::Code as DecisionCode;
use crate::wire::messages::{CheckRequest, CheckResult, RateLimitResponse};
use crate::wire::proto_json::{parse_request, response_to_json};

/// Reads a file with one request per line, in JSON. Skips empty lines. Returns encoded requests.
///
/// # Errors
///
/// Returns an error if the file cannot be read, has no requests, or has a line that is not a valid
/// request.
pub(super) fn read(path: &Path) -> Result<Vec<Bytes>, Failure> {
    let text = app::read_text_file(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let request = |(at, line): (usize, &str)| {
        parse_request(line.as_bytes(), Bounds::DEFAULT.message_bytes_max)
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
    channel: Channel,
    requests: &[Bytes],
    json: bool,
) -> Result<(), CallError> {
    // On a terminal, the results show the progress.
    let mut progress = terminal::Progress::new(!terminal::stdout_is_terminal());
    let (mut client, mut sent) = (LimitsClient::new(channel), 0);
    for batch in requests.chunks(Bounds::DEFAULT.batch_requests_max) {
        progress.show(sent, requests.len() as u64);
        sent += batch.len() as u64;
        let answer = client.check(CheckRequest { requests: batch.to_vec() }).await?;
        for result in answer.into_inner().results {
            // Never an error.
            let _ = terminal::print(&(format_result(result, json) + "\n"));
        }
    }
    Ok(())
}

fn format_result(CheckResult { result }: CheckResult, json: bool) -> String {
    let (code, message) = match result {
        Some(BatchResult::Response(response)) if json => {
            return response_to_json(&response).to_string();
        }
        Some(BatchResult::Response(response)) => return format_response(&response),
        Some(BatchResult::Error(error)) => (Code::from(error.code), error.message),
        None => (Code::Unknown, "the server sent no result".to_owned()),
    };
    match json {
        true => serde_json::json!({"error": {"code": format!("{code:?}"), "message": message}})
            .to_string(),
        false => format!("{code:?}: {message}"),
    }
}

/// Formats a decision: the code and, if the request was rejected, the time until a retry.
fn format_response(response: &RateLimitResponse) -> String {
    let refused = response.statuses.iter().filter(|it| it.code() == DecisionCode::OverLimit);
    let code = response.overall_code().as_str_name();
    match refused.filter_map(|status| status.duration_until_reset).max_by_key(|it| it.seconds) {
        Some(wait) => format!("{code}, retry after {} s", wait.seconds),
        None => code.to_owned(),
    }
}
