//! Tidegate processes to attack, and calls to them.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use crate::support::grpc_client::{
    CallDescriptor, CallRequest, CallResponse, Client, ClientSettings,
};

use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate};
use crate::support::wait::within;

/// Only a broken test waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    within(PATIENCE, what, future).await
}

/// A process with five a year for each client.
pub(crate) fn target(more: &[&str]) -> (Tidegate, SocketAddr) {
    let serving = Tidegate::policy(FIVE_A_DAY, more);
    let address = serving.port("grpc");
    (serving, address)
}

pub(crate) async fn client(address: SocketAddr) -> Client {
    let settings =
        ClientSettings { target: address.to_string(), timeout: Some(PATIENCE), tls: None };
    soon("connecting", Client::connect(&settings)).await.unwrap()
}

/// One entry, `client`.
pub(crate) fn descriptor(client: &[u8]) -> CallDescriptor {
    let entries = vec![(b"client".to_vec(), client.to_vec())];
    CallDescriptor { entries, ..Default::default() }
}

pub(crate) fn question(descriptors: Vec<CallDescriptor>) -> CallRequest {
    CallRequest { domain: "edge".to_owned(), descriptors, hits: 0 }
}

pub(crate) async fn asked(client: &mut Client, question: &CallRequest) -> CallResponse {
    soon("an answer", client.send(question)).await.unwrap_or_else(|error| panic!("{error}"))
}

/// How many hits a client has left; takes none.
pub(crate) async fn left(client: &mut Client, name: &str) -> u32 {
    let peek = CallDescriptor { hits: Some(0), ..descriptor(name.as_bytes()) };
    asked(client, &question(vec![peek])).await.statuses[0].remaining
}
