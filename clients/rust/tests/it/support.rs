//! A Tidegate that serves over TLS, and servers that misbehave.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tidegate_client::{Builder, Call, Client, Descriptor};

/// Long enough for a busy machine. Tests that are about timeouts set their own.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// `user` and `remote_address` may do five a year, so that a client that waits as told never returns.
const POLICY: &str = r#"
domain: shop
descriptors:
  - key: user
    rate_limit: {name: per-user, unit: year, requests_per_unit: 5}
  - key: remote_address
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: spoken
    rate_limit:
      unit: year
      requests_per_unit: 0
    body: {content_type: application/json, text: '{"error":"slow down"}'}
  - key: paced
    rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 20, burst: 1}
  - key: banned
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: soft
    shadow_mode: true
    rate_limit:
      {unit: year, requests_per_unit: 2, mark: {near: {x-quota: near}, over: {x-quota: over}, near_at: 50%}}
  - key: export
    rate_limit: {algorithm: concurrency, requests_per_unit: 1, lease: 86400}
  - key: tokens
    rate_limit: {unit: year, requests_per_unit: 100, reserve: {ttl: 86400}}
"#;

/// Certificates of one test, as PEM.
pub struct Certificates {
    pub ca: String,
    pub server: (String, String),
    pub client: (String, String),
}

impl Certificates {
    pub fn new() -> Certificates {
        Certificates::until(rcgen::date_time_ymd(2999, 1, 1))
    }

    /// Certificates that are valid until then.
    pub fn until(end: time::OffsetDateTime) -> Certificates {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let sign = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.not_after = end;
            (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
        };
        Certificates { ca, server: sign("localhost"), client: sign("shop.test") }
    }
}

/// How a Tidegate serves; by default over TLS, to clients with a certificate.
pub struct TidegateSettings {
    pub port: u16,
    pub http_port: u16,
    pub policy: &'static str,
    pub tls: bool,
    pub client_certificates: bool,
    pub certificates: Certificates,
}

impl Default for TidegateSettings {
    fn default() -> TidegateSettings {
        TidegateSettings {
            port: free_port(),
            http_port: 0,
            policy: POLICY,
            tls: true,
            client_certificates: true,
            certificates: Certificates::new(),
        }
    }
}

/// A serving process; killed when dropped.
pub struct Tidegate {
    child: Child,
    directory: TempDir,
    pub certificates: Certificates,
    pub port: u16,
}

impl Tidegate {
    pub fn serve(arguments: &[&str]) -> Tidegate {
        Tidegate::serve_at(free_port(), Certificates::new(), arguments)
    }

    pub fn serve_at(port: u16, certificates: Certificates, arguments: &[&str]) -> Tidegate {
        Tidegate::serve_with(
            TidegateSettings { port, certificates, ..TidegateSettings::default() },
            arguments,
        )
    }

    pub fn serve_with(settings: TidegateSettings, arguments: &[&str]) -> Tidegate {
        let TidegateSettings { port, http_port, policy, tls, client_certificates, certificates } =
            settings;
        let directory = TempDir::new().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let policy = file("policy.yaml", policy);
        let log = directory.path().join("log");
        let mut command = Command::new(program());
        command.env_clear().args(["serve", "--policy"]).arg(policy).args(arguments);
        if tls {
            command
                .env("GRPC_SERVER_USE_TLS", "true")
                .env("GRPC_SERVER_TLS_CERT", file("server.pem", &certificates.server.0))
                .env("GRPC_SERVER_TLS_KEY", file("server.key", &certificates.server.1));
        }
        if tls && client_certificates {
            command.env("GRPC_CLIENT_TLS_CACERT", file("ca.pem", &certificates.ca));
        }
        let child = command
            .envs([("GRPC_HOST", "127.0.0.1"), ("HOST", "127.0.0.1"), ("DEBUG_PORT", "0")])
            .env("LOG_FORMAT", "json")
            .env("PORT", http_port.to_string())
            .env("GRPC_PORT", port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .expect("tidegate starts");
        let mut serving = Tidegate { child, directory, certificates, port };
        until(|| {
            let text = serving.log();
            assert!(serving.child.try_wait().unwrap().is_none(), "it ended: {text}");
            text.contains("\"message\":\"ready").then_some(())
        });
        serving
    }

    /// A client with every certificate that it needs.
    pub fn builder(&self) -> Builder {
        builder_at(self.port, &self.certificates)
    }

    pub fn client(&self) -> Client {
        self.builder().build().unwrap()
    }

    /// Kills it and returns what a successor needs.
    pub fn kill(mut self) -> (u16, Certificates) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let empty = || (String::new(), String::new());
        let nothing = Certificates { ca: String::new(), server: empty(), client: empty() };
        (self.port, std::mem::replace(&mut self.certificates, nothing))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Tidegate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn builder_at(port: u16, certificates: &Certificates) -> Builder {
    let (certificate, key) = &certificates.client;
    Client::builder(&format!("https://localhost:{port}"), "shop")
        .ca_pem(certificates.ca.as_bytes())
        .identity_pem(certificate.as_bytes(), key.as_bytes())
        .timeout(PATIENCE)
}

/// The binary of this repository, or the one that TIDEGATE names.
fn program() -> PathBuf {
    let path = std::env::var_os("TIDEGATE").map(PathBuf::from).unwrap_or_else(|| {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        repository.join("target/debug/tidegate")
    });
    assert!(path.exists(), "{} is missing: run `cargo build --bin tidegate`", path.display());
    path
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Accepts connections in the kernel only, and says nothing.
pub fn silent() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

pub fn call(key: &str, value: &str) -> Call {
    Call::new([Descriptor::new([(key, value)])])
}

/// Tries until there is an answer.
pub fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "still waiting");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The same for a check of the client, without blocking its runtime.
pub async fn until_passes(client: &Client, call: &Call) {
    let start = Instant::now();
    loop {
        let (decision, _released) = client.hold(call).await;
        if decision.outcome() == tidegate_client::Outcome::Allowed {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "still {decision:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
