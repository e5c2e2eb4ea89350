//! YAML as people have it: numbers as Helm writes them, templates that nobody filled in, keys of other
//! programs, and values that no request has.

use tidegate::policy::DiagnosticKind;
use tidegate::policy::compiled_policy::ValueSpec;

use super::compile_helpers::{bad, good, one, rate_limit};

const LIMIT: &str = "rate_limit: {unit: second, requests_per_unit: 5}";

/// A policy with one descriptor that has a limit.
fn descriptor(text: &str) -> String {
    format!("domain: edge\ndescriptors:\n  - {{{text}, {LIMIT}}}\n")
}

/// The errors of a text, each as `line:column: message`.
fn errors(text: &str) -> Vec<String> {
    bad(text).iter().map(|e| format!("{}:{}: {}", e.line, e.column, e.message)).collect()
}

/// The messages of the warnings and notes of a kind.
fn found(text: &str, kind: DiagnosticKind) -> Vec<String> {
    let compiled = good(text);
    let all = compiled.warnings.iter().chain(&compiled.notes);
    all.filter(|found| found.kind == kind).map(|found| found.message.clone()).collect()
}

#[test]
fn a_whole_number_may_be_written_as_a_float() {
    let requests = |text: &str| {
        let compiled = one(rate_limit(&format!("unit: second, requests_per_unit: {text}")));
        let rule =
            compiled.map(|mut policy| policy.domains.remove(0).nodes.remove(0).rule.unwrap());
        rule.map(|rule| rule.limits[0].limit.rate.requests_per_unit)
            .map_err(|errors| errors.0[0].message.clone())
    };
    for (text, number) in [
        ("1e+06", 1_000_000),
        ("1E3", 1_000),
        ("1.5e1", 15),
        ("10.0", 10),
        ("1_000.0", 1_000),
        ("0.0", 0),
        ("-0.0", 0),
        ("!!float 5", 5),
        ("4.294967295e9", u32::MAX),
    ] {
        assert_eq!(requests(text), Ok(number), "{text}");
    }
    for (text, message) in [
        ("1.5", "must be a whole number, not 1.5"),
        ("1e-3", "must be a whole number, not 1e-3"),
        (".inf", "must be a whole number, not .inf"),
        (".nan", "must be a whole number, not .nan"),
        ("08", "must be a whole number, not 08; a leading 0 means octal, so remove it"),
        ("-09", "must be a whole number, not -09; a leading 0 means octal, so remove it"),
        ("1e999", "must be a whole number, not 1e999"),
        ("'10.0'", "must be a whole number, not \"10.0\""),
        ("-1e3", "must be at least 0, not -1e3"),
        ("1e+10", "must be at most 4294967295, not 1e+10"),
    ] {
        let error = requests(text).unwrap_err();
        assert!(error.contains(message), "{text}: {error}");
    }
    let other = "unit: day, unit_multiplier: 2.0, requests_per_unit: 5, algorithm: token_bucket, \
                 burst: 1e2, cost: 3.0";
    let limit = good(rate_limit(other)).domains[0].nodes[0].rule.clone().unwrap().limits[0].clone();
    assert_eq!(
        (limit.limit.rate.unit_multiplier, limit.limit.capacity().0, limit.cost),
        (2, 100, 3)
    );
}

#[test]
fn text_that_looks_like_a_number_keeps_its_spelling() {
    for text in [
        "1.10",
        "1.0",
        "1e3",
        ".5",
        "-1.50",
        ".inf",
        "9223372036854775808",
        "-9223372036854775809",
        "123456789012345678901234567890",
    ] {
        let node = &good(descriptor(&format!("key: {text}, value: {text}"))).domains[0].nodes[0];
        assert_eq!((&*node.key, &node.value), (text, &ValueSpec::Exact(text.into())));
        let names = format!("domain: {text}\nhash_tag: [{text}]\n");
        let domain = &good(names).domains[0];
        assert_eq!((&*domain.name, &*domain.hash_tag[0]), (text, text));
    }
}

#[test]
fn a_document_without_content_does_not_count() {
    let policy = "domain: edge\ndescriptors: [{key: a}]\n";
    for text in [
        format!("{policy}---\n"),
        format!("{policy}---"),
        format!("{policy}---\n---\n# Source: limits/templates/empty.yaml\n"),
        format!("{policy}...\n---\n...\n"),
        format!("{policy}--- # nothing\n~\n"),
        format!("---\n---\n{policy}"),
        format!("---\n# Source: limits/templates/edge.yaml\n{policy}---\n"),
        format!("null\n---\n{policy}"),
    ] {
        assert_eq!(good(&text).domains[0].nodes.len(), 1, "{text}");
    }
    let second = "a second YAML document begins here, and a policy file must have exactly one; move \
                  it to its own file";
    for (text, place) in [
        (format!("{policy}---\ndomain: b\n"), "3:1"),
        (format!("{policy}---\n---\ndomain: b\n"), "4:1"),
        (format!("---\n---\n{policy}--- {{domain: b}}\n"), "5:1"),
        (format!("{policy}---\n''\n"), "3:1"),
        (format!("{policy}---\n[\n"), "3:1"),
    ] {
        assert_eq!(errors(&text), [format!("{place}: {second}")], "{text}");
    }
    assert!(errors("---\n---\n# nothing\n---\n")[0].contains("the file has no content"));
}

#[test]
fn keys_of_a_control_planes_resource_are_named_so() {
    let resource = "\
'@type': type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig
name: edge
domain: edge
descriptors: [{key: a, rateLimit: {unit: MINUTE, requestsPerUnit: 5}, shadowMode: true}]
";
    let expected = [
        "1:1: `@type` is the xDS resource's type, which a policy does not have; delete it",
        "2:1: `name` is the xDS resource's name, which a policy does not have; delete it",
        "4:24: unknown key \"rateLimit\"; did you mean `rate_limit`?",
        "4:50: unknown key \"requestsPerUnit\"; did you mean `requests_per_unit`?",
        "4:71: unknown key \"shadowMode\"; did you mean `shadow_mode`?",
    ];
    assert_eq!(errors(resource), expected);
}

#[test]
fn a_list_instead_of_a_map_gets_the_way_out() {
    let list = "[{unit: second, requests_per_unit: 5}]";
    for (text, message) in [
        (
            format!("descriptors: [{{key: a, rate_limit: {list}}}]"),
            "`rate_limit` must be a map of keys, not a list; remove the `- `, or write `rate_limits:` for a list of \
             limits, each with a `name`",
        ),
        (
            "descriptors: [{key: a, rate_limit: []}]".to_owned(),
            "`rate_limit` must be a map of keys, not a list; remove the `- `, or write `rate_limits:`",
        ),
        (
            format!("descriptors: [{{key: a, rate_limits: [{list}]}}]"),
            "`rate_limit` must be a map of keys, not a list",
        ),
        (
            "body: [{text: x}]".to_owned(),
            "`body` must be a map of keys, not a list; remove the `- `",
        ),
        ("http: [{}]".to_owned(), "`http` must be a map of keys, not a list; remove the `- `"),
        (
            "descriptors: [[{key: a}]]".to_owned(),
            "the descriptor must be a map of keys, not a list; remove the `- `",
        ),
        ("descriptors: [a]".to_owned(), "the descriptor must be a map of keys, not text"),
    ] {
        let errors = errors(&format!("domain: edge\n{text}\n"));
        assert!(errors.len() == 1 && errors[0].contains(message), "{text}: {errors:?}");
    }
    let top = errors("- domain: edge\n");
    assert!(
        top[0].contains("the top level of the file must be a map of keys, not a list"),
        "{top:?}"
    );
}

#[test]
fn a_template_that_was_not_filled_in_is_named_so() {
    let edge = |text: &str| format!("domain: edge\n{text}\n");
    for text in [
        rate_limit("unit: second, requests_per_unit: \"${LIMIT}\""),
        rate_limit("unit: '{{ .unit }}', requests_per_unit: 5"),
        rate_limit("unit: second, requests_per_unit: 5, name: '{{ .Values.name }}'"),
        rate_limit("unit: second, requests_per_unit: {{ .Values.limit }}"),
        rate_limit("unit: second, requests_per_unit: '{{ .Values.limit | default 5 }}'"),
        rate_limit("unit: second, requests_per_unit: <no value>"),
        rate_limit("unit: second, requests_per_unit: '%!d(string=5)'"),
        rate_limit("unit: second, requests_per_unit: '%!s(<nil>)'"),
        rate_limit("unit: second, requests_per_unit: '<%= limit %>'"),
        rate_limit("unit: second, requests_per_unit: ${LIMIT}"),
        "domain: ${DOMAIN}\n".to_owned(),
        "domain: {{ .Values.domain }}\n".to_owned(),
        "domain: '{% if a %}'\n".to_owned(),
        "domain: $(DOMAIN)\n".to_owned(),
        "domain: <nil>\n".to_owned(),
        "{{ .Values.policy }}\n".to_owned(),
        "{{- with .Values.policy }}\ndomain: edge\n{{- end }}\n".to_owned(),
        "domain: edge\n{{- range .Values.limits }}\ndescriptors: []\n{{- end }}\n".to_owned(),
        "domain: {{ .Values.domain }}-limits\n".to_owned(),
        edge("descriptors: {{ toYaml .Values.descriptors }}"),
        edge("descriptors: ${DESCRIPTORS}"),
        edge("descriptors:\n  - {{ .first }}"),
        edge("descriptors:\n  - key: ${KEY}"),
        edge("descriptors:\n  - key: a\n    shadow_mode: ${SHADOW}"),
        edge("descriptors:\n  - key: a\n    rate_limit: {{ .limit }}"),
        edge("hash_tag: ['${TAG}']"),
    ] {
        let errors = errors(&text);
        let is_named = |error: &String| error.contains("a template that was not filled in");
        assert!(errors.iter().any(is_named), "{text}: {errors:?}");
    }
    let body =
        "body: {content_type: text/plain, text: 'p {{color: red}} $(x)'}\ndescriptors: [{key: a}]";
    assert!(one(edge(body)).is_ok(), "the text of a body may have any braces");
    let metadata = "descriptors: [{key: a, metadata: {cost: '${x}'}}]";
    assert!(one(edge(metadata)).is_ok(), "Envoy's formats are metadata");
    for plain in ["$5", "100%", "a{b}", "<b>", "{", "}}", "%", "a $ (b)"] {
        assert_eq!(value_warnings("path", plain), [""; 0], "{plain}");
    }
}

#[test]
fn the_configuration_of_envoy_is_recognized() {
    let filter = "\
'@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
domain: edge
rate_limit_service: {transport_api_version: V3}
";
    for text in [
        "static_resources: {listeners: []}\n",
        "admin: {address: {}}\nstatic_resources: {}\n",
        "dynamic_resources: {lds_config: {}}\n",
        "node: {id: a}\nlayered_runtime: {}\n",
        "resources:\n  - '@type': type.googleapis.com/envoy.config.listener.v3.Listener\n",
        "configs: [{'@type': type.googleapis.com/envoy.admin.v3.BootstrapConfigDump}]\n",
        "name: local\nvirtual_hosts: []\n",
        "- name: envoy.filters.http.ratelimit\n  typed_config: {}\n",
        "- name: http\n  filter_chains: []\n",
        "http_filters: []\n",
        "route_config: {virtual_hosts: []}\n",
        "clusters: [{name: a}]\n",
        filter,
        "domain: edge\nfailure_mode_deny: true\nrate_limit_service: {}\n",
    ] {
        let errors = errors(text);
        assert_eq!(errors.len(), 1, "{text}: {errors:?}");
        assert!(errors[0].contains("this is Envoy's configuration, not a policy"), "{errors:?}");
    }
}

/// The warnings of a value that no request has.
fn value_warnings(key: &str, value: &str) -> Vec<String> {
    let value = serde_json::to_string(value).unwrap();
    found(&descriptor(&format!("key: {key}, value: {value}")), DiagnosticKind::NeverMatches)
}

#[test]
fn a_value_that_no_request_has_is_warned_of() {
    let (address, masked) = ("remote_address", "masked_remote_address");
    for (key, value, part) in [
        (address, "10.0.0.0/8", "a single address"),
        (address, "10.0.0.1/32", "a single address"),
        (address, "2001:db8::/64", "a single address"),
        (address, "::/0", "a single address"),
        (address, "0.0.0.0/0", "a single address"),
        (address, "010.000.000.001", "is an IP address"),
        (address, "10.0.0.01", "is an IP address"),
        (address, "2001:DB8::1", "write `2001:db8::1`"),
        (address, "2001:0db8::1", "write `2001:db8::1`"),
        (address, "2001:db8:0:0:0:0:0:1", "write `2001:db8::1`"),
        (address, "0:0:0:0:0:0:0:1", "write `::1`"),
        (address, "[::1]", "is an IP address"),
        (address, "[2001:db8::1]:443", "is an IP address"),
        (address, "192.0.2.1:443", "is an IP address"),
        (address, "192.0.2.1:0", "is an IP address"),
        (address, "192.0.2", "is an IP address"),
        (address, "192.0.2.256", "is an IP address"),
        (address, "192.0.2.1-192.0.2.9", "is an IP address"),
        (address, "localhost", "is an IP address"),
        (address, "fe80::1%eth0", "is an IP address"),
        (masked, "010.0.0.0/8", "is a range of IP addresses"),
        (masked, "2001:DB8::/32", "write `2001:db8::/32`"),
        ("path", "^/login$", "not a regular expression"),
        ("path", "^/login", "not a regular expression"),
        ("path", "/login.*$", "not a regular expression"),
        ("path", "/api/.*", "not a regular expression"),
        ("path", ".*", "not a regular expression"),
        ("path", "/users/[0-9]+", "not a regular expression"),
        ("path", "/users/\\d+", "not a regular expression"),
        ("path", "/(?i)login", "not a regular expression"),
        ("path", "/users/.+", "not a regular expression"),
        ("path", "/[^/]*", "not a regular expression"),
        ("path", "(.*)", "not a regular expression"),
        ("path", "\u{201c}/login\u{201d}", "typographic quote \u{201c}"),
        ("path", "\u{2018}/login", "typographic quote"),
        ("path", "it\u{2019}s", "typographic quote"),
        ("path", "\u{201e}a\u{201c}", "typographic quote"),
        ("path", "«a»", "typographic quote"),
        ("path", "/a\u{a0}b", "\\u{a0}"),
        ("path", "/a\u{202f}b", "\\u{202f}"),
        ("path", "\u{a0}/a", "\\u{a0}"),
        ("path", "/a\u{200b}", "\\u{200b}"),
        ("path", "\u{feff}/a", "\\u{feff}"),
        ("path", "/a\u{2003}", "\\u{2003}"),
        ("path", "/a ", "a blank or a line break"),
        ("path", " /a", "a blank or a line break"),
        ("path", "/a\n", "a blank or a line break"),
        ("path", "/a\r\n", "a blank or a line break"),
        ("path", "\t/a", "a blank or a line break"),
        (address, "192.0.2.1\n", "a blank or a line break"),
        ("path", "${PATH}", "a template that was not filled in"),
        ("path", "{{ .Values.path }}", "a template that was not filled in"),
        ("path", "<no value>", "a template that was not filled in"),
    ] {
        let warnings = value_warnings(key, value);
        assert!(warnings.len() == 1 && warnings[0].contains(part), "{key} {value:?}: {warnings:?}");
    }
}

#[test]
fn a_value_that_requests_may_have_gets_no_warning() {
    let (address, masked) = ("remote_address", "masked_remote_address");
    for (key, value) in [
        (address, "192.0.2.1"),
        (address, "0.0.0.0"),
        (address, "2001:db8::1"),
        (address, "::ffff:192.0.2.1"),
        (address, "::"),
        (address, "10.0.*"),
        (address, "2001:db8:*"),
        (masked, "10.0.0.0/8"),
        (masked, "2001:db8::/32"),
        ("client", "010.0.0.1"),
        ("client", "192.0.2.1:443"),
        ("client", "10.0.0.0/8"),
        ("path", "/login*"),
        ("path", "*.example.com"),
        ("path", "/files/*.tar.gz"),
        ("path", "/a b"),
        ("path", "/a?b=c+d"),
        ("path", "US$"),
        ("path", "/a(1)"),
        ("path", "/users/[id]"),
        ("path", "O'Neill \"x\""),
        ("path", "语言"),
    ] {
        assert_eq!(value_warnings(key, value), [""; 0], "{key} {value}");
    }
}

#[test]
fn a_range_of_ipv6_addresses_is_a_value_if_authz_groups_them() {
    let http = "http: {descriptors: [{entries: [{key: remote_address, request: remote_address}]}]}";
    for (value, count) in [("2001:db8:1:2::/64", 0), ("2001:DB8::/64", 1), ("10.0.0.0/8", 1)] {
        let text = descriptor(&format!("key: remote_address, value: '{value}'"));
        let warnings = found(&format!("{text}{http}\n"), DiagnosticKind::NeverMatches);
        assert_eq!(warnings.len(), count, "{value}: {warnings:?}");
    }
}

#[test]
fn a_key_or_a_domain_that_no_request_has_is_warned_of() {
    for text in ["a ", " a", "a\n", "\u{a0}a", "a\u{200b}", "\u{201c}a\u{201d}", "a\u{2019}s"] {
        let Ok(quoted) = serde_json::to_string(text) else { unreachable!() };
        // A line break in a name is an error already.
        if text.contains('\n') {
            assert!(one(descriptor(&format!("key: {quoted}"))).is_err());
            continue;
        }
        let key = found(&descriptor(&format!("key: {quoted}")), DiagnosticKind::NeverMatches);
        assert!(key.len() == 1 && key[0].starts_with("this key "), "{text:?}: {key:?}");
        let domain = format!("domain: {quoted}\ndescriptors: [{{key: a, {LIMIT}}}]\n");
        let domain = found(&domain, DiagnosticKind::NeverMatches);
        assert!(domain.len() == 1 && domain[0].starts_with("this domain "), "{text:?}: {domain:?}");
    }
}

#[test]
fn keys_that_every_request_has_get_no_note_about_their_absence() {
    let note =
        |key: &str| found(&descriptor(&format!("key: '{key}'")), DiagnosticKind::NoLimitWhenAbsent);
    for key in [
        ":path",
        ":method",
        ":authority",
        ":scheme",
        "path",
        "method",
        "PATH",
        "Method",
        "host",
        "remote_address",
        "masked_remote_address",
        "generic_key",
        "destination_cluster",
        "source_cluster",
    ] {
        assert_eq!(note(key), [""; 0], "{key}");
    }
    for key in ["api_token", "x-user-id", "header_match", "paths", ":status", "user-agent", "xpath"]
    {
        let message = format!(
            "a request without {key:?} has no limit at all, because Envoy then omits the \
             descriptor; add a limit on remote_address as well"
        );
        assert_eq!(note(key), [message]);
    }
    let below = format!(
        "domain: edge\ndescriptors: [{{key: ':method', value: POST, descriptors: [{{key: ':path', {LIMIT}}}]}}]\n"
    );
    assert_eq!(found(&below, DiagnosticKind::NoLimitWhenAbsent), [""; 0]);
}

#[test]
fn an_unknown_hash_tag_gets_the_advice_that_fits() {
    let policy = |tag: &str| {
        format!(
            "\
domain: edge
hash_tag: [{tag}]
descriptors:
  - key: generic_key
    value: search
    descriptors:
      - key: remote_address
        {LIMIT}
      - key: tenant
        descriptors:
          - key: plan
            rate_limit:
              unit: second
              requests_per_unit: 100
              algorithm: token_bucket
              tiers: {{method: separate, classes: {{gold: {{share: 60%}}, free: {{share: 40%}}}}}}
  - key: region
    descriptors:
      - key: user
        rate_limits: [{{name: per-user, per: [user], unit: second, requests_per_unit: 5}}]
"
        )
    };
    for (tag, advice) in [
        ("search", "name an entry of every limit that should share a slot"),
        ("remote_adress", "did you mean `remote_address`?"),
        ("tenants", "did you mean `tenant`?"),
        ("region", "name an entry of every limit that should share a slot"),
        ("plan", "name an entry of every limit that should share a slot"),
        ("nothing-like-it", "name an entry of every limit that should share a slot"),
    ] {
        let expected = format!("no limit counts by {tag:?}; {advice}");
        assert_eq!(found(&policy(tag), DiagnosticKind::UnknownHashTag), [expected]);
    }
    for tag in ["generic_key", "remote_address", "tenant", "user"] {
        assert_eq!(found(&policy(tag), DiagnosticKind::UnknownHashTag), [""; 0], "{tag}");
    }
}

#[test]
fn a_limit_name_with_a_quote_is_an_error() {
    let named = |name: &str| rate_limit(&format!("unit: day, requests_per_unit: 1, name: {name}"));
    for name in ["'a\"b'", "'\"a\"'", "'\"'", "'a\\b'", "'\\'", "'a\"'"] {
        let errors = errors(&named(name));
        let message = "the `name` of a limit cannot have a quote or a backslash, because response \
                       headers carry it in quotes; remove it";
        assert!(errors.len() == 1 && errors[0].ends_with(message), "{name}: {errors:?}");
    }
    let listed = "domain: edge\ndescriptors: [{key: a, rate_limits: [{name: 'a\"', unit: day, requests_per_unit: 1}]}]\n";
    assert!(errors(listed)[0].contains("cannot have a quote"));
    for name in ["per-ip", "\"it's\"", "'a; b'", "'a, b'", "'100%'"] {
        assert!(one(named(name)).is_ok(), "{name}");
    }
}

#[test]
fn errors_below_a_misspelt_key_are_reported_with_it() {
    for (text, expected) in [
        (
            "domain: edge\ndescriptor:\n  - key: a\n    rate_limit: {unit: eon, requests_per_unit: 5}\n",
            &["2:1: unknown key \"descriptor\"", "4:24: `unit` must be one of"][..],
        ),
        (
            "domain: edge\ndescriptors:\n  - key: a\n    ratelimit: {unit: day, requests_per_unit: -1}\n",
            &["4:5: unknown key \"ratelimit\"", "4:47: `requests_per_unit` must be at least 0"],
        ),
        (
            "domain: edge\ndescriptors:\n  - kye: a\n    rate_limits: [{nam: x, unit: eon}]\n",
            &[
                "3:5: unknown key \"kye\"",
                "4:20: unknown key \"nam\"",
                "4:34: `unit` must be one of",
            ],
        ),
        (
            "domain: edge\ndescriptors:\n  - key: a\n    descriptorss:\n      - value: b\n",
            &["4:5: unknown key \"descriptorss\"", "5:9: a descriptor needs `key: NAME`"],
        ),
        (
            "domain: edge\nboddy: {txt: 5, x: 1}\n",
            &["2:1: unknown key \"boddy\"", "2:9: unknown key \"txt\"", "2:17: unknown key \"x\""],
        ),
        (
            "domian: edge\ndescriptors:\n  - key: a\n    rate_limit: {unit: day, request_per_unit: x}\n",
            &[
                "1:1: unknown key \"domian\"",
                "4:29: unknown key \"request_per_unit\"",
                "4:47: `requests_per_unit` must be a whole number, not x",
            ],
        ),
    ] {
        let errors = errors(text);
        assert_eq!(errors.len(), expected.len(), "{text}: {errors:#?}");
        for (error, start) in errors.iter().zip(expected) {
            assert!(error.starts_with(start), "{text}: {error}");
        }
    }
}
