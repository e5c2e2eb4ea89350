//! Without a decision: nobody listens, nobody answers, nobody is trusted; and how it recovers.

use std::net::TcpListener;
use std::time::Duration;

use tidegate_client::{BuildError, Call, Client, Counters, Failure, OnFailure, Outcome};
use tokio::net::TcpStream;

use crate::support::{
    Certificates, PATIENCE, Tidegate, builder_at, call, free_port, silent, until_passes,
};

#[tokio::test]
async fn an_absent_service_lets_requests_pass_or_not_by_choice() {
    for (choice, passes) in [(OnFailure::Allow, true), (OnFailure::Deny, false)] {
        let client =
            builder_at(free_port(), &Certificates::new()).on_failure(choice).build().unwrap();
        let decision = client.check(&call("user", "ann")).await;
        assert_eq!((decision.outcome(), decision.passes()), (Outcome::Failed, passes));
        assert!(decision.failure().is_some_and(Failure::may_pass_later), "{decision:?}");
        assert_eq!(client.counters(), Counters { allowed: 0, rejected: 0, failed: 1 });
    }
}

#[tokio::test]
async fn a_service_that_hangs_costs_the_timeout() {
    let (_listener, address) = silent();
    let client = builder_at(address.port(), &Certificates::new())
        .timeout(Duration::from_millis(20))
        .build()
        .unwrap();
    let decision = client.check(&call("user", "ann")).await;
    assert_eq!(decision.failure(), Some(&Failure::Timeout));
    assert!(decision.passes());
}

#[tokio::test]
async fn no_more_calls_wait_than_allowed() {
    let (_listener, address) = silent();
    let client = builder_at(address.port(), &Certificates::new()).pending_max(3).build().unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.check(&call("user", "ann")).await })
        })
        .collect();
    tokio::task::yield_now().await;
    let decision = client.check(&call("user", "ann")).await;
    assert_eq!(decision.failure(), Some(&Failure::Busy));
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    for waited in waiting {
        assert!(waited.await.is_err(), "still waiting when it was aborted");
    }
    // Those who went away left their places.
    let (again, call) = (client.clone(), call("user", "ann"));
    let asked = tokio::time::timeout(Duration::from_millis(50), again.check(&call)).await;
    assert!(asked.is_err(), "waiting, not rejected: {asked:?}");
}

#[tokio::test]
async fn a_service_that_returns_is_found_again() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    assert!(client.check(&call("user", "ann")).await.passes());
    let (port, certificates) = tidegate.kill();
    assert_eq!(client.check(&call("user", "ann")).await.outcome(), Outcome::Failed);
    let _successor = Tidegate::serve_at(port, certificates, &[]);
    until_passes(&client, &call("user", "ann")).await;
}

#[tokio::test]
async fn a_connection_slower_than_the_timeout_is_completed_by_later_calls() {
    let tidegate = Tidegate::serve(&[]);
    let target = tidegate.port;
    let proxy = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = proxy.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = proxy.accept().await {
            tokio::spawn(async move {
                // Longer than the calls below wait, shorter than a connection may take.
                tokio::time::sleep(Duration::from_millis(400)).await;
                let mut far = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    let client = builder_at(port, &tidegate.certificates)
        .timeout(Duration::from_millis(200))
        .build()
        .unwrap();
    let peek = Call::new([tidegate_client::Descriptor::new([("user", "ann")]).hits(0)]);
    assert_eq!(client.check(&peek).await.failure(), Some(&Failure::Timeout));
    // Rare calls: each comes after the connection of the one before would have timed out.
    let mut outcome = Outcome::Failed;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        outcome = client.check(&peek).await.outcome();
        if outcome == Outcome::Allowed {
            break;
        }
    }
    assert_eq!(outcome, Outcome::Allowed);
}

#[tokio::test]
async fn tls_verifies_both_sides() {
    let tidegate = Tidegate::serve(&[]);
    let address = format!("https://localhost:{}", tidegate.port);
    let others = Certificates::new();
    let ca = tidegate.certificates.ca.as_bytes();
    let (certificate, key) = &tidegate.certificates.client;
    let start = || Client::builder(&address, "shop").timeout(PATIENCE);
    let builders = [
        ("an unknown authority", tidegate.builder().ca_pem(others.ca.as_bytes())),
        ("the system's authorities", start().identity_pem(certificate.as_bytes(), key.as_bytes())),
        ("no client certificate", start().ca_pem(ca)),
        ("another name", tidegate.builder().server_name("elsewhere.test")),
        (
            "plain text",
            Client::builder(&address.replace("https", "http"), "shop").timeout(PATIENCE),
        ),
    ];
    for (what, builder) in builders {
        // Where the server just closes the connection, the client may notice nothing but the timeout.
        let client = builder.timeout(Duration::from_secs(3)).build().unwrap();
        let decision = client.check(&call("user", "ann")).await;
        assert_eq!(decision.outcome(), Outcome::Failed, "{what}");
    }
    // None of them was counted.
    assert!(
        tidegate.client().check(&call("user", "ann").hits(5)).await.outcome() == Outcome::Allowed
    );
}

#[tokio::test]
async fn wrong_settings_are_named() {
    let vectors: serde_json::Value =
        serde_json::from_str(include_str!("../../../vectors/server_address.json")).unwrap();
    for address in vectors["valid"].as_array().unwrap() {
        let address = address.as_str().unwrap();
        // Without TLS, because a certificate is not what this is about.
        let client = Client::builder(&address.replace("https", "http"), "shop").build().unwrap();
        assert_eq!(client.address(), address.split_once("://").unwrap().1.trim_end_matches('/'));
    }
    let invalid = vectors["invalid"].as_array().unwrap();
    assert!(invalid.len() >= 15);
    for address in invalid {
        let address = address.as_str().unwrap();
        let error = Client::builder(address, "shop").build().unwrap_err().to_string();
        assert!(error.contains(vectors["says"].as_str().unwrap()), "{address}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
    let plain = || Client::builder("http://localhost:1", "shop");
    assert_eq!(plain().ca_pem("x").build().err(), Some(BuildError::TlsWithoutHttps));
    assert_eq!(plain().timeout(Duration::ZERO).build().err(), Some(BuildError::Zero("timeout")));
    let hours = Duration::from_secs(7_200);
    for timeout in [hours, Duration::MAX] {
        assert_eq!(plain().timeout(timeout).build().err(), Some(BuildError::TimeoutTooLong));
    }
    assert_eq!(plain().pending_max(0).build().err(), Some(BuildError::Zero("pending_max")));
    let nobody = Client::builder("http://localhost:1", "").build();
    assert_eq!(nobody.err(), Some(BuildError::DomainEmpty));
    let bad = Client::builder("https://localhost:1", "shop").ca_pem("no certificate").build();
    assert!(matches!(bad.err(), Some(BuildError::Tls(_)) | None));
}

#[test]
fn a_client_outside_a_runtime_is_an_error_and_no_panic() {
    let built = Client::builder("http://localhost:1", "shop").build();
    assert_eq!(built.err(), Some(BuildError::NoRuntime));
    drop(TcpListener::bind("127.0.0.1:0"));
}
