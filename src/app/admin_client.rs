//! Sends one request to the debug port of a running service, for `tidegate reset` and `switch`.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::exit_codes::Failure;
use super::files_and_env::secret_file;

/// Time for the whole exchange. The port is on this machine or forwarded to it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Largest response body that is read.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Posts to `path` with these parameters and the token in `token_file`. Returns the response body.
///
/// # Errors
///
/// [`Failure::File`] for the token file, [`Failure::AdminRequest`] if the service is not reached or
/// rejects the request.
pub fn post_to_debug_port(
    endpoint: &str,
    path: &str,
    parameters: &[(&str, &str)],
    token_file: &Path,
) -> Result<String, Failure> {
    let token = secret_file(token_file)?;
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    let request = Request::post(format!("{path}?{query}"))
        .header(HOST, "tidegate")
        .header(AUTHORIZATION, format!("Bearer {token}"))
        .body(Empty::new())
        .map_err(|_| Failure::Usage(format!("{}: not a token", token_file.display())))?;
    let failed = |reason: String| Failure::AdminRequest { endpoint: endpoint.to_owned(), reason };
    let exchange = super::block_on(async {
        tokio::time::timeout(TIMEOUT, send(endpoint, request)).await.map_err(BoxError::from)?
    })?;
    match exchange {
        Ok((StatusCode::OK, body)) => Ok(body),
        Ok((_, body)) => Err(failed(body.trim_end().to_owned())),
        Err(error) => Err(failed(error.to_string())),
    }
}

async fn send(
    endpoint: &str,
    request: Request<Empty<Bytes>>,
) -> Result<(StatusCode, String), BoxError> {
    let stream = TcpStream::connect(endpoint).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await?;
    Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
}
