//! From a request to its descriptors, by a declarative mapping. `clients/README.md` describes its form,
//! which is the same for all languages; `clients/vectors/mapping.json` holds them equal.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use percent_encoding::percent_decode;
use serde::Deserialize;

use crate::call::{Call, Descriptor};

/// Bounds of a mapping. With [`crate::VALUE_BYTES_MAX`], the largest call has 512 KiB; the service takes
/// 1 MiB.
const DESCRIPTORS_MAX: usize = 16;
const ENTRIES_MAX: usize = 8;
/// Maximum size of a mapping's text in bytes.
const TEXT_BYTES_MAX: usize = 64 * 1024;
const TRUSTED_PROXIES_MAX: usize = 16;
/// Maximum of hits that a header can ask for.
const HITS_MAX: u32 = 1_000_000;
/// Bits by which IPv6 addresses are grouped by default: a customer usually has a network of 64 bits or more.
pub const IPV6_PREFIX: u8 = 64;
/// All bits of an IPv6 address.
const IPV6_PREFIX_MAX: u8 = 128;
const WRONG_PREFIX: &str = "ipv6_prefix: must be 1 to 128";

/// Which descriptors a request has.
#[derive(Clone, Debug)]
pub struct Mapping {
    trusted_proxies: usize,
    ipv6_prefix: u8,
    hits: Hits,
    descriptors: Vec<Template>,
}

#[derive(Clone, Debug)]
enum Hits {
    Fixed(u32),
    Header(HeaderName),
}

#[derive(Clone, Debug)]
struct Template {
    hold: bool,
    entries: Vec<(Bytes, Source)>,
}

#[derive(Clone, Debug)]
enum Source {
    Constant(Bytes),
    Header(HeaderName),
    PathSegment(usize),
    PathPrefix(Bytes),
    Method,
    ClientAddress,
}

/// The parts of a request that a mapping reads.
#[derive(Clone, Copy, Debug)]
pub struct RequestParts<'a> {
    /// Method, such as `GET`.
    pub method: &'a str,
    /// Path as sent, without the query.
    pub path: &'a str,
    /// Headers.
    pub headers: &'a HeaderMap,
    /// Address of the other end of the connection, if it is known.
    pub peer: Option<IpAddr>,
}

/// Address of the other end of the connection, as a request extension. Insert it if the server provides
/// neither axum's `ConnectInfo` nor tonic's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// Error in a mapping, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingError(String);

impl fmt::Display for MappingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mapping: {}", self.0)
    }
}

impl std::error::Error for MappingError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MappingFile {
    #[serde(default)]
    trusted_proxies: usize,
    #[serde(default = "default_prefix")]
    ipv6_prefix: u8,
    hits: Option<u32>,
    hits_header: Option<String>,
    descriptors: Vec<DescriptorFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DescriptorFile {
    #[serde(default)]
    hold: bool,
    entries: Vec<EntryFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryFile {
    key: String,
    value: Option<String>,
    header: Option<String>,
    path_segment: Option<usize>,
    path_prefix: Option<String>,
    #[serde(default)]
    method: bool,
    #[serde(default)]
    client_address: bool,
}

fn default_prefix() -> u8 {
    IPV6_PREFIX
}

impl Mapping {
    /// Reads a mapping from JSON.
    ///
    /// # Errors
    ///
    /// Returns what is wrong with it, and where.
    pub fn from_json(text: &str) -> Result<Mapping, MappingError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(MappingError(format!("must have at most {TEXT_BYTES_MAX} bytes")));
        }
        let file: MappingFile =
            serde_json::from_str(text).map_err(|error| MappingError(error.to_string()))?;
        file.compile().map_err(MappingError)
    }

    /// The call for a request. A descriptor whose value is missing is left out, as in Envoy; a call without
    /// descriptors passes.
    pub fn call(&self, request: &RequestParts<'_>) -> Call {
        let address = self.client_address(request);
        let descriptors = self.descriptors.iter().filter_map(|template| {
            let mut descriptor = Descriptor { hold: template.hold, ..Descriptor::default() };
            for (key, source) in &template.entries {
                descriptor.push(key.clone(), source.value(request, address.as_ref())?);
            }
            Some(descriptor)
        });
        Call::new(descriptors).hits(self.hits.of(request.headers))
    }

    /// The address from `X-Forwarded-For` that the outermost trusted proxy saw, otherwise that of the
    /// connection.
    fn client_address(&self, request: &RequestParts<'_>) -> Option<Bytes> {
        let forwarded = self.trusted_proxies.checked_sub(1).and_then(|skip| {
            let lists = request.headers.get_all("x-forwarded-for").iter();
            let lists: Vec<&[u8]> = lists.map(http::HeaderValue::as_bytes).collect();
            let mut addresses = lists.iter().rev().flat_map(|it| it.rsplit(|&byte| byte == b','));
            parse_address(addresses.nth(skip)?)
        });
        let address = forwarded.or(request.peer)?;
        Some(Bytes::from(network_text(address, self.ipv6_prefix)))
    }
}

/// Returns the entry for a caller's address, such as `("remote_address", "2001:db8::/64")`.
///
/// An IPv6 address is cut to `ipv6_prefix` bits, usually [`IPV6_PREFIX`], because a caller can usually choose among
/// those of its network. An IPv4 address is kept whole, even when it is written as IPv6.
///
/// # Errors
///
/// Returns an error if the prefix is not 1 to 128.
pub fn address_entry(
    key: &str,
    address: IpAddr,
    ipv6_prefix: u8,
) -> Result<(String, String), MappingError> {
    if !(1..=IPV6_PREFIX_MAX).contains(&ipv6_prefix) {
        return Err(MappingError(WRONG_PREFIX.to_owned()));
    }
    Ok((key.to_owned(), network_text(address, ipv6_prefix)))
}

fn network_text(address: IpAddr, ipv6_prefix: u8) -> String {
    match address.to_canonical() {
        IpAddr::V6(address) if ipv6_prefix < IPV6_PREFIX_MAX => {
            let mask = !(u128::MAX.checked_shr(ipv6_prefix.into()).unwrap_or(0));
            let network = Ipv6Addr::from_bits(address.to_bits() & mask);
            format!("{network}/{ipv6_prefix}")
        }
        address => address.to_string(),
    }
}

impl Hits {
    /// Without a number in the header, one hit: the request is counted all the same.
    fn of(&self, headers: &HeaderMap) -> u32 {
        match self {
            Hits::Fixed(hits) => *hits,
            Hits::Header(name) => {
                let text =
                    headers.get(name).map(|it| it.as_bytes().trim_ascii()).unwrap_or_default();
                if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
                    return 1;
                }
                let text = std::str::from_utf8(text).unwrap_or_default();
                text.parse().unwrap_or(HITS_MAX).clamp(1, HITS_MAX)
            }
        }
    }
}

impl Source {
    fn value(&self, request: &RequestParts<'_>, address: Option<&Bytes>) -> Option<Bytes> {
        match self {
            Source::Constant(value) => Some(value.clone()),
            // Of several headers the first, as in Envoy.
            Source::Header(name) => {
                let value = request.headers.get(name)?.as_bytes().trim_ascii();
                Some(Bytes::copy_from_slice(value))
            }
            Source::PathSegment(index) => {
                let path: Vec<u8> = percent_decode(request.path.as_bytes()).collect();
                let mut segments = path.split(|&byte| byte == b'/').filter(|it| !it.is_empty());
                segments.nth(*index).map(Bytes::copy_from_slice)
            }
            Source::PathPrefix(prefix) => {
                let path: Vec<u8> = percent_decode(request.path.as_bytes()).collect();
                let rest = path.strip_prefix(&prefix[..])?;
                let whole = rest.is_empty() || rest.starts_with(b"/") || prefix.ends_with(b"/");
                whole.then(|| prefix.clone())
            }
            Source::Method => Some(Bytes::copy_from_slice(request.method.as_bytes())),
            Source::ClientAddress => address.cloned(),
        }
    }
}

/// An address as in `X-Forwarded-For`, with or without a port.
fn parse_address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let with_port = || text.parse::<SocketAddr>().ok().map(|it| it.ip());
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    text.parse().ok().or_else(with_port).or_else(in_brackets)
}

impl MappingFile {
    fn compile(self) -> Result<Mapping, String> {
        if self.trusted_proxies > TRUSTED_PROXIES_MAX {
            return Err(format!("trusted_proxies: must be at most {TRUSTED_PROXIES_MAX}"));
        }
        if !(1..=IPV6_PREFIX_MAX).contains(&self.ipv6_prefix) {
            return Err(WRONG_PREFIX.to_owned());
        }
        let hits = match (self.hits, self.hits_header) {
            (Some(_), Some(_)) => {
                return Err("hits and hits_header cannot be combined: remove one".to_owned());
            }
            (Some(hits), None) if (1..=HITS_MAX).contains(&hits) => Hits::Fixed(hits),
            (Some(_), None) => return Err(format!("hits: must be 1 to {HITS_MAX}")),
            (None, Some(name)) => Hits::Header(header_name(&name, "hits_header")?),
            (None, None) => Hits::Fixed(1),
        };
        let count = self.descriptors.len();
        if !(1..=DESCRIPTORS_MAX).contains(&count) {
            return Err(format!("descriptors: must be a list of 1 to {DESCRIPTORS_MAX}"));
        }
        let templates = self.descriptors.into_iter().enumerate();
        let descriptors = templates
            .map(|(index, it)| it.compile(&format!("descriptors[{index}]")))
            .collect::<Result<_, _>>()?;
        let (trusted_proxies, ipv6_prefix) = (self.trusted_proxies, self.ipv6_prefix);
        Ok(Mapping { trusted_proxies, ipv6_prefix, hits, descriptors })
    }
}

impl DescriptorFile {
    fn compile(self, place: &str) -> Result<Template, String> {
        if !(1..=ENTRIES_MAX).contains(&self.entries.len()) {
            return Err(format!("{place}.entries: must be a list of 1 to {ENTRIES_MAX}"));
        }
        let entries = self.entries.into_iter().enumerate();
        let entries = entries
            .map(|(index, it)| it.compile(&format!("{place}.entries[{index}]")))
            .collect::<Result<_, _>>()?;
        Ok(Template { hold: self.hold, entries })
    }
}

impl EntryFile {
    fn compile(self, place: &str) -> Result<(Bytes, Source), String> {
        if self.key.is_empty() {
            return Err(format!("{place}.key: must not be empty"));
        }
        let mut sources = Vec::new();
        sources.extend(self.value.map(|it| Source::Constant(Bytes::from(it))));
        if let Some(name) = self.header {
            sources.push(Source::Header(header_name(&name, &format!("{place}.header"))?));
        }
        sources.extend(self.path_segment.map(Source::PathSegment));
        if let Some(prefix) = self.path_prefix {
            if !prefix.starts_with('/') {
                return Err(format!("{place}.path_prefix: must start with /"));
            }
            sources.push(Source::PathPrefix(Bytes::from(prefix)));
        }
        sources.extend(self.method.then_some(Source::Method));
        sources.extend(self.client_address.then_some(Source::ClientAddress));
        match (sources.pop(), sources.is_empty()) {
            (Some(source), true) => Ok((Bytes::from(self.key), source)),
            _ => Err(format!(
                "{place}: must have exactly one of value, header, path_segment, path_prefix, method, client_address"
            )),
        }
    }
}

fn header_name(name: &str, place: &str) -> Result<HeaderName, String> {
    HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("{place}: {name:?} is not the name of a header"))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::Value;

    use super::*;

    /// In the vectors, each character is one byte.
    fn bytes(text: &Value) -> Vec<u8> {
        text.as_str().unwrap().chars().map(|it| u8::try_from(u32::from(it)).unwrap()).collect()
    }

    #[test]
    fn descriptors_are_those_of_the_shared_vectors() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../vectors/mapping.json")).unwrap();
        let cases = vectors["requests"].as_array().unwrap();
        assert!(cases.len() >= 20);
        for case in cases {
            let mapping = Mapping::from_json(&case["mapping"].to_string()).unwrap();
            let mut headers = HeaderMap::new();
            for pair in case["headers"].as_array().unwrap() {
                let name = HeaderName::from_bytes(&bytes(&pair[0])).unwrap();
                headers.append(name, HeaderValue::from_bytes(&bytes(&pair[1])).unwrap());
            }
            let call = mapping.call(&RequestParts {
                method: case["method"].as_str().unwrap(),
                path: case["path"].as_str().unwrap(),
                headers: &headers,
                peer: case["peer"].as_str().map(|it| it.parse().unwrap()),
            });
            let expected: Vec<Vec<(Vec<u8>, Vec<u8>)>> = case["descriptors"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it.as_array().unwrap().iter().map(|it| (bytes(&it[0]), bytes(&it[1]))))
                .map(Iterator::collect)
                .collect();
            let found: Vec<Vec<(Vec<u8>, Vec<u8>)>> = call
                .descriptors()
                .iter()
                .map(|it| it.entries().map(|(key, value)| (key.to_vec(), value.to_vec())))
                .map(Iterator::collect)
                .collect();
            assert_eq!(found, expected, "{}", case["name"]);
            assert_eq!(
                u64::from(call.hits),
                case["hits"].as_u64().unwrap_or(1),
                "{}",
                case["name"]
            );
        }
    }

    #[test]
    fn mistakes_are_those_of_the_shared_vectors() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../vectors/mapping.json")).unwrap();
        let cases = vectors["mistakes"].as_array().unwrap();
        assert!(cases.len() >= 10);
        for case in cases {
            let error = Mapping::from_json(&case["mapping"].to_string()).expect_err("a mistake");
            let place = case["says"].as_str().unwrap();
            assert!(error.to_string().contains(place), "{error} for {case}");
        }
    }

    #[test]
    fn entries_of_addresses_are_those_of_the_shared_vectors() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../vectors/caller_address.json")).unwrap();
        let entry = |case: &Value| {
            let prefix =
                case["ipv6_prefix"].as_u64().map_or(IPV6_PREFIX, |it| it.try_into().unwrap());
            address_entry("ip", case["address"].as_str().unwrap().parse().unwrap(), prefix)
        };
        let cases = vectors["entries"].as_array().unwrap();
        assert!(cases.len() >= 10);
        for case in cases {
            let expected = ("ip".to_owned(), case["value"].as_str().unwrap().to_owned());
            assert_eq!(entry(case), Ok(expected), "{}", case["name"]);
        }
        for case in vectors["mistakes"].as_array().unwrap() {
            let error = entry(case).unwrap_err().to_string();
            assert!(error.contains(case["says"].as_str().unwrap()), "{error} for {case}");
        }
    }

    #[test]
    fn a_long_value_is_cut_and_still_counted() {
        let mapping = Mapping::from_json(
            r#"{"descriptors": [{"entries": [{"key": "t", "header": "x-t"}]}]}"#,
        );
        let long = HeaderValue::from_str(&"x".repeat(crate::VALUE_BYTES_MAX + 1)).unwrap();
        let headers = HeaderMap::from_iter([(HeaderName::from_static("x-t"), long)]);
        let request = RequestParts { method: "GET", path: "/", headers: &headers, peer: None };
        let call = mapping.unwrap().call(&request);
        let (_, value) = call.descriptors()[0].entries().next().unwrap();
        assert_eq!(value.len(), crate::VALUE_BYTES_MAX);
    }
}
