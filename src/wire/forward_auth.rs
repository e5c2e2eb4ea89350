//! Forward authentication: builds the rate limit request for a client's HTTP request. Reads the
//! headers that the proxy forwards, and applies the `http` mapping of the domain.
//!
//! Not here: reading the mapping (`policy::compile::http_request`), HTTP (`admin`).

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use http::HeaderMap;
use prost::Message as _;

use super::messages::rate_limit_descriptor::Entry;
use super::messages::{RateLimitDescriptor, RateLimitRequest};
use super::normal_form::{group_address, normalize_host, normalize_path};
use crate::policy::compiled_policy::{HttpEntry, HttpMapping, HttpSource, RequestPart};

/// Header with the method of the client's request. NGINX and HAProxy send `x-forwarded-*` headers
/// only if configured; Caddy and Traefik always send them.
const FORWARDED_METHOD: &str = "x-forwarded-method";
/// Header with the path and query of the client's request.
const FORWARDED_URI: &str = "x-forwarded-uri";
/// Header with the host of the client's request.
const FORWARDED_HOST: &str = "x-forwarded-host";
/// Header with the client's address, followed by the addresses that proxies have appended.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// Error for a missing or invalid header that the proxy must send. Contains the header's name.
///
/// Clients cannot remove such a header, so the proxy is misconfigured. Without this error, the
/// limits of the domain would silently never apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingHeader(pub(crate) &'static str);

/// Builds the encoded `RateLimitRequest` for a client's HTTP request. Like Envoy, leaves out a
/// descriptor if the client's request lacks a header from which the descriptor takes a value.
/// Returns `None` if no descriptor is left.
///
/// # Errors
///
/// Returns an error if the proxy did not send a header that the mapping needs.
pub(crate) fn build_request(
    domain: &str,
    headers: &HeaderMap,
    mapping: &HttpMapping,
) -> Result<Option<Bytes>, MissingHeader> {
    let mut request = RateLimitRequest::default();
    for entries in &mapping.descriptors {
        let mut descriptor = RateLimitDescriptor::default();
        for HttpEntry { key, source } in entries {
            let Some(value) = find_value(headers, source, mapping)? else { break };
            let value = Bytes::from(value.into_owned());
            let key = Bytes::copy_from_slice(key.as_bytes());
            descriptor.entries.push(Entry { key, value });
        }
        if descriptor.entries.len() == entries.len() {
            request.descriptors.push(descriptor);
        }
    }
    if request.descriptors.is_empty() {
        return Ok(None);
    }
    request.domain = Bytes::copy_from_slice(domain.as_bytes());
    Ok(Some(request.encode_to_vec().into()))
}

fn find_value<'h>(
    headers: &'h HeaderMap,
    source: &'h HttpSource,
    mapping: &HttpMapping,
) -> Result<Option<Cow<'h, [u8]>>, MissingHeader> {
    let forwarded = |name| match headers.get(name) {
        Some(value) if !value.is_empty() => Ok(value.as_bytes()),
        Some(_) | None => Err(MissingHeader(name)),
    };
    Ok(Some(match source {
        // The first value, as Envoy does.
        HttpSource::Header(name) => match headers.get(&**name) {
            Some(value) => value.as_bytes().into(),
            None => return Ok(None),
        },
        HttpSource::Value(text) => text.as_bytes().into(),
        HttpSource::Request(RequestPart::Method) => forwarded(FORWARDED_METHOD)?.into(),
        HttpSource::Request(RequestPart::Host) => normalize_host(forwarded(FORWARDED_HOST)?).into(),
        HttpSource::Request(RequestPart::Path) => {
            normalize_path(forwarded(FORWARDED_URI)?, mapping.empty_segments).into()
        }
        HttpSource::Request(RequestPart::RemoteAddress) => {
            let address = find_client_address(headers, mapping.trusted_hops);
            let address = address.ok_or(MissingHeader(FORWARDED_FOR))?;
            group_address(address, mapping.ipv6_prefix).into_bytes().into()
        }
    }))
}

/// Returns the client's address from `X-Forwarded-For`. Each trusted proxy appends the address from
/// which it received the request, so the client's address is at position `trusted_hops` from the
/// right. Addresses further left come from the client and may be forged. If there are fewer
/// addresses than `trusted_hops`, trusted proxies wrote them all, and the first one is the
/// client's.
///
/// The address is returned in its canonical form and without a port, so that one client has one
/// counter. Returns `None` if the header is missing or has no valid address at that position.
fn find_client_address(headers: &HeaderMap, trusted_hops: usize) -> Option<IpAddr> {
    let values = headers.get_all(FORWARDED_FOR).into_iter().rev();
    let mut addresses = values.flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b','));
    let mut found = addresses.next()?;
    for _ in 1..trusted_hops {
        let Some(further) = addresses.next() else { break };
        found = further;
    }
    let text = std::str::from_utf8(found).ok()?.trim();
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || text.parse().ok().map(|address: SocketAddr| address.ip());
    text.parse().ok().or_else(bracketed).or_else(with_port).map(|ip: IpAddr| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::decode;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn entry(key: &str, source: HttpSource) -> HttpEntry {
        HttpEntry { key: key.into(), source }
    }

    fn mapping(descriptors: &[&[HttpEntry]]) -> HttpMapping {
        let descriptors = descriptors.iter().map(|entries| (*entries).into()).collect();
        HttpMapping { descriptors, ..HttpMapping::default() }
    }

    /// Returns the descriptors of the built request as text.
    fn build_descriptors(sent: &[(&'static str, &str)], mapping: &HttpMapping) -> Vec<String> {
        let Some(request) = build_request("web", &headers(sent), mapping).unwrap() else {
            return Vec::new();
        };
        let request = decode::decode_message(request, &crate::domain::Bounds::DEFAULT).unwrap();
        assert_eq!(request.domain, "web");
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let entry = |entry: &Entry| format!("{}={}", text(&entry.key), text(&entry.value));
        let descriptor =
            |it: &RateLimitDescriptor| it.entries.iter().map(entry).collect::<Vec<_>>().join(",");
        request.descriptors.iter().map(descriptor).collect()
    }

    #[test]
    fn every_source_has_a_value() {
        let mapping = mapping(&[
            &[entry("tenant", HttpSource::Header("x-tenant".into()))],
            &[
                entry("method", HttpSource::Request(RequestPart::Method)),
                entry("path", HttpSource::Request(RequestPart::Path)),
            ],
            &[
                entry("host", HttpSource::Request(RequestPart::Host)),
                entry("source", HttpSource::Value("authz".into())),
            ],
            &[entry("remote_address", HttpSource::Request(RequestPart::RemoteAddress))],
        ]);
        let sent = [
            ("x-tenant", "acme"),
            ("x-tenant", "other"),
            ("x-forwarded-method", "POST"),
            ("x-forwarded-uri", "/a/./b;x?c=d"),
            ("x-forwarded-host", "Example.org:443"),
            ("x-forwarded-for", "203.0.113.9"),
        ];
        let expected = [
            "tenant=acme",
            "method=POST,path=/a/b",
            "host=example.org,source=authz",
            "remote_address=203.0.113.9",
        ];
        assert_eq!(build_descriptors(&sent, &mapping), expected);
    }

    #[test]
    fn a_missing_client_header_drops_its_descriptor() {
        let mapping = mapping(&[
            &[
                entry("a", HttpSource::Header("x-a".into())),
                entry("b", HttpSource::Value("1".into())),
            ],
            &[entry("b", HttpSource::Header("x-b".into()))],
        ]);
        assert_eq!(build_descriptors(&[("x-b", "2")], &mapping), ["b=2"]);
        assert_eq!(build_descriptors(&[("x-b", "")], &mapping), ["b="]);
        assert!(build_descriptors(&[], &mapping).is_empty());
    }

    #[test]
    fn a_missing_proxy_header_is_an_error() {
        let sources = [
            (HttpSource::Request(RequestPart::Method), "x-forwarded-method"),
            (HttpSource::Request(RequestPart::Path), "x-forwarded-uri"),
            (HttpSource::Request(RequestPart::Host), "x-forwarded-host"),
            (HttpSource::Request(RequestPart::RemoteAddress), "x-forwarded-for"),
        ];
        for (source, name) in sources {
            let mapping = mapping(&[&[entry("k", source)]]);
            for sent in [&[][..], &[(name, "")]] {
                let built = build_request("web", &headers(sent), &mapping);
                assert_eq!(built, Err(MissingHeader(name)));
            }
        }
    }

    #[test]
    fn a_client_cannot_choose_its_address() {
        let address = |hops, values: &[&str]| {
            let list: Vec<_> = values.iter().map(|value| (FORWARDED_FOR, *value)).collect();
            find_client_address(&headers(&list), hops).map(|address| address.to_string())
        };
        let made_up = "192.0.2.1, 198.51.100.7, 203.0.113.9";
        assert_eq!(address(1, &[made_up]).as_deref(), Some("203.0.113.9"));
        assert_eq!(address(2, &[made_up]).as_deref(), Some("198.51.100.7"));
        assert_eq!(address(9, &[made_up]).as_deref(), Some("192.0.2.1"));
        assert_eq!(address(2, &["192.0.2.1", "203.0.113.9"]).as_deref(), Some("192.0.2.1"));
        // Not what is further right, which would be the address of a proxy.
        assert_eq!(address(2, &["nonsense, 203.0.113.9"]), None);
        assert_eq!(address(1, &["192.0.2.1,"]), None);
        for text in ["192.0.2.1", " 192.0.2.1 ", "192.0.2.1:8080", "::ffff:192.0.2.1"] {
            assert_eq!(address(1, &[text]).as_deref(), Some("192.0.2.1"), "{text}");
        }
        for text in ["2001:DB8::1", "[2001:db8::1]", "[2001:db8:0::1]:443"] {
            assert_eq!(address(1, &[text]).as_deref(), Some("2001:db8::1"), "{text}");
        }
    }
}
