//! Asks a running service's debug port to change something: one HTTP/1.1 request over TCP.
//!
//! Not here: what can be asked (`admin`), the words (`cli`).

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use super::environment::secret_file;
use super::exit_codes::Failure;

/// How long connecting, sending and the answer may take, each: the port is on this machine, or
/// forwarded to it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The largest answer that is read.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Posts to `path` with these parameters, and the token in that file; what the service said.
///
/// # Errors
///
/// [`Failure::File`] for the token, [`Failure::Debug`] if the service does not do it.
pub fn order(
    target: &str,
    path: &str,
    parameters: &[(&str, &str)],
    token_file: &Path,
) -> Result<String, Failure> {
    let token = secret_file(token_file)?;
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let wrong = format!("{}: a token is printable ASCII", token_file.display());
        return Err(Failure::Usage(wrong));
    }
    let query: Vec<String> =
        parameters.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    let request = format!(
        "POST {path}?{} HTTP/1.1\r\nHost: tidegate\r\nConnection: close\r\nContent-Length: 0\r\n\
         Authorization: Bearer {token}\r\n\r\n",
        query.join("&")
    );
    let unanswered = |said: String| Failure::Debug { target: target.to_owned(), said };
    let answer = sent(target, &request).map_err(|error| unanswered(error.to_string()))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(unanswered(body.trim_end().to_owned())),
    }
}

fn sent(target: &str, request: &str) -> io::Result<String> {
    let nowhere = || io::Error::new(io::ErrorKind::NotFound, "no such host");
    let address = target.to_socket_addrs()?.next().ok_or_else(nowhere)?;
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Percent-encodes everything but letters and digits.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |text, byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => text + char::from(byte).encode_utf8(&mut [0; 4]),
        _ => text + &format!("%{byte:02X}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_value_holds_it_is_one_value() {
        assert_eq!(encoded("a=b&c d\r\n"), "a%3Db%26c%20d%0D%0A");
    }
}
