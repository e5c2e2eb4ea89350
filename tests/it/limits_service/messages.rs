//! Short ways to build requests, and to read results.

use std::net::SocketAddr;

use bytes::Bytes;
use prost::Message as _;
use tonic::Code;
use tonic::transport::Channel;

use crate::support::messages::rate_limit_descriptor::Entry;
pub use crate::support::messages::tidegate::v1::limits_client::LimitsClient;
pub use crate::support::messages::tidegate::v1::{
    CheckRequest, CheckResponse, CheckResult, CountersRequest, check_result,
};
pub use crate::support::messages::{RateLimitDescriptor, RateLimitRequest};

pub async fn client(address: SocketAddr) -> LimitsClient<Channel> {
    LimitsClient::connect(format!("http://{address}")).await.unwrap()
}

/// A request with one descriptor of one entry.
pub fn request(domain: &str, key: &str, value: &str) -> RateLimitRequest {
    let (key, value) = (Bytes::from(key.to_owned()), Bytes::from(value.to_owned()));
    let entries = vec![Entry { key, value }];
    let descriptor = RateLimitDescriptor { entries, ..Default::default() };
    let domain = Bytes::from(domain.to_owned());
    RateLimitRequest { domain, descriptors: vec![descriptor], hits_addend: 0 }
}

/// The same, encoded, for a client.
pub fn encoded(domain: &str, client: &str) -> Bytes {
    request(domain, "client", client).encode_to_vec().into()
}

/// What a result says: `OK`, `OVER_LIMIT`, or the code of an error.
pub fn said(result: &CheckResult) -> String {
    match result.result.as_ref().expect("a result") {
        check_result::Result::Response(response) => {
            response.overall_code().as_str_name().to_owned()
        }
        check_result::Result::Error(error) => format!("{:?}", Code::from(error.code)),
    }
}

pub fn all(results: &[CheckResult]) -> Vec<String> {
    results.iter().map(said).collect()
}
