//! Three Tidegates that share one Redis, and concurrent callers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::grpc_client::{CallDescriptor, CallRequest, Client, ClientSettings};

use crate::support::acl;
use crate::support::http::get;
use crate::support::tidegate_process::{Tidegate, run};

pub const LIMIT: u64 = 1_000;
const REPLICAS: usize = 3;
const CALLERS_EACH: usize = 64;
/// 1,536 calls race for 1,000 places.
const CALLS_EACH: usize = 8;
/// More than the store's budget, which must not be what ends a call.
const PATIENCE: Duration = Duration::from_secs(120);

/// What every call of a run asks: fresh counters, one descriptor for each.
#[derive(Clone, Copy)]
pub struct RaceRun {
    pub run: u64,
    pub counters: &'static [&'static str],
}

impl RaceRun {
    fn question(&self) -> CallRequest {
        let pair = |key: &str, value: String| (key.as_bytes().to_vec(), value.into_bytes());
        let descriptor = |counter: &&str| CallDescriptor {
            entries: vec![pair("run", self.run.to_string()), pair(counter, "x".to_owned())],
            ..CallDescriptor::default()
        };
        let descriptors = self.counters.iter().map(descriptor).collect();
        CallRequest { domain: "race".to_owned(), descriptors, hits: 1 }
    }
}

pub struct Replicas {
    pub each: Vec<Tidegate>,
    asked: AtomicU64,
}

impl Replicas {
    /// `place`: the type of Redis, and where it is.
    pub fn start(policy: &str, place: &[String; 2]) -> Replicas {
        Replicas::start_with(policy, place, &[])
    }

    /// The same with more flags.
    pub fn start_with(policy: &str, place: &[String; 2], flags: &[&str]) -> Replicas {
        let [kind, url] = place;
        let auth = format!("{}:{}", acl::USER, acl::PASSWORD);
        let arguments = [
            ["--redis-type", kind],
            ["--redis-url", url],
            ["--redis-auth", &auth],
            ["--redis-budget", "60s"],
            // A remembered refusal would not have come from Redis.
            ["--rejection-cache", "false"],
            ["--require-redis", "true"],
        ];
        let all = [arguments.as_flattened(), flags].concat();
        let each = (0..REPLICAS).map(|_| Tidegate::policy(policy, &all)).collect();
        Replicas { each, asked: AtomicU64::new(0) }
    }

    /// Every caller of every replica at once; how many calls were admitted.
    pub async fn storm(&self, asked: &RaceRun) -> u64 {
        let mut clients = Vec::new();
        for serving in &self.each {
            for _ in 0..CALLERS_EACH {
                clients.push(connect(serving).await);
            }
        }
        let mut tasks = tokio::task::JoinSet::new();
        for mut client in clients {
            let question = asked.question();
            tasks.spawn(async move {
                let mut admitted = 0;
                for _ in 0..CALLS_EACH {
                    admitted += u64::from(admits(&mut client, &question).await);
                }
                admitted
            });
        }
        self.asked.fetch_add((REPLICAS * CALLERS_EACH * CALLS_EACH) as u64, Ordering::SeqCst);
        let mut admitted = 0;
        while let Some(one) = tasks.join_next().await {
            admitted += one.unwrap();
        }
        admitted
    }

    /// One caller, until it is refused.
    pub async fn alone(&self, asked: &RaceRun) -> u64 {
        let mut client = connect(&self.each[0]).await;
        let question = asked.question();
        for admitted in 0.. {
            self.asked.fetch_add(1, Ordering::SeqCst);
            if !admits(&mut client, &question).await {
                return admitted;
            }
        }
        unreachable!("a limit is reached some time")
    }

    /// The keys of the counters, as `tidegate explain` prints them.
    pub fn keys(&self, asked: &RaceRun) -> Vec<String> {
        let policy = self.each[0].directory().join("policy.yaml").display().to_string();
        let key = |counter: &&str| {
            let descriptor = format!("run={},{counter}=x", asked.run);
            let told = run(&["explain", "--policy", &policy, "race", &descriptor]).with_code(0).out;
            let key = told.lines().find_map(|line| line.trim().strip_prefix("in Redis "));
            key.expect("a key").to_owned()
        };
        asked.counters.iter().map(key).collect()
    }

    /// Every call was decided by Redis, says each replica of itself.
    pub async fn assert_all_from_redis(&self) {
        let (mut redis, mut others) = (0, 0);
        for serving in &self.each {
            for line in get(serving.port("http"), "/metrics").body.lines() {
                let Some(rest) = line.strip_prefix("tidegate_decisions_total{") else { continue };
                let count: u64 = rest.rsplit(' ').next().unwrap().parse().unwrap();
                let of_redis = rest.contains("source=\"redis\"");
                *(if of_redis { &mut redis } else { &mut others }) += count;
            }
        }
        assert_eq!((redis, others), (self.asked.load(Ordering::SeqCst), 0));
    }
}

pub async fn connect(serving: &Tidegate) -> Client {
    let target = serving.port("grpc").to_string();
    let settings = ClientSettings { target, timeout: Some(PATIENCE), tls: None };
    Client::connect(&settings).await.expect("it serves")
}

async fn admits(client: &mut Client, question: &CallRequest) -> bool {
    let told = client.send(question).await.expect("every call is decided");
    if told.refused {
        let source = told.metadata.as_ref().map(|metadata| &metadata["tidegate"]["source"]);
        assert_eq!(source.and_then(|source| source.as_str()), Some("redis"));
    }
    !told.refused
}
