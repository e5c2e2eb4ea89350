//! A running NGINX with an example of `config/layers`.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::process::{Child, Command, Stdio};

use socket2::SockRef;
use tempfile::TempDir;

use super::bootstrap::repository;
use crate::support::child_process::{find_program, until_running};

/// An NGINX; ends when dropped.
pub struct Nginx {
    child: Child,
    pub address: SocketAddr,
    _directory: TempDir,
}

impl Nginx {
    /// The one in front of `envoy`, with these words of it replaced.
    pub fn start(envoy: SocketAddr, replaced: &[(&str, &str)]) -> Nginx {
        let upstream = envoy.to_string();
        let ours = [("127.0.0.1:10000", &*upstream)];
        Nginx::of("nginx.conf", &[&ours, replaced].concat())
    }

    /// An example on a port of its own, with these words of it replaced.
    pub fn of(example: &str, replaced: &[(&str, &str)]) -> Nginx {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the bound address");
        let file = repository("config/layers").join(example);
        let mut config = fs::read_to_string(file).expect("the example");
        for (words, others) in [("127.0.0.1:10080", &*address.to_string())].iter().chain(replaced) {
            assert!(config.contains(words), "the example has no {words}");
            config = config.replace(words, others);
        }
        let directory = TempDir::new().expect("a temporary directory");
        let (file, log) = (directory.path().join("nginx.conf"), directory.path().join("log"));
        fs::write(&file, config).expect("a writable directory");
        // It inherits the socket, as a new NGINX does of an old one: nobody can take the port away.
        SockRef::from(&listener).set_cloexec(false).expect("a flag");
        let mut child = Command::new(find_program("nginx"))
            .arg("-p")
            .arg(directory.path())
            .arg("-c")
            .arg(&file)
            .env("NGINX", format!("{};", listener.as_raw_fd()))
            .stdin(Stdio::null())
            .stderr(File::create(&log).expect("a writable directory"))
            .spawn()
            .expect("nginx starts");
        until_running(&mut child, "nginx", &log, || {
            directory.path().join("nginx.pid").exists().then_some(())
        });
        Nginx { child, address, _directory: directory }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Asked, not killed: its workers end with it then. Either fails only if it has ended already.
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.child.wait();
    }
}
