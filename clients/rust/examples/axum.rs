//! An axum application with a limit for each user.
//!
//!     cargo run --example axum -- https://localhost:8081 ca.pem
//!
//! It passes requests while Tidegate is unavailable; with `deny` as the next argument, it answers 503. A further one
//! is the timeout in milliseconds.

#![allow(clippy::print_stdout, reason = "an application, which says where it listens")]

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::{Router, routing::get};
use tidegate_client::{Client, Mapping, OnFailure};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [address, ca, rest @ ..] = given.as_slice() else {
        return Err("usage: axum https://HOST:PORT CA_FILE [allow|deny [TIMEOUT_MS]]".into());
    };
    let deny = rest.first().is_some_and(|choice| choice == "deny");
    let timeout = rest.get(1).map_or(Ok(20), |text| text.parse())?;
    let client = Client::builder(address, "shop")
        .ca_pem(std::fs::read(ca)?)
        .on_failure(if deny { OnFailure::Deny } else { OnFailure::Allow })
        .timeout(Duration::from_millis(timeout))
        .build()?;
    let mapping = Mapping::from_json(
        r#"{"descriptors": [
            {"entries": [{"key": "user", "header": "x-user"}]},
            {"entries": [{"key": "export", "path_prefix": "/export"}], "hold": true}
        ]}"#,
    )?;
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/export", get(|| async { "everything" }))
        .layer(client.layer(mapping));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
