//! Real servers that new users mistake for others, and certificates.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use tempfile::TempDir;

use crate::support::certificate_authority::Authority;
use crate::support::redis_cluster::Cluster;
use crate::support::redis_server::{Server, free_port};
use crate::support::tidegate_process::{Tidegate, directory, tidegate};

const POLICY: &str = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {unit: minute, requests_per_unit: 100}
";

/// Flags that let the operating system choose the ports.
const PORTS: &str = "--grpc-port 0 --http-port 0 --debug-port 0";

pub(super) struct Servers {
    /// Names in braces, and the ports that they stand for.
    ports: Vec<(&'static str, u16)>,
    certificates: Vec<(&'static str, String)>,
    _taken: TcpListener,
    _redis: Vec<Server>,
    _cluster: Cluster,
    _tidegate: [Tidegate; 2],
    _directory: TempDir,
}

impl Servers {
    pub(super) fn start() -> Servers {
        let (authority, other) = (Authority::new(), Authority::named("another authority"));
        let (identity, expired) =
            (authority.signs("localhost"), authority.signed_long_ago("localhost"));
        let files = directory(&[
            ("policy.yaml", POLICY),
            ("ca.pem", &authority.certificate),
            ("cert.pem", &identity.certificate),
            ("key.pem", &identity.key),
        ]);
        let path = |name: &str| files.path().join(name).display().to_string();
        let redis = Server::start(&[]);
        let redis_tls = Server::start(&[
            "port 0",
            "tls-port {port}",
            "tls-auth-clients no",
            &format!("tls-ca-cert-file {}", path("ca.pem")),
            &format!("tls-cert-file {}", path("cert.pem")),
            &format!("tls-key-file {}", path("key.pem")),
        ]);
        let redis_password = Server::start(&[]);
        redis_password.ask(&["CONFIG", "SET", "requirepass", "a-password"]);
        let watch = format!("sentinel monitor counters 127.0.0.1 {} 1", redis.port);
        let sentinel = Server::start_sentinel(&[&watch]);
        let cluster = Cluster::start(&[]);
        let plain = Tidegate::policy(POLICY, &[]);
        let mut command = tidegate();
        command.args(["serve", "--policy", &path("policy.yaml"), "--grpc-server-use-tls"]);
        command.args(["--grpc-server-tls-cert", &path("cert.pem")]);
        command.args(["--grpc-server-tls-key", &path("key.pem")]);
        let over_tls = Tidegate::start(&mut command, directory(&[]));
        let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Servers {
            ports: vec![
                ("redis", redis.port),
                ("redis-tls", redis_tls.port),
                ("redis-password", redis_password.port),
                ("sentinel", sentinel.port),
                ("cluster", cluster.nodes[0].port),
                ("grpc", plain.port("grpc").port()),
                ("http", plain.port("http").port()),
                ("grpc-tls", over_tls.port("grpc").port()),
                ("taken", taken.local_addr().expect("bound").port()),
                ("free", free_port()),
            ],
            certificates: vec![
                ("ca.pem", authority.certificate.clone()),
                ("other-ca.pem", other.certificate.clone()),
                ("cert.pem", identity.certificate),
                ("key.pem", identity.key),
                ("other-key.pem", authority.signs("localhost").key),
                ("expired.pem", expired.certificate),
                ("expired-key.pem", expired.key),
            ],
            _taken: taken,
            _redis: vec![redis, redis_tls, redis_password, sentinel],
            _cluster: cluster,
            _tidegate: [plain, over_tls],
            _directory: files,
        }
    }

    /// Writes the certificates and keys that a command may name.
    pub(super) fn write_certificates(&self, directory: &Path) {
        for (name, text) in &self.certificates {
            fs::write(directory.join(name), text).expect("writable");
        }
    }

    /// Replaces names in braces by ports.
    pub(super) fn fill(&self, text: &str) -> String {
        let text = text.replace("{ports}", PORTS);
        let port = |text: String, (name, port): &(&str, u16)| {
            text.replace(&format!("{{{name}}}"), &port.to_string())
        };
        self.ports.iter().fold(text, port)
    }

    /// Replaces ports by their names in braces.
    pub(super) fn forget_ports(&self, text: &str) -> String {
        let name = |text: String, (name, port): &(&str, u16)| {
            text.replace(&format!(":{port}"), &format!(":{{{name}}}"))
        };
        self.ports.iter().fold(text.to_owned(), name)
    }
}
