//! What most trials run on: a Redis under the least-privilege ACL, a proxy in front of it, a
//! Tidegate.
//!
//! Not here: clusters (`rows::cluster` builds its own).

use crate::support::acl;
use crate::support::fault_proxy::Proxy;
use crate::support::redis_server::Server;
use crate::tidegate_replica::{self, Tidegate};
use crate::trial::policy;

/// One Redis and one Tidegate that counts in it. Dropped in this order.
pub struct RedisBehindProxy {
    pub tidegate: Tidegate,
    pub proxy: Option<Proxy>,
    pub server: Server,
}

/// A budget that only a fault outlives, where a row wants exact counts of a busy machine.
pub const PATIENT: [&str; 2] = ["--redis-budget", "30s"];

/// Redis as an operator runs it, besides what lets a test disturb it.
pub fn redis(lines: &[&str]) -> Server {
    let user = acl::line(acl::SINGLE);
    let mut all = vec![user.as_str(), "enable-debug-command local"];
    all.extend(lines);
    Server::start(&all)
}

/// The flags that lead to a Redis at this port.
pub fn counting_in(port: u16) -> Vec<String> {
    let auth = format!("{}:{}", acl::USER, acl::PASSWORD);
    let url = format!("127.0.0.1:{port}");
    ["--redis-url", &url, "--redis-auth", &auth].map(str::to_owned).into()
}

/// A Tidegate that counts there.
pub fn tidegate(port: u16, flags: &[&str]) -> Tidegate {
    let mut all = counting_in(port);
    all.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    tidegate_replica::start(&policy(), &all)
}

impl RedisBehindProxy {
    pub fn plain(flags: &[&str]) -> RedisBehindProxy {
        let server = redis(&[]);
        let tidegate = tidegate(server.port, flags);
        RedisBehindProxy { tidegate, proxy: None, server }
    }

    pub fn proxied(flags: &[&str]) -> RedisBehindProxy {
        let server = redis(&[]);
        let proxy = Proxy::start(server.port);
        let tidegate = tidegate(proxy.port, flags);
        RedisBehindProxy { tidegate, proxy: Some(proxy), server }
    }

    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("a proxied stand")
    }
}
