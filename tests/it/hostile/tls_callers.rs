//! Callers with client certificates, and the certificate directory of a process, laid out as
//! Kubernetes mounts a Secret: links into a directory that is swapped as a whole.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::grpc_client::{
    CallDescriptor, CallError, CallRequest, CallResponse, Client, ClientSettings, ClientTls,
};
use tempfile::TempDir;

use crate::support::certificate_authority::{Authority, Identity};
use crate::support::tidegate_process::{Tidegate, directory, tidegate};

/// What the server's certificate is made out to.
pub(crate) const SERVER: &str = "tidegate.test";
/// Only a broken test waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A policy that lets everything pass, in two domains.
const TWO_DOMAINS: [(&str, &str); 2] = [
    ("edge.yaml", "domain: edge\ndescriptors:\n  - {key: client, rate_limit: {unlimited: true}}\n"),
    ("pay.yaml", "domain: pay\ndescriptors:\n  - {key: client, rate_limit: {unlimited: true}}\n"),
];

/// A mounted Secret.
pub(crate) struct Secret {
    directory: PathBuf,
    version: u32,
}

impl Secret {
    fn within(directory: &Path) -> Secret {
        let directory = directory.join("secret");
        fs::create_dir(&directory).unwrap();
        for name in ["tls.crt", "tls.key", "ca.crt"] {
            symlink(Path::new("..data").join(name), directory.join(name)).unwrap();
        }
        Secret { directory, version: 0 }
    }

    /// Swaps the whole content at once.
    pub(crate) fn becomes(&mut self, server: &Identity, callers: &str) {
        self.version += 1;
        let version = format!("..{}", self.version);
        let data = self.directory.join(&version);
        fs::create_dir(&data).unwrap();
        fs::write(data.join("tls.crt"), &server.certificate).unwrap();
        fs::write(data.join("tls.key"), &server.key).unwrap();
        fs::write(data.join("ca.crt"), callers).unwrap();
        symlink(version, self.directory.join("..data_tmp")).unwrap();
        fs::rename(self.directory.join("..data_tmp"), self.directory.join("..data")).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// A process whose certificates are signed by `authority`, which signs its callers' too.
pub(crate) fn serving(authority: &Authority, more: &[&str]) -> (Tidegate, Secret) {
    let files: TempDir = directory(&TWO_DOMAINS);
    let mut secret = Secret::within(files.path());
    secret.becomes(&authority.signs(SERVER), &authority.certificate);
    let path = |name: &str| secret.path(name).display().to_string();
    let mut command = tidegate();
    command.arg("serve");
    for (name, _) in TWO_DOMAINS {
        command.arg("--policy").arg(files.path().join(name));
    }
    command.args(["--grpc-server-use-tls", "--grpc-server-tls-cert", &path("tls.crt")]);
    command.args(["--grpc-server-tls-key", &path("tls.key")]);
    command.args(["--grpc-client-tls-cacert", &path("ca.crt")]);
    (Tidegate::start(command.args(more), files), secret)
}

/// A connection that trusts `trusted` and shows `identity`.
pub(crate) async fn connect(
    serving: &Tidegate,
    trusted: &str,
    identity: Option<&Identity>,
) -> Result<Client, CallError> {
    let pem = |text: &str| text.as_bytes().to_vec();
    let settings = ClientSettings {
        target: serving.port("grpc").to_string(),
        timeout: Some(PATIENCE),
        tls: Some(ClientTls {
            authority: pem(trusted),
            identity: identity.map(|it| (pem(&it.certificate), pem(&it.key))),
            server_name: Some(SERVER.to_owned()),
        }),
    };
    Client::connect(&settings).await
}

/// One call for `domain`.
pub(crate) async fn ask(client: &mut Client, domain: &str) -> Result<CallResponse, CallError> {
    let entries = vec![(b"client".to_vec(), b"ann".to_vec())];
    let descriptors = vec![CallDescriptor { entries, ..Default::default() }];
    client.send(&CallRequest { domain: domain.to_owned(), descriptors, hits: 0 }).await
}

/// What a caller with that identity, who trusts `trusted`, gets for `domain`: a call's answer, the
/// name of its gRPC code, or no connection at all.
pub(crate) async fn fate(
    serving: &Tidegate,
    trusted: &str,
    identity: Option<&Identity>,
    domain: &str,
) -> String {
    let mut client = match connect(serving, trusted, identity).await {
        Ok(client) => client,
        Err(_) => return "no connection".to_owned(),
    };
    match ask(&mut client, domain).await {
        Ok(told) => told.code.to_owned(),
        Err(CallError::Status(status)) => match status.code() {
            // A server that refuses a certificate says so after TLS 1.3's handshake: the first
            // call meets the end of the connection.
            tonic::Code::Unknown
            | tonic::Code::Unavailable
            | tonic::Code::Internal
            | tonic::Code::Cancelled => "no connection".to_owned(),
            code => format!("{code:?}"),
        },
        Err(other) => panic!("{other}"),
    }
}
