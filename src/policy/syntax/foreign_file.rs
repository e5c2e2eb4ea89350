//! Recognizes files that are not policies, such as a Limitador file or a settings file.

use super::yaml::errors::EXAMPLE_DESCRIPTORS;
use super::yaml::{Node, Value};

/// Returns a message for a file that is not a policy but is recognized, such as a Limitador file or
/// a settings file: the kind of file, and what to do with it. Returns `None` if the file is not
/// recognized.
pub(crate) fn foreign_file_message<'t>(root: Node<'t>) -> Option<String> {
    // The configuration of Envoy's rate limit filter has a domain, too.
    if root.get("domain").is_some() && root.get("rate_limit_service").is_none() {
        return None;
    }
    let kind = root.get("kind").map_or("", Node::text);
    let item = |list: Node<'t>| match list.value() {
        Value::List(list) => list.node(0),
        Value::Scalar(..) | Value::Map(_) => None,
    };
    let limits = root.get("rate_limits").unwrap_or(root);
    let first = item(limits).unwrap_or(root);
    let listed_kind = root.get("items").and_then(item).and_then(|item| item.get("kind"));
    let has = |key: &str| first.get(key).is_some();
    let (message, has_example) = if root.get("apiVersion").is_some() {
        let is_config_map = [kind, listed_kind.map_or("", Node::text)].contains(&"ConfigMap");
        (if is_config_map { CONFIG_MAP_HINT } else { MANIFEST_HINT }, false)
    } else if ENVOY_KEYS.iter().any(|key| has(key)) {
        (ENVOY_CONFIG_HINT, true)
    } else if has("actions") {
        (ENVOY_ACTIONS_HINT, true)
    } else if has("max_value") && has("seconds") {
        (LIMITADOR_HINT, true)
    } else if has("groups") && has("lasts_s") {
        (SCENARIO_HINT, false)
    } else if SETTINGS_KEYS.iter().any(|name| root.get(name).is_some()) {
        (SETTINGS_FILE_HINT, false)
    } else {
        return None;
    };
    let example = if has_example { EXAMPLE_DESCRIPTORS } else { "" };
    Some(format!("{message}{example}"))
}

/// Keys that identify Envoy's configuration or a part of it: a bootstrap, a dump, a response of xDS, a
/// listener, a filter, or a route. None is a key of the policy language.
const ENVOY_KEYS: [&str; 14] = [
    "static_resources",
    "dynamic_resources",
    "layered_runtime",
    "listeners",
    "clusters",
    "resources",
    "configs",
    "@type",
    "typed_config",
    "filter_chains",
    "http_filters",
    "route_config",
    "virtual_hosts",
    "rate_limit_service",
];

/// Keys that identify a settings file of Tidegate. Nearly every settings file has one of them, and
/// none is a key of the policy language.
const SETTINGS_KEYS: [&str; 6] =
    ["policy", "grpc-port", "http-port", "redis-url", "redis-type", "log-level"];

const SETTINGS_FILE_HINT: &str = "this is a settings file, not a policy; pass it to `tidegate serve` with \
                             --settings";
const SCENARIO_HINT: &str = "this is a scenario, not a policy; run it with `tidegate simulate`";
const CONFIG_MAP_HINT: &str = "this is a Kubernetes ConfigMap, not a policy; save the text below each \
                          name in `data`, without its indentation, as a file of that name; in \
                          Kubernetes, mount the ConfigMap and set --policy to the directory";
const MANIFEST_HINT: &str =
    "this is a Kubernetes manifest, not a policy; a policy begins with `domain: NAME`";
const ENVOY_ACTIONS_HINT: &str = "these are Envoy's rate limit actions, not a policy; leave them in \
                             Envoy's route, and write a policy with the `domain` of Envoy's \
                             rate limit filter and, for an action such as remote_address, ";
const ENVOY_CONFIG_HINT: &str = "this is Envoy's configuration, not a policy; leave it to Envoy, and \
                                 write a policy in a file of its own, with the `domain` of \
                                 Envoy's rate limit filter and, for an action such as \
                                 remote_address, ";
const LIMITADOR_HINT: &str = "this is a limits file of Limitador, not a policy; `namespace: edge` \
                         becomes `domain: edge`, `seconds` the unit (1 second, 60 minute, 3600 \
                         hour, 86400 day), and an entry with the variable remote_address, \
                         `max_value: 100`, and `seconds: 60` becomes ";
