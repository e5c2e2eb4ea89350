//! Single counters: peek, refund, read and reset, each only with the access that it requires.

use tonic::transport::Channel;
use tonic::{Code, Status};

use super::messages::{CountersRequest, LimitsClient, RateLimitRequest, client, request};
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate};

fn ann() -> RateLimitRequest {
    request("edge", "client", "ann")
}

fn counters(client: &str) -> CountersRequest {
    let descriptor = request("edge", "client", client).descriptors.pop();
    CountersRequest { domain: "edge".to_owned(), descriptor }
}

async fn peek(client: &mut LimitsClient<Channel>) -> Result<(String, u32), Status> {
    let answer = client.peek(ann()).await?.into_inner();
    let code = answer.overall_code().as_str_name().to_owned();
    Ok((code, answer.statuses[0].limit_remaining))
}

async fn read(client: &mut LimitsClient<Channel>) -> Result<u64, Status> {
    let answer = client.read_counters(counters("ann")).await?.into_inner();
    let counter = &answer.counters[0];
    assert_eq!((&*counter.rule, &*counter.limit), ("edge.client", "daily"));
    assert_eq!(counter.capacity, 5);
    assert!(counter.reset_after.is_some());
    Ok(counter.available.expect("the store answers"))
}

#[tokio::test]
async fn counters_are_closed_unless_a_setting_opens_them() {
    for (access, [reads, writes]) in
        [("off", [false, false]), ("read", [true, false]), ("write", [true, true])]
    {
        let server = Tidegate::policy(FIVE_A_DAY, &["--counter-access", access]);
        let mut client = client(server.port("grpc")).await;
        let permitted = |result: Result<(), Status>| match result {
            Ok(()) => true,
            Err(status) => {
                assert_eq!(status.code(), Code::PermissionDenied);
                assert_eq!(status.message(), "--counter-access does not permit this method");
                false
            }
        };
        assert_eq!(permitted(peek(&mut client).await.map(drop)), reads, "{access}");
        assert_eq!(permitted(read(&mut client).await.map(drop)), reads, "{access}");
        assert_eq!(permitted(client.refund(ann()).await.map(drop)), writes, "{access}");
        let reset = client.reset_counters(counters("ann")).await.map(drop);
        assert_eq!(permitted(reset), writes, "{access}");
    }
}

#[tokio::test]
async fn a_counter_is_peeked_at_refunded_read_and_reset() {
    let server = Tidegate::policy(FIVE_A_DAY, &["--counter-access", "write"]);
    let mut client = client(server.port("grpc")).await;
    for _ in 0..5 {
        server.ask("ann");
    }
    for _ in 0..2 {
        assert_eq!(peek(&mut client).await.unwrap(), ("OVER_LIMIT".to_owned(), 0));
    }
    assert_eq!(read(&mut client).await.unwrap(), 0);
    let mut two = ann();
    two.hits_addend = 2;
    client.refund(two).await.unwrap();
    assert_eq!(read(&mut client).await.unwrap(), 2);
    // A peek reports what a call would find after its charge.
    assert_eq!(peek(&mut client).await.unwrap(), ("OK".to_owned(), 1));
    let reset = client.reset_counters(counters("ann")).await.unwrap().into_inner();
    assert_eq!(reset.counters[0].available, Some(5));
    assert_eq!(read(&mut client).await.unwrap(), 5);
    let logged = server.logged_in_time("counters reset by a caller");
    assert_eq!((&logged["rule"], &logged["counters"]), (&"edge.client".into(), &1.into()));
    assert!(!server.log().contains("ann"), "the values of a descriptor are not logged");
}

#[tokio::test]
async fn an_invalid_question_about_counters_is_rejected() {
    let server = Tidegate::policy(FIVE_A_DAY, &["--counter-access", "write"]);
    let mut client = client(server.port("grpc")).await;
    let unmatched = client.read_counters(CountersRequest {
        domain: "edge".to_owned(),
        descriptor: request("edge", "other", "x").descriptors.pop(),
    });
    assert!(unmatched.await.unwrap().into_inner().counters.is_empty());
    let mut long = counters("ann");
    if let Some(descriptor) = &mut long.descriptor {
        descriptor.entries = vec![descriptor.entries[0].clone(); 161];
    }
    let cases = [
        (CountersRequest::default(), "domain must not be empty"),
        (
            CountersRequest { domain: "edge".to_owned(), descriptor: None },
            "descriptors must not be empty",
        ),
        (long, "descriptors[0].entries: at most 160"),
    ];
    for (request, message) in cases {
        let status = client.reset_counters(request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, message));
    }
}
