//! HAProxy asks Tidegate over HTTP, with `config/layers/haproxy.cfg` and no Envoy: refusals, admitted
//! requests, and an unreachable Tidegate.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::process::{Child, Command, Stdio};

use socket2::SockRef;
use tempfile::TempDir;

use super::backend::Backend;
use super::bootstrap::repository;
use super::forward_auth::{LIMIT, policy};
use super::http_client::get;
use super::stack::written;
use super::tidegate_behind_envoy::Tidegate;
use crate::support::child_process::{find_program, until_running};

/// A running HAProxy; ends when dropped.
struct HaProxy {
    child: Child,
    address: SocketAddr,
    _directory: TempDir,
}

impl HaProxy {
    fn start(tidegate: &Tidegate, backend: &Backend) -> HaProxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the bound address");
        let directory = TempDir::new().expect("a temporary directory");
        // It inherits the socket, so that nobody can take the port away.
        SockRef::from(&listener).set_cloexec(false).expect("a flag");
        let socket = format!("bind fd@{}", listener.as_raw_fd());
        let (asked, served) = (tidegate.http.to_string(), backend.address.to_string());
        let files = [
            ("haproxy.cfg", vec![("bind 127.0.0.1:10080", &*socket), ("127.0.0.1:8000", &*served)]),
            // On a busy machine an answer may take longer.
            (
                "ask-tidegate.lua",
                vec![("127.0.0.1:8080", &*asked), ("timeout = 100", "timeout = 20000")],
            ),
        ];
        for (name, replaced) in files {
            let example = repository("config/layers").join(name);
            let mut text = fs::read_to_string(example).expect("the example");
            for (words, others) in replaced {
                assert!(text.contains(words), "{name} has no {words}");
                text = text.replace(words, others);
            }
            fs::write(directory.path().join(name), text).expect("a writable directory");
        }
        let log = directory.path().join("log");
        let mut child = Command::new(find_program("haproxy"))
            .args(["-db", "-f", "haproxy.cfg"])
            .arg("-C")
            .arg(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).expect("a writable directory"))
            .spawn()
            .expect("haproxy starts");
        // The socket accepts connections from the start; a request is answered once HAProxy runs.
        until_running(&mut child, "haproxy", &log, || {
            (get("/").send(address).status == 200).then_some(())
        });
        HaProxy { child, address, _directory: directory }
    }
}

impl Drop for HaProxy {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn haproxy_refuses_what_tidegate_refuses_and_passes_what_nobody_decides() {
    let file = written(&policy());
    let settings = [("TIDEGATE_HEADERS", "x-ratelimit")];
    let (backend, mut tidegate) = (Backend::start(), Tidegate::start(file.path(), &settings));
    let haproxy = HaProxy::start(&tidegate, &backend);
    let served = backend.served();
    let of = |token: &str| get("/?a=1").with("x-api-token", token).send(haproxy.address);
    assert!((0..LIMIT).all(|_| of("one").status == 200));
    let refusal = of("one");
    assert_eq!((refusal.status, refusal.header("content-type")), (429, Some("application/json")));
    assert_eq!(refusal.body, r#"{"error": "too_many_requests", "limit": "token"}"#);
    assert_eq!(refusal.header("x-ratelimit-limit"), Some(&*LIMIT.to_string()));
    let wait = refusal.header("retry-after").expect("how long to wait");
    assert!(wait.parse::<u64>().is_ok_and(|seconds| seconds > 60), "{wait}");
    assert_eq!(of("two").status, 200, "another token");
    assert_eq!(backend.served() - served, LIMIT as u64 + 1);
    let left = |address: &str| tidegate.left("edge", &format!("remote_address={address}"));
    let elsewhere = get("/").with("x-forwarded-for", "192.0.2.1").send(haproxy.address);
    assert_eq!(elsewhere.status, 200);
    assert_eq!(left("192.0.2.1").into_values().collect::<Vec<_>>(), [600], "not the client's word");
    tidegate.kill();
    assert_eq!(of("one").status, 200, "nobody decides");
}
