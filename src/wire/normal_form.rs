//! Normal form of the path and the host of an HTTP request (RFC 3986, section 6.2), with what
//! browsers and common servers make of a path beyond it. Every spelling of a resource then meets
//! the same limit.
//!
//! Not here: which header has the path or the host (`forward_auth`).

use std::net::{IpAddr, Ipv6Addr};

use crate::policy::compiled_policy::EmptySegments;

/// Escape of NUL. Servers written in C end the path there.
const NUL_ESCAPE: &[u8] = b"%00";

/// Parts at the end of a host that do not change which server answers. The scheme is unknown, so
/// the default ports of both schemes are left out.
const HOST_ENDS: [&[u8]; 4] = [b":80", b":443", b":", b"."];

/// Returns the normal form of the path in a request target, without the query.
///
/// - Escapes of unreserved characters are decoded. Bytes that a path must escape are escaped, with
///   digits in upper case. `%2F` stays: it is not a separator.
/// - `\` is `/`, as in browsers. Parameters (`;` to the end of a segment) are removed, as Java
///   servers do, and everything from `%00` on.
/// - The segments `.` and `..` are resolved, and empty ones are treated as `empty` says.
pub(super) fn normalize_path(target: &[u8], empty: EmptySegments) -> Vec<u8> {
    let target = target.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or_default();
    let path = decode_unreserved(strip_origin(target));
    let end = path.windows(NUL_ESCAPE.len()).position(|at| at == NUL_ESCAPE);
    let path = &path[..end.unwrap_or(path.len())];
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut ends_in_slash = false;
    for segment in path.strip_prefix(b"/").unwrap_or(path).split(|byte| *byte == b'/') {
        let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        ends_in_slash = true;
        match name {
            b"." => {}
            b".." => drop(segments.pop()),
            b"" if empty != EmptySegments::Keep => {}
            name => {
                segments.push(name);
                ends_in_slash = false;
            }
        }
    }
    if segments.is_empty() || ends_in_slash && empty != EmptySegments::Remove {
        segments.push(b"");
    }
    segments.iter().flat_map(|segment| [b"/", *segment]).flatten().copied().collect()
}

/// Removes the scheme and the authority of a target in absolute form (RFC 9112, section 3.2.2).
fn strip_origin(target: &[u8]) -> &[u8] {
    let scheme = target.windows(3).position(|at| at == b"://");
    let Some(scheme) = scheme.filter(|_| !target.starts_with(b"/")) else { return target };
    let authority = &target[scheme + 3..];
    let path = authority.iter().position(|byte| *byte == b'/').unwrap_or(authority.len());
    &authority[path..]
}

/// Decodes the escapes of unreserved characters once, and escapes what a path must not contain,
/// such as a `%` that begins no escape.
fn decode_unreserved(path: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, after @ ..] = rest {
        let escaped = escaped_byte(rest);
        rest = if escaped.is_some() { &rest[NUL_ESCAPE.len()..] } else { after };
        let byte = escaped.unwrap_or(if *first == b'\\' { b'/' } else { *first });
        let is_unreserved = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if is_unreserved || escaped.is_none() && b"/:@!$&'()*+,;=".contains(&byte) {
            decoded.push(byte);
        } else {
            decoded.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
    decoded
}

/// Returns the byte of the escape, such as `%2F`, at the start of `text`.
fn escaped_byte(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else { return None };
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

/// Returns a host in lower case, without a default port and without the dot of the root domain.
pub(super) fn normalize_host(host: &[u8]) -> Vec<u8> {
    let lower = host.to_ascii_lowercase();
    let mut name = lower.trim_ascii();
    while let Some(shorter) = HOST_ENDS.iter().find_map(|end| name.strip_suffix(*end)) {
        name = shorter.trim_ascii_end();
    }
    name.to_vec()
}

/// Returns an address as text. IPv6 addresses are cut to `ipv6_prefix` bits, such as
/// `2001:db8::/64`, because a client can usually choose among those of its network.
pub(super) fn group_address(address: IpAddr, ipv6_prefix: u32) -> String {
    match address {
        IpAddr::V6(address) if ipv6_prefix < u128::BITS => {
            let mask = u128::MAX.checked_shl(u128::BITS - ipv6_prefix).unwrap_or(0);
            format!("{}/{ipv6_prefix}", Ipv6Addr::from(u128::from(address) & mask))
        }
        IpAddr::V4(_) | IpAddr::V6(_) => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use EmptySegments::{Keep, Merge, Remove};

    fn path(target: &str, empty: EmptySegments) -> String {
        String::from_utf8(normalize_path(target.as_bytes(), empty)).unwrap()
    }

    #[test]
    fn every_spelling_of_a_path_has_one_normal_form() {
        for spelling in [
            "/login",
            "/a/../login",
            "/login;x",
            "/login%00",
            "/./login",
            "//login",
            "/%6cogin",
            "/%6Cogin",
            "/login?next=/",
            "/login#top",
            "/login;a=1;b=2",
            "/;x/login",
            "/a/..;/login",
            "/a/%2e%2E/login",
            "/a/.%2e/login",
            "/../../login",
            "/a/b/../../login",
            "\\login",
            "/a\\..\\login",
            "/login%00.jpg",
            "/login%00/../x",
            "login",
            "http://example.org/login",
            "HTTPS://user@example.org:8443/a/../login?x",
        ] {
            assert_eq!(path(spelling, Merge), "/login", "{spelling}");
        }
    }

    #[test]
    fn other_resources_keep_their_own_path() {
        for (target, normal) in [
            ("/", "/"),
            ("", "/"),
            ("?x", "/"),
            ("http://example.org", "/"),
            ("/..", "/"),
            ("/login/", "/login/"),
            ("/login/.", "/login/"),
            ("/login/a/..", "/login/"),
            ("/LOGIN", "/LOGIN"),
            ("/login%2fx", "/login%2Fx"),
            ("/login%3bx", "/login%3Bx"),
            ("/a b", "/a%20b"),
            ("/a%20b", "/a%20b"),
            ("/\u{e9}{[", "/%C3%A9%7B%5B"),
            ("/100%", "/100%25"),
            ("/%zz%4", "/%25zz%254"),
            ("/%256cogin", "/%256cogin"),
            ("/%%36cogin", "/%256cogin"),
            ("/a:b@c!$&'()*+,=~", "/a:b@c!$&'()*+,=~"),
            ("/...", "/..."),
            ("/a/http://b", "/a/http:/b"),
        ] {
            assert_eq!(path(target, Merge), normal, "{target}");
        }
    }

    #[test]
    fn empty_segments_are_treated_as_the_policy_says() {
        for (target, kept, merged, removed) in [
            ("//a///b", "//a///b", "/a/b", "/a/b"),
            ("/a/", "/a/", "/a/", "/a"),
            ("/a//", "/a//", "/a/", "/a"),
            ("/a/;x/b", "/a//b", "/a/b", "/a/b"),
            ("/a//../b", "/a/b", "/b", "/b"),
            ("/a/.", "/a/", "/a/", "/a"),
            ("//", "//", "/", "/"),
            ("/", "/", "/", "/"),
        ] {
            let normal = [Keep, Merge, Remove].map(|empty| path(target, empty));
            assert_eq!(normal, [kept, merged, removed], "{target}");
        }
    }

    #[test]
    fn every_spelling_of_a_host_has_one_normal_form() {
        let host = |host: &str| String::from_utf8(normalize_host(host.as_bytes())).unwrap();
        for spelling in [
            "example.org",
            "EXAMPLE.org",
            "example.org:80",
            "example.org:443",
            "example.org.",
            "Example.Org.:443",
            "example.org:",
            " example.org ",
        ] {
            assert_eq!(host(spelling), "example.org", "{spelling}");
        }
        let others = ["example.org:8443", "a.example.org", "[2001:db8::1]", "192.0.2.1", ""];
        assert_eq!(others.map(host), others);
        assert_eq!(host("[2001:DB8::1]:443"), "[2001:db8::1]");
    }

    #[test]
    fn ipv6_addresses_are_grouped_by_their_prefix() {
        let grouped = |address: &str, prefix| group_address(address.parse().unwrap(), prefix);
        let address = "2001:db8:1:2:3:4:5:6";
        assert_eq!(grouped(address, 64), "2001:db8:1:2::/64");
        assert_eq!(grouped("2001:db8:1:2:ffff::", 64), "2001:db8:1:2::/64");
        assert_eq!(grouped(address, 56), "2001:db8:1::/56");
        assert_eq!(grouped(address, 128), address);
        assert_eq!(grouped(address, 1), "::/1");
        assert_eq!(grouped(address, 0), "::/0");
        assert_eq!(grouped("192.0.2.1", 64), "192.0.2.1");
    }

    proptest! {
        #[test]
        fn a_normal_form_is_its_own_normal_form(
            bytes in vec(any::<u8>(), 0..40),
            parts in vec(prop::sample::select(vec![
                "/", "//", ".", "..", ";", "%", "%2", "%2e", "%2F", "%00", "%25", "36", "6c", "c", "\\",
                "?", "#", "a", "://", ":80", ":443", ":", " ",
            ]), 0..16),
            empty in prop::sample::select(vec![Keep, Merge, Remove]),
        ) {
            for text in [bytes, parts.concat().into_bytes()] {
                let path = normalize_path(&text, empty);
                prop_assert_eq!(normalize_path(&path, empty), path.clone());
                prop_assert!(path.starts_with(b"/") && path.is_ascii());
                let host = normalize_host(&text);
                prop_assert_eq!(normalize_host(&host), host);
            }
        }
    }
}
