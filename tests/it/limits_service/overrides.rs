//! `SetOverride`, `DeleteOverride`, and `ListOverrides`: what they do, and who may.

use tonic::{Code, Status};

use super::authorization::limits_client;
use super::messages::{LimitsClient, client, request};
use crate::hostile::tls_callers::serving;
use crate::support::certificate_authority::Authority;
use crate::support::messages::tidegate::v1::r#override::Change;
use crate::support::messages::tidegate::v1::{
    DeleteOverrideRequest, ListOverridesRequest, Override, OverrideNumbers, SetOverrideRequest,
};
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate};

fn numbers(limit: u32) -> SetOverrideRequest {
    let numbers = OverrideNumbers { limit: Some(limit), ..Default::default() };
    let set = Override {
        domain: "edge".to_owned(),
        descriptor: "client=ann".to_owned(),
        change: Some(Change::Numbers(numbers)),
        reason: "T-1".to_owned(),
        by: "bot".to_owned(),
        ..Default::default()
    };
    SetOverrideRequest { r#override: Some(set), permanent: true }
}

fn list(domain: &str) -> ListOverridesRequest {
    ListOverridesRequest { domain: domain.to_owned(), after: String::new() }
}

fn code<T>(result: Result<T, Status>) -> Code {
    result.err().map_or(Code::Ok, |status| status.code())
}

#[tokio::test]
async fn an_override_is_set_listed_and_deleted() {
    let serving = Tidegate::policy(FIVE_A_DAY, &["--counter-access", "write"]);
    let mut client = client(serving.port("grpc")).await;
    let changed = client.set_override(numbers(2)).await.unwrap().into_inner();
    assert!(changed.message.starts_with("edge client=ann: limit 2, permanent, set by bot: T-1; "));
    let peek = |client: &mut LimitsClient<_>| {
        let mut client = client.clone();
        async move {
            let peeked = client.peek(request("edge", "client", "ann")).await.unwrap().into_inner();
            peeked.statuses[0].limit_remaining
        }
    };
    assert_eq!(peek(&mut client).await, 1);
    for domain in ["", "edge"] {
        let page = client.list_overrides(list(domain)).await.unwrap().into_inner();
        assert_eq!(page.next, "");
        assert_eq!(page.overrides.len(), 1);
        let listed = &page.overrides[0];
        assert_eq!((&listed.id, listed.matched), (&changed.id, true));
        assert_eq!(listed.r#override, numbers(2).r#override);
    }
    assert!(client.list_overrides(list("pay")).await.unwrap().into_inner().overrides.is_empty());
    let delete = |domain: &str, id: &str| DeleteOverrideRequest {
        domain: domain.to_owned(),
        id: id.to_owned(),
    };
    assert_eq!(code(client.delete_override(delete("pay", &changed.id)).await), Code::NotFound);
    assert_eq!(code(client.delete_override(delete("edge", &changed.id)).await), Code::Ok);
    let again = code(client.delete_override(delete("edge", &changed.id)).await);
    assert_eq!((again, peek(&mut client).await), (Code::FailedPrecondition, 4));

    let mut endless = numbers(2);
    endless.permanent = false;
    assert_eq!(code(client.set_override(endless).await), Code::InvalidArgument);
    let mut empty = numbers(2);
    empty.r#override.as_mut().unwrap().change = None;
    assert_eq!(code(client.set_override(empty).await), Code::InvalidArgument);
    let mut unknown = numbers(2);
    unknown.r#override.as_mut().unwrap().domain = "pay".to_owned();
    assert_eq!(code(client.set_override(unknown).await), Code::FailedPrecondition);
}

#[tokio::test]
async fn changes_need_write_access_and_lists_need_read_access() {
    for (access, expected) in [
        ("off", [Code::PermissionDenied, Code::PermissionDenied]),
        ("read", [Code::PermissionDenied, Code::Ok]),
        ("write", [Code::Ok, Code::Ok]),
    ] {
        let serving = Tidegate::policy(FIVE_A_DAY, &["--counter-access", access]);
        let mut client = client(serving.port("grpc")).await;
        let set = code(client.set_override(numbers(2)).await);
        let listed = code(client.list_overrides(list("")).await);
        assert_eq!([set, listed], expected, "{access}");
    }
}

/// Each row: permissions of a grant for `edge`, and whether its caller may set an override, list those
/// of `edge`, and list those of all domains.
#[tokio::test]
async fn a_caller_with_grants_needs_the_permissions_of_its_domain() {
    for (grant, permitted) in [
        ("edge=gateway.test", [false, false, false]),
        ("edge=gateway.test:peek", [false, true, false]),
        ("edge=gateway.test:refund", [false, false, false]),
        ("edge=gateway.test:refund,limits", [true, false, false]),
        ("pay=gateway.test:refund,limits,peek", [false, false, false]),
        ("*=gateway.test:refund,limits,peek", [true, true, true]),
    ] {
        let ours = Authority::new();
        let arguments = ["--grpc-client-domains", grant, "--counter-access", "write"];
        let (serving, _secret) = serving(&ours, &arguments);
        let mut client = limits_client(&serving, &ours, "gateway.test").await;
        let mut request = numbers(2);
        let set = request.r#override.as_mut().unwrap();
        (set.descriptor, set.change) = (String::new(), Some(Change::Mode("shadow".to_owned())));
        let codes = [
            code(client.set_override(request).await),
            code(client.list_overrides(list("edge")).await),
            code(client.list_overrides(list("")).await),
        ];
        let expected = permitted.map(|it| if it { Code::Ok } else { Code::PermissionDenied });
        assert_eq!(codes, expected, "{grant}");
    }
}
