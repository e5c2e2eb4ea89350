//! Which client certificates get in, and what they are authorized to call.

use super::tls_callers::{ask, connect, fate, serving};
use crate::support::certificate_authority::{Authority, Identity, self_signed};
use crate::support::tidegate_process::{directory, metric, run};

#[tokio::test]
async fn without_a_certificate_of_the_right_authority_name_and_time_nobody_gets_in() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (serving, _secret) = serving(&ours, &["--grpc-client-tls-san", "gateway.test"]);
    let fate = async |identity: Option<Identity>| {
        fate(&serving, &ours.certificate, identity.as_ref(), "edge").await
    };
    assert_eq!(fate(Some(ours.signs("gateway.test"))).await, "OK");
    let refused: [(&str, Option<Identity>); 7] = [
        ("no certificate", None),
        ("another authority", Some(theirs.signs("gateway.test"))),
        ("another name", Some(ours.signs("other.test"))),
        ("a name below", Some(ours.signs("a.gateway.test"))),
        ("a wildcard", Some(ours.signs("*.test"))),
        ("the common name only", Some(ours.signs_common_name("gateway.test"))),
        ("expired", Some(ours.signed_long_ago("gateway.test"))),
    ];
    for (what, identity) in refused {
        assert_eq!(fate(identity).await, "no connection", "{what}");
    }
    assert_eq!(fate(Some(ours.signs("GATEWAY.test"))).await, "OK");
    assert!(metric(&serving, "handshakes_failed_total") >= 7);
}

#[tokio::test]
async fn a_key_that_does_not_belong_to_the_certificate_is_no_identity() {
    let ours = Authority::new();
    let (serving, _secret) = serving(&ours, &[]);
    let (one, other) = (ours.signs("gateway.test"), ours.signs("gateway.test"));
    let stolen = Identity { key: other.key, ..one };
    assert_eq!(fate(&serving, &ours.certificate, Some(&stolen), "edge").await, "no connection");
}

#[tokio::test]
async fn a_caller_may_ask_the_domains_that_it_is_listed_for_and_no_other() {
    let ours = Authority::new();
    let list = "edge=gateway.test,spiffe://mesh/edge; pay=pay.test; *=ops.test";
    let (serving, _secret) = serving(&ours, &["--grpc-client-domains", list]);
    let table = [
        ("gateway.test", ["OK", "PermissionDenied", "PermissionDenied"]),
        ("spiffe://mesh/edge", ["OK", "PermissionDenied", "PermissionDenied"]),
        ("spiffe://mesh/edge/more", ["PermissionDenied"; 3]),
        ("pay.test", ["PermissionDenied", "OK", "PermissionDenied"]),
        ("ops.test", ["OK"; 3]),
        ("other.test", ["PermissionDenied"; 3]),
    ];
    let mut denied = 0;
    for (name, expected) in table {
        let identity = ours.signs(name);
        for (domain, expected) in ["edge", "pay", "no such domain"].into_iter().zip(expected) {
            let got = fate(&serving, &ours.certificate, Some(&identity), domain).await;
            assert_eq!(got, expected, "{name} asks {domain}");
            denied += u64::from(expected == "PermissionDenied");
        }
    }
    assert_eq!(metric(&serving, "calls_denied_total"), denied);
}

#[tokio::test]
async fn a_name_of_one_type_is_no_name_of_the_other() {
    let ours = Authority::new();
    let list = "edge=spiffe://mesh/edge,gateway.test";
    let (serving, _secret) = serving(&ours, &["--grpc-client-domains", list]);
    let fate =
        async |identity: Identity| fate(&serving, &ours.certificate, Some(&identity), "edge").await;
    assert_eq!(fate(ours.signs("spiffe://mesh/edge")).await, "OK");
    assert_eq!(fate(ours.signs_dns_name("spiffe://mesh/edge")).await, "PermissionDenied");
    assert_eq!(fate(ours.signs_uri("gateway.test")).await, "PermissionDenied");
}

#[tokio::test]
async fn a_self_signed_certificate_that_is_itself_trusted_gets_in_by_its_name() {
    let ours = Authority::new();
    let caller = self_signed("gateway.test", &["-days", "2"]);
    let other_name = self_signed("other.test", &["-days", "2"]);
    let unknown = self_signed("gateway.test", &["-days", "2"]);
    let server_only =
        self_signed("gateway.test", &["-days", "2", "-addext", "extendedKeyUsage=serverAuth"]);
    let trusted = [&caller, &other_name, &server_only].map(|identity| &*identity.certificate);
    let flags = ["--grpc-client-tls-san", "gateway.test"];
    let (serving, mut secret) = serving(&ours, &flags);
    secret.becomes(&ours.signs(super::tls_callers::SERVER), &trusted.concat());
    crate::support::wait::until("the certificates are replaced", || {
        (metric(&serving, "certificate_reloads_total") == 1).then_some(())
    });
    let fate =
        async |identity: &Identity| fate(&serving, &ours.certificate, Some(identity), "edge").await;
    assert_eq!(fate(&caller).await, "OK");
    assert_eq!(fate(&other_name).await, "no connection", "trusted, but not allowed");
    assert_eq!(fate(&unknown).await, "no connection", "the same name, but not trusted");
    assert_eq!(fate(&server_only).await, "no connection", "not for clients");
    let stolen = Identity { key: unknown.key.clone(), ..caller.clone() };
    assert_eq!(fate(&stolen).await, "no connection", "the certificate without its key");
}

#[tokio::test]
async fn a_denied_call_leaves_the_connection_as_it_was() {
    let ours = Authority::new();
    let (serving, _secret) = serving(&ours, &["--grpc-client-domains", "edge=gateway.test"]);
    let identity = ours.signs("gateway.test");
    let mut client = connect(&serving, &ours.certificate, Some(&identity)).await.unwrap();
    for _ in 0..3 {
        assert!(ask(&mut client, "pay").await.is_err());
        assert!(!ask(&mut client, "edge").await.unwrap().refused);
    }
}

#[test]
fn a_list_that_could_not_be_kept_ends_the_start() {
    let files = directory(&[("p.yaml", "domain: a\n")]);
    let policy = files.path().join("p.yaml").display().to_string();
    let tls =
        ["--grpc-server-use-tls", "--grpc-server-tls-cert", "c", "--grpc-server-tls-key", "k"];
    let grants = ["--grpc-client-domains", "edge=a.test"];
    let cases: [(&[&str], &str); 4] = [
        (&[], "add --grpc-client-tls-cacert"),
        (
            &["--grpc-client-tls-cacert", "ca", "--grpc-uds", "s"],
            "a Unix socket cannot have client certificates",
        ),
        (&["--grpc-client-tls-cacert", "ca", "--json", "on"], "leave --json at auto"),
        (&["--grpc-client-tls-cacert", "ca"], "No such file"),
    ];
    for (more, said) in cases {
        let arguments = [&["serve", "--policy", &policy][..], &tls, &grants, more].concat();
        let ran = run(&arguments).with_code(64);
        assert!(ran.err.contains(said), "{more:?}: {}", ran.err);
    }
}
