//! Envoy's bootstrap for a test: the shipped one, with other ports and without what depends on
//! time.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_yaml::Value;
use tidegate::wire::ENTRIES_MAX;

const HCM: &str = "static_resources.listeners.0.filter_chains.0.filters.0.typed_config";
const RATE_LIMIT: &str = "envoy.filters.http.ratelimit";
const ENDPOINTS: &str = "load_assignment.endpoints.0.lb_endpoints";

/// Long against any pause of a busy machine, so that a test fails on a wrong answer only.
const TIMEOUT: &str = "30s";

/// A path below the repository's root.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// `config/envoy.yaml`, to be changed.
pub struct Bootstrap(Value);

impl Bootstrap {
    pub fn shipped() -> Bootstrap {
        Bootstrap(load(&repository("config/envoy.yaml")))
    }

    /// Replaces the routes by those of a file, as the examples ask for.
    pub fn with_routes(mut self, file: &Path) -> Bootstrap {
        *self.hcm("route_config") = load(file);
        self
    }

    /// Adds what a file of an example has for the connection manager, with its filters behind the rate
    /// limit.
    pub fn with_filters(mut self, file: &Path) -> Bootstrap {
        for (key, value) in load(file).as_mapping().expect("a mapping") {
            let key = key.as_str().expect("a key");
            if key == "http_filters" {
                let added = value.as_sequence().expect("a list of filters").iter().cloned();
                self.filters().splice(1..1, added);
            } else {
                set(self.hcm(""), key, value.clone());
            }
        }
        self
    }

    /// Replaces the descriptors that every route sends, by YAML.
    pub fn with_rate_limits(mut self, yaml: &str) -> Bootstrap {
        *self.hcm("route_config.virtual_hosts.0.rate_limits") =
            serde_yaml::from_str(yaml).expect("rate_limits");
        self
    }

    /// A copy of the first route for paths that begin like this, whose calls fail: its first
    /// descriptor gets more entries than a call may have. What happens at the end of a stream stays.
    pub fn with_undecided(mut self, prefix: &str) -> Bootstrap {
        let routes = self.hcm("route_config.virtual_hosts.0.routes");
        let mut copy = routes[0].clone();
        set(&mut copy, "match", serde_yaml::from_str(&format!("prefix: {prefix}")).expect("YAML"));
        let filter = &mut copy["typed_per_filter_config"]["envoy.filters.http.ratelimit"];
        let actions = filter["rate_limits"][0]["actions"].as_sequence_mut().expect("actions");
        let first = actions[0].clone();
        actions.extend(std::iter::repeat_n(first, ENTRIES_MAX));
        routes.as_sequence_mut().expect("a list of routes").insert(0, copy);
        self
    }

    /// Sets a field of the rate limit filter. After [`aimed_at`](Self::aimed_at), which sets some.
    pub fn with_filter(mut self, field: &str, value: impl Into<Value>) -> Bootstrap {
        set(self.rate_limit_filter(), field, value.into());
        self
    }

    /// An HTTP filter before all others.
    pub fn with_first_filter(mut self, yaml: &str) -> Bootstrap {
        self.filters().insert(0, serde_yaml::from_str(yaml).expect("a filter"));
        self
    }

    /// The HTTP filters of an example's file before all others.
    pub fn with_first_filters(mut self, file: &Path) -> Bootstrap {
        let added = load(file);
        self.filters().splice(..0, added.as_sequence().expect("a list of filters").iter().cloned());
        self
    }

    /// Believes the last address in X-Forwarded-For: for clients with an IPv6 address, of which a
    /// machine has one only.
    pub fn behind_a_load_balancer(mut self) -> Bootstrap {
        set(self.hcm(""), "xff_num_trusted_hops", 1.into());
        self
    }

    /// Calls Tidegate through a cluster that forwards to the address of the caller's own connection.
    pub fn with_original_destination(mut self) -> Bootstrap {
        let mut cluster = at(&mut self.0, "static_resources.clusters.1").clone();
        let fields = cluster.as_mapping_mut().expect("a cluster");
        fields.retain(|key, _| *key != "load_assignment" && *key != "health_checks");
        for (field, value) in
            [("name", "headless"), ("type", "ORIGINAL_DST"), ("lb_policy", "CLUSTER_PROVIDED")]
        {
            set(&mut cluster, field, value.into());
        }
        let clusters = at(&mut self.0, "static_resources.clusters");
        clusters.as_sequence_mut().expect("a list of clusters").push(cluster);
        let service = &mut self.rate_limit_filter()["rate_limit_service"]["grpc_service"];
        set(&mut service["envoy_grpc"], "cluster_name", "headless".into());
        self
    }

    /// Traces every request, and so passes what clients say of their traces on to Tidegate.
    pub fn traced(mut self, cluster: &str) -> Bootstrap {
        let provider = format!(
            "provider: {{ name: envoy.tracers.opentelemetry, typed_config: {{ \
               '@type': type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig, \
               service_name: edge, grpc_service: {{ envoy_grpc: {{ cluster_name: {cluster} }} }} }} }}"
        );
        let tracing = serde_yaml::from_str(&provider).expect("a provider");
        set(self.hcm(""), "tracing", tracing);
        self
    }

    /// Points it to the parts of a test. An undecided request is an error here, never a pass.
    pub fn aimed_at(mut self, backend: SocketAddr, tidegates: &[SocketAddr]) -> Bootstrap {
        let root = &mut self.0;
        *at(root, "admin.address.socket_address.port_value") = 0.into();
        *at(root, "static_resources.listeners.0.address.socket_address.port_value") = 0.into();
        let filter = self.rate_limit_filter();
        set(filter, "timeout", TIMEOUT.into());
        set(filter, "failure_mode_deny", true.into());
        for (cluster, addresses) in [("0", &[backend][..]), ("1", tidegates)] {
            let path = format!("static_resources.clusters.{cluster}.{ENDPOINTS}");
            *at(&mut self.0, &path) = addresses.iter().copied().map(endpoint).collect();
        }
        self
    }

    /// As JSON: what YAML reads as a text, a YAML writer may write as a boolean (`yes`).
    pub fn write(&self, file: &Path) {
        fs::write(file, serde_json::to_string(&self.0).expect("JSON"))
            .expect("a writable directory");
    }

    fn filters(&mut self) -> &mut Vec<Value> {
        self.hcm("http_filters").as_sequence_mut().expect("a list of filters")
    }

    /// The settings of the rate limit filter.
    fn rate_limit_filter(&mut self) -> &mut Value {
        let filter = self.filters().iter_mut().find(|filter| filter["name"] == RATE_LIMIT);
        &mut filter.expect("the rate limit filter")["typed_config"]
    }

    fn hcm(&mut self, path: &str) -> &mut Value {
        at(at(&mut self.0, HCM), path)
    }
}

fn load(file: &Path) -> Value {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn endpoint(address: SocketAddr) -> Value {
    let yaml = format!(
        "endpoint: {{ address: {{ socket_address: {{ address: {}, port_value: {} }} }} }}",
        address.ip(),
        address.port()
    );
    serde_yaml::from_str(&yaml).expect("an endpoint")
}

/// The value at a path of names and positions, which must be there.
fn at<'v>(value: &'v mut Value, path: &str) -> &'v mut Value {
    path.split('.').filter(|step| !step.is_empty()).fold(value, |value, step| {
        let found = match step.parse::<usize>() {
            Ok(position) => value.get_mut(position),
            Err(_) => value.get_mut(step),
        };
        found.unwrap_or_else(|| panic!("the bootstrap has no {path}: {step} is missing"))
    })
}

fn set(mapping: &mut Value, key: &str, value: Value) {
    mapping.as_mapping_mut().expect("a mapping").insert(key.into(), value);
}
