//! Reads `http`, which configures how `/authz` builds descriptors from the requests that a proxy
//! sends.
//!
//! Not here: building the descriptors (`wire::forward_auth`).

use crate::policy::compiled_policy::{HttpEntry, HttpMapping, HttpSource};
use crate::policy::diagnostic::{DiagnosticKind, Target};
use crate::policy::syntax::keywords::{
    HTTP_DESCRIPTORS, HTTP_EMPTY_SEGMENTS, HTTP_ENTRIES, HTTP_HEADER, HTTP_IPV6_PREFIX, HTTP_KEY,
    HTTP_REQUEST, HTTP_TRUSTED_HOPS, HTTP_VALUE, Key,
};
use crate::policy::syntax::reader::{ErrorReported, Reader};

/// Maximum number of descriptors that an `http` mapping builds. All of them are matched for every
/// request.
pub(crate) const HTTP_DESCRIPTORS_MAX: usize = 16;

/// Maximum number of entries per descriptor of an `http` mapping. With 16 descriptors of 16
/// entries, the resulting call can exceed its default maximum size of 1 MiB only if an entry takes
/// more than about 4 KiB.
pub(crate) const HTTP_ENTRIES_MAX: usize = 16;

/// Reads the `http` mapping of a domain.
pub(crate) fn read(reader: &mut Reader<'_>) -> Result<HttpMapping, ErrorReported> {
    let default = HttpMapping::default();
    let trusted_hops = reader.read_number(&HTTP_TRUSTED_HOPS);
    let ipv6_prefix = reader.read_number(&HTTP_IPV6_PREFIX);
    let empty_segments = reader.read_word(&HTTP_EMPTY_SEGMENTS);
    let descriptors = read_list(reader, &HTTP_DESCRIPTORS, HTTP_DESCRIPTORS_MAX, |reader| {
        let entries = read_list(reader, &HTTP_ENTRIES, HTTP_ENTRIES_MAX, read_entry)?;
        Ok(entries.into_boxed_slice())
    });
    let narrow = |number: Option<u64>| number.and_then(|number| u32::try_from(number).ok());
    Ok(HttpMapping {
        trusted_hops: narrow(trusted_hops?).map_or(default.trusted_hops, |hops| hops as usize),
        ipv6_prefix: narrow(ipv6_prefix?).unwrap_or(default.ipv6_prefix),
        empty_segments: empty_segments?.unwrap_or(default.empty_segments),
        descriptors: descriptors?.into(),
    })
}

/// Reads a list of maps, and reads each map with `read`. Reports an error if the list is empty or
/// has more than `most` maps.
fn read_list<T>(
    reader: &mut Reader<'_>,
    key: &Key,
    most: usize,
    read: impl Fn(&mut Reader<'_>) -> Result<T, ErrorReported>,
) -> Result<Vec<T>, ErrorReported> {
    let items = reader.for_each(key, |reader, _| read(reader))?;
    let items = items.unwrap_or_default();
    if items.len() > most {
        let (name, count) = (key.name, items.len());
        let message = format!("`{name}` must have at most {most} items, not {count}; remove some");
        return Err(reader.report_key(key, DiagnosticKind::TooLarge, message));
    }
    if items.is_empty() {
        let message = format!("`{}` must have at least one item", key.name);
        let kind = DiagnosticKind::Missing;
        return Err(match reader.contains_key(key) {
            true => reader.report_key(key, kind, message),
            false => reader.report(Target::Key, kind, message),
        });
    }
    Ok(items)
}

fn read_entry(reader: &mut Reader<'_>) -> Result<HttpEntry, ErrorReported> {
    let key = reader.read_string(&HTTP_KEY);
    let header = read_header(reader);
    let request = reader.read_word(&HTTP_REQUEST);
    let value = reader.read_string(&HTTP_VALUE);
    let key = key?.filter(|key| !key.is_empty());
    let (header, request, value) = (header?, request?, value?);
    let message = "an entry must have `key`, the key of the descriptor's entry; add it";
    let key = reader.require(key, Target::Value, message)?;
    let request = request.map(HttpSource::Request);
    let value = value.map(|text| HttpSource::Value(text.into()));
    let mut sources = [header, request, value].into_iter().flatten();
    match (sources.next(), sources.next()) {
        (Some(source), None) => Ok(HttpEntry { key: key.into(), source }),
        _ => {
            let message = "an entry must have exactly one of `header`, `request`, and `value`";
            Err(reader.report(Target::Value, DiagnosticKind::BadValue, message))
        }
    }
}

fn read_header(reader: &mut Reader<'_>) -> Result<Option<HttpSource>, ErrorReported> {
    let Some(name) = reader.read_string(&HTTP_HEADER)? else { return Ok(None) };
    // The characters of a header name (RFC 9110).
    let legal = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || !name.chars().all(legal) {
        let message = "`header` must be the name of an HTTP header, such as x-tenant";
        return Err(reader.report_key(&HTTP_HEADER, DiagnosticKind::BadValue, message));
    }
    Ok(Some(HttpSource::Header(name.to_ascii_lowercase().into())))
}
