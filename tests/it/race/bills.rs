//! Concurrent bills: each counts, however many hits the counter holds already.

use crate::support::grpc_client::{
    CallDescriptor, CallRequest, CallResponse, Client, ClientSettings,
};
use tidegate::domain::{Override, Unit};

use crate::support::redis_cluster::Cluster;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::Tidegate;

const BILLS: usize = 1_000;
const CONNECTIONS: usize = 8;
const HITS: u64 = 10;
const LIMIT: u32 = 100;
/// Every bill is decided in Redis, also on a busy machine.
pub const PATIENT: &[&str] = &["--require-redis", "true", "--redis-budget", "10s"];

/// A counter of the year, so that no window ends during the test.
fn policy() -> String {
    format!(
        "domain: edge\ncharge: billed\ndescriptors:\n  - key: user\n    rate_limit: {{unit: year, \
         requests_per_unit: {LIMIT}}}\n"
    )
}

fn descriptor(hits: Option<u64>) -> CallDescriptor {
    let entries = vec![(b"user".to_vec(), b"ann".to_vec())];
    CallDescriptor { entries, hits, ..CallDescriptor::default() }
}

async fn ask(client: &mut Client, descriptor: CallDescriptor) -> CallResponse {
    let request = CallRequest { domain: "edge".to_owned(), descriptors: vec![descriptor], hits: 0 };
    client.send(&request).await.expect("every call is decided")
}

async fn connect(serving: &Tidegate) -> Client {
    let target = serving.port("grpc").to_string();
    let timeout = Some(std::time::Duration::from_secs(60));
    Client::connect(&ClientSettings { target, timeout, tls: None }).await.expect("it serves")
}

/// Whether the counter holds exactly so many hits: a limit in the request counts on the rule's
/// counter, and passes while one hit is left.
async fn holds(client: &mut Client, hits: u64) -> bool {
    let mut with_limit = async |requests_per_unit: u64| {
        let requests_per_unit = u32::try_from(requests_per_unit).unwrap();
        let limit = Override { requests_per_unit, unit: Unit::Year, unit_multiplier: 1 };
        let question = CallDescriptor { limit: Some(limit), ..descriptor(Some(0)) };
        ask(client, question).await.refused
    };
    with_limit(hits).await && !with_limit(hits + 1).await
}

/// 1,000 parallel bills of 10 on a limit of 100, of which each counts.
async fn each_bill_counts(flags: &[&str]) {
    let serving = Tidegate::policy(&policy(), flags);
    let mut client = connect(&serving).await;
    assert!(!ask(&mut client, descriptor(None)).await.refused);
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let mut client = connect(&serving).await;
        callers.spawn(async move {
            for _ in 0..BILLS / CONNECTIONS {
                ask(&mut client, descriptor(Some(HITS))).await;
            }
        });
    }
    callers.join_all().await;
    let billed = 1 + BILLS as u64 * HITS;
    assert!(holds(&mut client, billed).await);
    assert!(ask(&mut client, descriptor(Some(0))).await.refused, "the next question");
    assert!(ask(&mut client, descriptor(None)).await.refused);
    assert!(holds(&mut client, billed).await, "a refused request charged something");
}

#[tokio::test]
async fn each_of_1_000_parallel_bills_counts_in_memory() {
    each_bill_counts(&[]).await;
}

#[tokio::test]
async fn each_of_1_000_parallel_bills_counts_in_redis() {
    let server = Server::start(&[]);
    let url = format!("127.0.0.1:{}", server.port);
    each_bill_counts(&[&["--redis-url", &url], PATIENT].concat()).await;
}

#[tokio::test]
async fn each_of_1_000_parallel_bills_counts_on_a_cluster() {
    let cluster = Cluster::start(&[]);
    let url = format!("127.0.0.1:{}", cluster.nodes[0].port);
    let place = ["--redis-type", "cluster", "--redis-url", &url];
    each_bill_counts(&[&place, PATIENT].concat()).await;
}
