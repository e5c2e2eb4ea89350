//! Parser of the addresses in all settings: of Redis, of the control plane, of OTLP collectors, and of
//! the ports of this process. Also hides what may be secret in an address.
//!
//! Not here: what a setting makes of its address (`redis_settings`, `otlp_settings`, `value_types`).

use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use url::Url;

use super::value_types::{SecretText, ValueError};

/// Stands for text that may be secret.
pub(super) const HIDDEN: &str = "(hidden)";

/// Scheme that [`to_url`] gives to an address without one.
const NO_SCHEME: &str = "none";

/// Schemes without TLS that may be shown. Any other text before `://` may be part of a password.
const PLAIN_SCHEMES: [&str; 11] =
    ["redis", "valkey", "tcp", "http", "grpc", "dns", "xds", "unix", "redis+unix", "ftp", "ws"];
/// Likewise, schemes with TLS.
const TLS_SCHEMES: [&str; 7] = ["rediss", "valkeys", "tls", "ssl", "https", "grpcs", "wss"];

/// Returns advice on characters that are special in an address, for one that may have a password.
fn advice_on_login(text: &str) -> &'static str {
    match text.contains('@') {
        true => {
            "; in a user name or password, write % as %25, / as %2F, ? as %3F, # as %23, a comma as %2C"
        }
        false => "",
    }
}

/// Forms that the address of one kind of server can have.
pub(super) struct UrlForms {
    /// Name of the server.
    pub(super) server: &'static str,
    /// Schemes without and with TLS, to suggest; empty if the address has no scheme.
    pub(super) suggested: [&'static str; 2],
    /// Other supported schemes; an empty text means an address without a scheme.
    pub(super) others: &'static [&'static str],
    /// Valid forms, to suggest.
    pub(super) valid: &'static str,
    /// Checks what only this kind of server demands.
    pub(super) check: fn(&ServerUrl) -> Result<(), ValueError>,
    /// Returns what to write instead of a parameter in the query, of which none is supported, and
    /// the word by which it was recognized.
    pub(super) advice_on: fn(&str) -> Option<(&'static str, &'static str)>,
}

/// Parts of an address, without percent-encoding.
#[derive(Clone, Debug)]
pub struct ServerUrl {
    /// Scheme in lower case; empty if the address has none.
    pub(super) scheme: &'static str,
    /// User name, if any, and password.
    pub login: Option<(Option<String>, SecretText)>,
    /// Host name or IP address, without brackets; empty if the address is a path.
    pub host: String,
    /// Port, unless it is the default of the scheme.
    pub port: Option<u16>,
    /// Path with its leading slash; empty if there is none.
    pub path: String,
}

impl ServerUrl {
    /// Parses an address. The error quotes nothing that may be secret.
    pub(super) fn parse(text: &str, forms: &UrlForms) -> Result<ServerUrl, ValueError> {
        let malformed =
            || format!("is not an address: write {}{}", forms.valid, advice_on_login(text));
        let url = to_url(text).ok_or_else(malformed)?;
        let supported = forms.suggested.iter().chain(forms.others);
        let scheme = known_scheme(&url).filter(|own| supported.into_iter().any(|one| one == own));
        let Some(scheme) = scheme else { return Err(wrong_scheme_error(text, &url, forms)) };
        let path = percent_decode(url.path()).filter(|path| !path.contains('@'));
        let (None, Some(path)) = (url.fragment(), path) else { return Err(malformed()) };
        if url.query().is_some() {
            return Err(query_error(text, &url, forms));
        }
        let login = match (url.username(), url.password()) {
            ("", None) => None,
            (_, None) => return Err("write credentials as USER:PASSWORD@ or :PASSWORD@".to_owned()),
            (user, Some(password)) => {
                let decoded = |text: &str| percent_decode(text).ok_or_else(malformed);
                let user = Some(decoded(user)?).filter(|user| !user.is_empty());
                Some((user, SecretText::from(decoded(password)?.as_str())))
            }
        };
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let parsed = ServerUrl { scheme, login, host: host.to_owned(), port: url.port(), path };
        (forms.check)(&parsed).map(|()| parsed)
    }

    /// Returns whether the scheme means TLS.
    pub(super) fn uses_tls(&self) -> bool {
        TLS_SCHEMES.contains(&self.scheme)
    }
}

/// Parses an address as a URL. Returns `None` if it is malformed.
fn to_url(text: &str) -> Option<Url> {
    let url = match text {
        path if path.starts_with('/') => Url::parse(&format!("unix://{path}")),
        url if url.contains("://") => Url::parse(url),
        host => Url::parse(&format!("{NO_SCHEME}://{host}")),
    };
    let url = url.ok().filter(|url| !url.cannot_be_a_base())?;
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    url.host_str().unwrap_or_default().bytes().all(is_name_byte).then_some(url)
}

/// Returns the scheme; empty if there is none. Returns `None` if it may be part of a password.
fn known_scheme(url: &Url) -> Option<&'static str> {
    let mut known = PLAIN_SCHEMES.iter().chain(&TLS_SCHEMES);
    match url.scheme() {
        NO_SCHEME => Some(""),
        scheme => known.find(|known| **known == scheme).copied(),
    }
}

/// Decodes percent-encoded text. Returns `None` if a `%` does not begin a code, or if the result is
/// not UTF-8.
pub(super) fn percent_decode(text: &str) -> Option<String> {
    let is_code = |rest: &str| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    let decoded = percent_decode_str(text).decode_utf8().ok()?;
    text.split('%').skip(1).all(is_code).then(|| decoded.into_owned())
}

fn wrong_scheme_error(text: &str, url: &Url, forms: &UrlForms) -> ValueError {
    let UrlForms { server, suggested: [plain, tls], valid, .. } = forms;
    let uses_tls = TLS_SCHEMES.contains(&url.scheme()) || url.port() == Some(443);
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let corrected = match if uses_tls { tls } else { plain } {
        &"" => rest.to_owned(),
        scheme => format!("{scheme}://{rest}"),
    };
    // The same text would be corrected without end. In a path, `://` may be part of a password.
    let is_correctable = corrected != text && !text.starts_with('/');
    let is_valid = is_correctable && ServerUrl::parse(&corrected, forms).is_ok();
    let hint = match is_valid {
        true => format!("; did you mean {}?", hide_secrets(&corrected)),
        false => ".".to_owned(),
    };
    match known_scheme(url) {
        Some("") => format!("has no scheme{hint} Write {valid}"),
        Some(scheme) => format!("{scheme}:// is not {server}{hint} Write {valid}"),
        None => format!("has an unknown scheme. Write {valid}"),
    }
}

fn query_error(text: &str, url: &Url, forms: &UrlForms) -> ValueError {
    match url.query_pairs().find_map(|(name, _)| (forms.advice_on)(&name)) {
        Some((word, advice)) => format!("`{word}` in the query is not supported: {advice}"),
        // Its names may be part of a password.
        None => format!("a query (`?…`) is not supported: remove it{}", advice_on_login(text)),
    }
}

/// Returns an address, or a list of them, with `(hidden)` instead of what may be secret: user name,
/// password, query, and the whole text if it is malformed.
pub(super) fn hide_secrets(addresses: &str) -> String {
    let shown: Option<Vec<String>> = addresses.split(',').map(hide_in_address).collect();
    match shown {
        // A comma in a password or a query splits it, and its parts may look like addresses.
        Some(shown) if shown.len() == 1 || !addresses.contains(['@', '?', '#']) => shown.join(","),
        Some(_) | None => HIDDEN.to_owned(),
    }
}

/// Returns an address without its secrets; `None` if it is not clear which text is secret.
fn hide_in_address(text: &str) -> Option<String> {
    let trimmed = text.trim();
    let is_port = || trimmed.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    if trimmed.is_empty() || is_port() || trimmed.parse::<IpAddr>().is_ok() {
        return Some(text.to_owned());
    }
    let url = to_url(trimmed)?;
    // Within a password, `/`, `?`, and `#` look like the end of the host.
    let after_host = [Some(url.path()), url.query(), url.fragment()];
    if after_host.iter().flatten().any(|text| text.contains(['@', '%'])) {
        return None;
    }
    let has_login = trimmed.contains('@');
    let has_query = url.query().or(url.fragment()).is_some();
    if !has_login && !has_query {
        return Some(text.to_owned());
    }
    let scheme = match known_scheme(&url)? {
        "" => "",
        _ if trimmed.starts_with('/') => "",
        scheme => &format!("{scheme}://"),
    };
    let login = if has_login { "(hidden)@" } else { "" };
    let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
    let query = if has_query { "?(hidden)" } else { "" };
    let (host, path) = (url.host_str().unwrap_or_default(), url.path());
    Some(format!("{scheme}{login}{host}{port}{path}{query}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_secret_in_an_address_is_hidden() {
        for (address, shown) in [
            ("", ""),
            ("h:1", "h:1"),
            (":9090", ":9090"),
            ("::1", "::1"),
            ("a:1, b:2", "a:1, b:2"),
            ("redis://[::1]", "redis://[::1]"),
            ("dns:///h:1", "dns:///h:1"),
            ("unix:///run/a:b.sock", "unix:///run/a:b.sock"),
            ("redis://ann:pa@ss@h:1/3", "redis://(hidden)@h:1/3"),
            ("REDISS://:secret@h:1", "rediss://(hidden)@h:1"),
            ("secret@h:1", "(hidden)@h:1"),
            ("redis://h?password=X", "redis://h?(hidden)"),
            ("unix:///s?pass=X", "unix:///s?(hidden)"),
            ("/s?pass=X", "/s?(hidden)"),
            ("http://h/v1#secret", "http://h/v1?(hidden)"),
        ] {
            assert_eq!(hide_secrets(address), shown, "{address}");
        }
        for unclear in [
            "secret@h:1/2@x",
            "redis://ann:12/secret@h:1",
            "redis://ann:12?secret@h:1",
            "redis://ann:12#secret@h:1",
            "redis://ann:12/secret%40h:1",
            "redis://ann:secret",
            "redis://ann:22,22@h:1",
            "redis://:a@h:1,redis://:b@h:2",
            "ann:secret@h{x://y",
            "secret://ann@h:1",
            "secret!://ann@h:1",
            "unix://ann:secret@/run/s",
        ] {
            assert_eq!(hide_secrets(unclear), HIDDEN, "{unclear}");
        }
    }

    #[test]
    fn percent_encoded_text_is_decoded_once_or_rejected() {
        for (text, decoded) in
            [("a%2Cb", Some("a,b")), ("%252F", Some("%2F")), ("%C3%A9", Some("é")), ("", Some(""))]
        {
            assert_eq!(percent_decode(text).as_deref(), decoded, "{text}");
        }
        for bad in ["%zz", "%f", "a%", "%+1", "%FF"] {
            assert_eq!(percent_decode(bad), None, "{bad}");
        }
    }
}
