//! HTTP/1.1 client that sends one request per connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

pub fn get(address: SocketAddr, path: &str) -> Reply {
    send(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
}

pub fn post(address: SocketAddr, path: &str, body: &str) -> Reply {
    let length = body.len();
    send(
        address,
        &format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
    )
}

/// Posts an operator's order, with the token of the debug port.
pub fn order(address: SocketAddr, path: &str, token: &str) -> Reply {
    let head = "Host: x\r\nConnection: close\r\nContent-Length: 0";
    let token = format!("Authorization: Bearer {token}");
    send(address, &format!("POST {path} HTTP/1.1\r\n{head}\r\n{token}\r\n\r\n"))
}

/// The reply to a GET, `None` if there is none within a second.
pub fn try_get(address: SocketAddr, path: &str) -> Option<Reply> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    parse(&text)
}

pub fn send(address: SocketAddr, request: &str) -> Reply {
    let mut stream = TcpStream::connect(address).expect("it listens");
    // A server that has answered already may have closed its side.
    let _ = stream.write_all(request.as_bytes());
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).expect("UTF-8");
    parse(&text).unwrap_or_else(|| panic!("no HTTP answer: {text:?}"))
}

fn parse(text: &str) -> Option<Reply> {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Reply { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
}
