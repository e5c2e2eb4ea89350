//! Kinds of files that people have where a policy is expected: which are loaded, which are rejected,
//! and why.
//!
//! Not here: those with a whole message in `tests/mistakes`, such as a ConfigMap.

use tidegate::policy::{Diagnostic, DiagnosticKind};

use super::compile_helpers::one;
use super::good_files::told;

const LIMIT: &str = "remote_address: 100 per 1 minute";
const NEXT_STEP: &str = "`descriptors: [{key: remote_address, rate_limit:";

/// The kind of file, its text, and either how a rule of it begins or parts of its only error.
type Kind = (&'static str, &'static str, Result<&'static str, &'static [&'static str]>);

const KINDS: [Kind; 28] = [
    (
        "a policy",
        "domain: edge\ndescriptors:\n  - key: remote_address\n    rate_limit:\n      unit: minute\n      requests_per_unit: 100\n",
        Ok(LIMIT),
    ),
    (
        "a policy with a mark and Windows line ends",
        "\u{feff}domain: edge\r\ndescriptors:\r\n- key: remote_address\r\n  rate_limit: {unit: minute, requests_per_unit: 100}\r\n",
        Ok(LIMIT),
    ),
    (
        "JSON",
        "{\n\t\"domain\": \"edge\",\n\t\"descriptors\": [{\"key\": \"remote_address\", \"rate_limit\": {\"unit\": \"minute\", \"requests_per_unit\": 100}}]\n}\n",
        Ok(LIMIT),
    ),
    (
        "JSON on one line",
        r#"{"domain":"edge","descriptors":[{"key":"remote_address","rate_limit":{"unit":"MINUTE","requests_per_unit":100}}]}"#,
        Ok(LIMIT),
    ),
    (
        "JSON with floats, as jq and Lua write them",
        r#"{"domain":"edge","descriptors":[{"key":"remote_address","rate_limit":{"unit":"minute","requests_per_unit":100.0}}]}"#,
        Ok(LIMIT),
    ),
    (
        "output of Helm",
        "---\n# Source: limits/templates/policy.yaml\ndomain: edge\ndescriptors:\n  - key: remote_address\n    rate_limit: {unit: minute, requests_per_unit: 1e+02}\n---\n",
        Ok(LIMIT),
    ),
    (
        "anchors and merge keys",
        "domain: edge\ndescriptors:\n  - key: generic_key\n    rate_limit: &base {unit: minute, requests_per_unit: 100}\n  - key: remote_address\n    rate_limit: {<<: *base}\n",
        Ok(LIMIT),
    ),
    (
        "envoyproxy/ratelimit: README, messaging",
        "domain: messaging\ndescriptors:\n  - key: message_type\n    value: marketing\n    descriptors:\n      - key: to_number\n        rate_limit:\n          unit: day\n          requests_per_unit: 5\n  - key: to_number\n    rate_limit:\n      unit: day\n      requests_per_unit: 100\n",
        Ok("message_type=marketing > to_number: 5 per 1 day"),
    ),
    (
        "envoyproxy/ratelimit: README, a deny list",
        "domain: edge_proxy_per_ip\ndescriptors:\n  - key: remote_address\n    rate_limit:\n      unit: minute\n      requests_per_unit: 100\n  - key: remote_address\n    value: 50.0.0.5\n    rate_limit:\n      unit: second\n      requests_per_unit: 0\n",
        Ok("remote_address=50.0.0.5: 0 per 1 second"),
    ),
    (
        "envoyproxy/ratelimit: README, replaces",
        "domain: example4\ndescriptors:\n  - key: remote_address\n    rate_limit:\n      name: per-ip\n      replaces:\n        - name: other\n      unit: minute\n      requests_per_unit: 100\n",
        Ok("remote_address: 100 per 1 minute named per-ip replaces other"),
    ),
    (
        "envoyproxy/ratelimit: examples, shadow mode",
        "domain: rl\ndescriptors:\n  - key: category\n    value: account\n    rate_limit:\n      unit: minute\n      requests_per_unit: 4\n    shadow_mode: true\n    detailed_metric: true\n",
        Ok("category=account: 4 per 1 minute shadow detailed"),
    ),
    (
        "envoyproxy/ratelimit: examples, wildcard",
        "domain: rl\ndescriptors:\n  - key: path\n    value: /api/*\n    value_to_metric: true\n    share_threshold: true\n    rate_limit: {unit: hour, requests_per_unit: 10}\n",
        Ok("path~/api/*: 10 per 1 hour shared value_to_metric"),
    ),
    (
        "envoyproxy/ratelimit: unlimited",
        "domain: rl\ndescriptors:\n  - key: a\n    rate_limit: {unlimited: true}\n",
        Ok("a: unlimited"),
    ),
    (
        "several policies in one file",
        "domain: a\n---\ndomain: b\n",
        Err(&["a second YAML document begins here", "its own file"]),
    ),
    (
        "a list of policies",
        "- domain: a\n- domain: b\n",
        Err(&["the top level of the file must be a map of keys, not a list", "remove the `- `"]),
    ),
    (
        "a template of Helm",
        "domain: edge\ndescriptors:\n{{- range .Values.limits }}\n  - key: {{ .key }}\n{{- end }}\n",
        Err(&["a template that was not filled in", "helm template"]),
    ),
    (
        "a ConfigMap from Helm, with more manifests",
        "---\n# Source: a/templates/configmap.yaml\napiVersion: v1\nkind: ConfigMap\n---\napiVersion: v1\nkind: Service\n",
        Err(&["a Kubernetes ConfigMap", "mount the ConfigMap"]),
    ),
    (
        "kubectl get configmaps -o yaml",
        "apiVersion: v1\nkind: List\nitems:\n  - apiVersion: v1\n    kind: ConfigMap\n",
        Err(&["a Kubernetes ConfigMap", "mount the ConfigMap"]),
    ),
    (
        "kubectl get configmap -o json",
        r#"{"apiVersion": "v1", "kind": "ConfigMap", "data": {}}"#,
        Err(&["a Kubernetes ConfigMap"]),
    ),
    (
        "a Deployment",
        "apiVersion: apps/v1\nkind: Deployment\n",
        Err(&["a Kubernetes manifest", "`domain: NAME`"]),
    ),
    (
        "Envoy Gateway: BackendTrafficPolicy",
        "apiVersion: gateway.envoyproxy.io/v1alpha1\nkind: BackendTrafficPolicy\nspec: {rateLimit: {type: Global}}\n",
        Err(&["a Kubernetes manifest"]),
    ),
    (
        "Istio: EnvoyFilter",
        "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\n",
        Err(&["a Kubernetes manifest"]),
    ),
    (
        "Envoy Gateway: dump of its xDS cache",
        "resources:\n  - '@type': type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig\n    domain: edge\n",
        Err(&["this is Envoy's configuration", NEXT_STEP]),
    ),
    (
        "Envoy: bootstrap",
        "admin: {}\nstatic_resources: {listeners: []}\n",
        Err(&["this is Envoy's configuration", NEXT_STEP]),
    ),
    (
        "Envoy: /config_dump",
        r#"{"configs": [{"@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump"}]}"#,
        Err(&["this is Envoy's configuration", NEXT_STEP]),
    ),
    (
        "Envoy: rate limit filter",
        "name: envoy.filters.http.ratelimit\ntyped_config:\n  domain: edge\n",
        Err(&["this is Envoy's configuration", NEXT_STEP]),
    ),
    (
        "Envoy: a list of actions",
        "- actions:\n    - remote_address: {}\n",
        Err(&["Envoy's rate limit actions", NEXT_STEP]),
    ),
    ("nothing", "# limits:\n---\n", Err(&["the file has no content", NEXT_STEP])),
];

#[test]
fn each_kind_of_file_is_loaded_or_rejected_with_its_reason() {
    for (kind, text, expected) in KINDS {
        match (one(text), expected) {
            (Ok(compiled), Ok(rule)) => {
                let rules = told(&compiled);
                assert!(rules.lines().any(|line| line.starts_with(rule)), "{kind}: {rules}");
            }
            (Err(errors), Err(parts)) => {
                assert_eq!(errors.0.len(), 1, "{kind}: {errors}");
                let Diagnostic { message, excerpt, kind: error, .. } = &errors.0[0];
                assert!(parts.iter().all(|part| message.contains(part)), "{kind}: {message}");
                let is_of_another =
                    message.starts_with("this is ") || message.starts_with("these are ");
                assert_eq!(*error == DiagnosticKind::ForeignFile, is_of_another, "{kind}");
                assert!(excerpt.is_some() || !is_of_another, "{kind}");
            }
            (Ok(compiled), Err(_)) => panic!("{kind} was loaded: {}", told(&compiled)),
            (Err(errors), Ok(_)) => panic!("{kind} was rejected: {errors}"),
        }
    }
}
