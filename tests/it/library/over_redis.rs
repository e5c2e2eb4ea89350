//! A limiter over a real Redis.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::clock::{Clock, ManualClock};
use tidegate::domain::Micros;
use tidegate::{CheckError, ConfigError, Descriptor, Limiter, RedisOptions};

use crate::support::acl;
use crate::support::certificate_authority::Authority;
use crate::support::redis_server::{PATIENCE, Server, free_port};
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate};

/// The longest that a call may take, so that a busy machine does not make Redis look silent.
const BUDGET: Duration = Duration::from_secs(2);

async fn limiter(policy: &str, redis: RedisOptions) -> Limiter {
    let limiter = Limiter::builder().policy("policy.yaml", policy).redis(redis).build().unwrap();
    tokio::time::timeout(PATIENCE, limiter.wait_until_connected()).await.unwrap();
    limiter
}

fn ann() -> Descriptor<'static> {
    Descriptor::new([("client", "ann")])
}

#[tokio::test]
async fn a_limiter_and_a_service_share_a_counter() {
    let server = Server::start(&[]);
    let url = format!("127.0.0.1:{}", server.port);
    let flags = [
        "--redis-url",
        &url,
        "--redis-budget",
        "2s",
        "--key-secret",
        "s",
        "--cache-key-prefix",
        "p:",
    ];
    let service = Tidegate::policy(FIVE_A_DAY, &flags);
    let redis = RedisOptions::single("127.0.0.1", server.port).budget(BUDGET).key_prefix("p:");
    let builder = Limiter::builder().policy("policy.yaml", FIVE_A_DAY).key_secret("s").redis(redis);
    let limiter = builder.build().unwrap();
    tokio::time::timeout(PATIENCE, limiter.wait_until_connected()).await.unwrap();
    for left in [4, 2] {
        let decision = limiter.check("edge", &[ann()]).await.unwrap();
        assert_eq!(
            (decision.source(), decision.descriptors()[0].remaining()),
            ("redis", Some(left))
        );
        assert!(service.ask("ann").starts_with("OK"));
    }
    assert!(limiter.check("edge", &[ann()]).await.unwrap().is_admitted());
    let sixth = limiter.check("edge", &[ann()]).await.unwrap();
    assert!(!sixth.is_admitted() && sixth.retry_after().is_some());
    assert_eq!(sixth.limited_by(), Some("daily"));
    assert!(!service.ask("ann").starts_with("OK"));
    limiter.refund("edge", &[ann().hits(2)]).await.unwrap();
    assert!(limiter.peek("edge", &[ann()]).await.unwrap().is_admitted());
    let refunded = limiter.check("edge", &[ann()]).await.unwrap();
    assert_eq!(refunded.descriptors()[0].remaining(), Some(1));
}

#[tokio::test]
async fn a_new_policy_drops_cached_refusals() {
    let server = Server::start(&[]);
    let redis = RedisOptions::single("127.0.0.1", server.port).budget(BUDGET);
    let limiter = limiter(FIVE_A_DAY, redis).await;
    let source = async || limiter.check("edge", &[ann()]).await.unwrap().source();
    while source().await != "cached" {}
    limiter.replace_policy([("policy.yaml", FIVE_A_DAY)]).unwrap();
    assert_eq!(source().await, "redis");
}

#[tokio::test]
async fn without_redis_each_process_has_its_share() {
    let redis = RedisOptions::single("127.0.0.1", free_port()).replicas(5);
    let builder = Limiter::builder().redis(redis);
    let limiter = builder.clone().policy("policy.yaml", FIVE_A_DAY).build().unwrap();
    let decision = limiter.check("edge", &[ann()]).await.unwrap();
    assert_eq!((decision.is_admitted(), decision.source()), (true, "local"));
    assert!(!limiter.check("edge", &[ann()]).await.unwrap().is_admitted(), "a fifth of five");

    let strict = format!("on_store_failure: error\n{FIVE_A_DAY}");
    let limiter = builder.policy("policy.yaml", strict).build().unwrap();
    let error = limiter.check("edge", &[ann()]).await.unwrap_err();
    assert_eq!(error, CheckError::Unavailable);
}

#[tokio::test]
async fn tls_and_a_login_with_the_least_permissions_work() {
    let authority = Authority::new();
    let (own, client) = (authority.signs("localhost"), authority.signs("client"));
    let directory = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let path = directory.path().join(file);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let server = Server::start(&[
        &format!("{} +select", acl::line(acl::SINGLE)),
        "port 0",
        "tls-port {port}",
        "tls-auth-clients yes",
        &format!("tls-ca-cert-file {}", write("ca.pem", &authority.certificate)),
        &format!("tls-cert-file {}", write("cert.pem", &own.certificate)),
        &format!("tls-key-file {}", write("key.pem", &own.key)),
    ]);
    let redis = RedisOptions::single("localhost", server.port)
        .tls_ca(authority.certificate.clone())
        .tls_client_certificate(client.certificate, client.key)
        .user(acl::USER)
        .password(acl::PASSWORD)
        .database(3)
        .budget(BUDGET);
    let limiter = limiter(FIVE_A_DAY, redis).await;
    assert_eq!(limiter.check("edge", &[ann()]).await.unwrap().source(), "redis");
}

#[tokio::test]
async fn a_cluster_and_sentinels_are_options_too() {
    let unreachable = [("127.0.0.1", free_port())];
    for redis in [
        RedisOptions::cluster(unreachable),
        RedisOptions::sentinel("mymaster", unreachable).sentinel_login(None, "p"),
        RedisOptions::unix_socket("/nonexistent/redis.sock"),
    ] {
        let limiter =
            Limiter::builder().policy("policy.yaml", FIVE_A_DAY).redis(redis).build().unwrap();
        assert_eq!(limiter.check("edge", &[ann()]).await.unwrap().source(), "local");
    }
}

#[tokio::test]
async fn invalid_options_are_named() {
    let one = || RedisOptions::single("127.0.0.1", free_port());
    let nowhere: [(&str, u16); 0] = [];
    for (redis, names) in [
        (one().budget(Duration::ZERO), "budget: "),
        (one().budget(Duration::from_micros(999)), "budget: "),
        (one().budget(Duration::from_secs(61)), "budget: "),
        (one().replicas(0), "replicas: "),
        (one().replicas(10_001), "replicas: "),
        (one().key_prefix("{"), "key_prefix: "),
        (one().tls_ca("no certificate"), "TLS towards Redis: "),
        (RedisOptions::cluster([("127.0.0.1", 1)]).database(1), "database: "),
        (RedisOptions::cluster(nowhere), "no Redis address"),
    ] {
        let error = Limiter::builder().policy("policy.yaml", FIVE_A_DAY).redis(redis).build();
        let Err(ConfigError::Option(text)) = error else { panic!("{names}: {error:?}") };
        assert!(text.starts_with(names), "{text}");
    }
}

#[test]
fn without_a_tokio_runtime_building_fails() {
    let redis = RedisOptions::single("127.0.0.1", 6379);
    let error = Limiter::builder().policy("policy.yaml", FIVE_A_DAY).redis(redis).build();
    assert_eq!(error.unwrap_err(), ConfigError::NoRuntime);
}

/// What is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn lines(&self, message: &str) -> Vec<String> {
        let bytes = self.0.lock().unwrap();
        let lines = str::from_utf8(&bytes).unwrap().lines();
        lines.filter(|line| line.contains(message)).map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Calls, each of them a moment of the manual clock after the one before, until `done`.
async fn call_until(limiter: &Limiter, clock: &ManualClock, done: impl Fn(&str) -> bool) {
    let calls = async {
        while !done(limiter.check("edge", &[ann()]).await.unwrap().source()) {
            clock.advance(Micros(100_000));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, calls).await.unwrap();
}

#[tokio::test]
async fn calls_alone_log_the_begin_and_the_end_of_each_outage() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let mut server = Server::start(&[]);
    let clock = ManualClock::at(Clock::System.now());
    let many = FIVE_A_DAY.replace(": 5}", ": 1000000}");
    let limiter = Limiter::builder()
        .policy("policy.yaml", many)
        .clock(Clock::Manual(clock.clone()))
        .redis(RedisOptions::single("127.0.0.1", server.port).budget(BUDGET))
        .build()
        .unwrap();
    tokio::time::timeout(PATIENCE, limiter.wait_until_connected()).await.unwrap();
    let (begun, ended) = ("degraded: deciding without Redis", "no longer degraded");
    call_until(&limiter, &clock, |source| source == "redis").await;
    for outage in 1..=2 {
        server.kill();
        call_until(&limiter, &clock, |_| log.lines(begun).len() == outage).await;
        assert_eq!(log.lines(ended).len(), outage - 1);
        clock.advance(Micros::from_secs(61));
        server.restart();
        call_until(&limiter, &clock, |_| log.lines(ended).len() == outage).await;
    }
    for line in log.lines(ended) {
        let lasted: u64 = line.split("lasted_ms=").nth(1).unwrap().trim().parse().unwrap();
        assert!(lasted >= 61_000, "the manual clock measures outages: {line}");
    }
}

#[test]
fn the_runtime_of_a_limiter_may_end_while_calls_are_made() {
    let server = Server::start(&[]);
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (own, other) = (runtime(), runtime());
    let many = FIVE_A_DAY.replace(": 5}", ": 1000000}");
    let redis = RedisOptions::single("127.0.0.1", server.port).budget(BUDGET);
    let limiter = own.block_on(limiter(&many, redis));
    server.freeze();
    let ask = |limiter: Limiter| async move { limiter.check("edge", &[ann()]).await };
    let own_calls: Vec<_> = (0..20).map(|_| own.spawn(ask(limiter.clone()))).collect();
    let calls: Vec<_> = (0..20).map(|_| other.spawn(ask(limiter.clone()))).collect();
    own.shutdown_timeout(PATIENCE);
    for call in own_calls {
        let ended = other.block_on(call);
        assert!(ended.map_or_else(|error| error.is_cancelled(), |decision| decision.is_ok()));
    }
    for call in calls {
        assert!(other.block_on(call).unwrap().unwrap().is_admitted());
    }
    // Also without any runtime: nothing is left that could be awaited.
    let decision = futures_util::FutureExt::now_or_never(ask(limiter)).expect("an answer");
    assert_eq!(decision.unwrap().source(), "local");
}
