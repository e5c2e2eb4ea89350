//! HTTP client for debug ports, used by `tidegate reset`, `tidegate override`, and `tidegate top`, and
//! by the service for its peers (`peers`).

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::process::exit_codes::Failure;
use super::process::files_and_env::read_secret_file;

/// Timeout for a request to the debug port, from connecting to the last byte of the response. The
/// port is on this machine or forwarded to it, so a request that takes ten seconds means that the
/// service hangs.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a response body from the debug port, in bytes.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Sends a POST request with query parameters and a bearer token to the debug port, and returns the
/// response body.
///
/// # Errors
///
/// Returns [`Failure::Usage`] if the token file cannot be read or its contents cannot be a token, or
/// [`Failure::Unavailable`] if the service cannot be reached or rejects the request.
pub fn post_to_debug_port(
    endpoint: &str,
    path: &str,
    parameters: &[(&str, &str)],
    token_file: &Path,
) -> Result<String, Failure> {
    let token = read_secret_file(token_file)?;
    if token.is_empty() {
        return Err(Failure::Usage(format!(
            "the token file {} is empty: write the token in it that the service reads with \
             --debug-token-file",
            token_file.display()
        )));
    }
    let request = Request::post(to_uri(path, parameters))
        .header(HOST, "tidegate")
        .header(AUTHORIZATION, format!("Bearer {token}"))
        .body(Empty::new())
        .map_err(|_| Failure::Usage(format!("{}: not a token", token_file.display())))?;
    exchange_blocking(endpoint, request)
}

/// Sends a GET request with query parameters to the debug port, and returns the response body.
///
/// # Errors
///
/// Returns [`Failure::Unavailable`] if the service cannot be reached or rejects the request.
pub fn get_from_debug_port(
    endpoint: &str,
    path: &str,
    parameters: &[(&str, &str)],
) -> Result<String, Failure> {
    let request = Request::get(to_uri(path, parameters)).header(HOST, "tidegate");
    let request = request.body(Empty::new());
    exchange_blocking(endpoint, request.map_err(|_| Failure::Bug("the path is not a URI"))?)
}

fn to_uri(path: &str, parameters: &[(&str, &str)]) -> String {
    let query =
        url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    format!("{path}?{query}")
}

fn exchange_blocking(endpoint: &str, request: Request<Empty<Bytes>>) -> Result<String, Failure> {
    let failed =
        |reason: &str| Failure::Unavailable(format!("{endpoint}: {}", reason.escape_debug()));
    let response = super::block_on(async {
        let response = async { exchange(TcpStream::connect(endpoint).await?, request).await };
        tokio::time::timeout(TIMEOUT, response).await.map_err(BoxError::from)?
    })?;
    let response = response.map_err(|error| failed(&error.to_string()))?;
    let body = String::from_utf8_lossy(response.body());
    match response.status() {
        StatusCode::OK => Ok(body.into_owned()),
        _ => Err(failed(body.trim_end())),
    }
}

/// Sends a request over a new connection and returns the response, without following redirects.
/// Ends the connection when the returned future is dropped.
///
/// # Errors
///
/// Returns an error if the connection fails, or if the body is longer than [`RESPONSE_BYTES_MAX`].
/// The rest of such a body is not received.
pub(super) async fn exchange(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<Response<Bytes>, BoxError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    match Limited::new(body, RESPONSE_BYTES_MAX).collect().await {
        Ok(body) => Ok(Response::from_parts(head, body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Err("answer longer than 1 MiB".into()),
        Err(error) => Err(error),
    }
}
