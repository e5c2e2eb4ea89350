//! `tidegate serve`: starts the service, serves requests, and shuts down gracefully.
//!
//! On SIGTERM, health and readiness checks start to fail, and calls are served until the drain
//! delay has passed. Then the server sends GOAWAY on every gRPC connection and finishes the calls
//! in flight. SIGINT does the same without the delay. The process exits with code 0, at most
//! `--hard-limit` after the signal. A second SIGTERM or SIGINT makes it exit immediately. SIGHUP
//! reloads the policy and the certificates.

use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, timeout};

use super::admin_wiring::AdminWiring;
use super::http_ports::{HttpPorts, RunningHttpPorts};
use super::log_level::LogLevelControl;
use super::operator_overrides::{OperatorOverrides, Requests, base_file, redis_follower};
use super::peers::Peers;
use super::policy_source::InitialPolicy;
use super::process::exit_codes::Failure;
use super::process::signals::Signals;
use super::process::watcher_thread::WatcherThread;
use super::request_rates::RateSampler;
use super::wiring::certificate_reload::CertificateReloader;
use super::wiring::otlp_exporters::OtlpExporters;
use super::wiring::server_config;
use super::wiring::store_setup::ServiceDecider;
use super::{Configuration, admin_actions, live_page_data};
use crate::clock::Clock;
use crate::decide::{Decider, GlobalModes};
use crate::limiter::any_store::AnyStore;
use crate::server::{DrainingListener, Health, RlsService, Router};
use crate::settings::{Notice, NoticeKind, Settings};
use crate::telemetry;
use crate::wire::ResponseConfig;

/// Number of threads for all work except gRPC calls: probes, scrapes, `/json`, and accepting
/// connections.
const AUXILIARY_THREADS: usize = 2;

/// Interval between sweeps, which remove expired counters, end expired overrides, and restore the
/// configured log level after a temporary change: 1 s.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Number of slots of the memory store that each sweep checks. Sweeping a store of a million keys
/// takes eight sweeps of about 10 ms each, one per second.
const SWEEP_SLOTS: usize = 131_072;

/// Timeout for the final export of metrics and traces at shutdown, 1 s.
const LAST_EXPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time that a start waits for the overrides in Redis, 2 s. Reading 100,000 takes about one.
const OVERRIDES_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the service until a signal stops it.
///
/// # Errors
///
/// Returns the reason why the service cannot start.
pub fn serve(configuration: Configuration) -> Result<(), Failure> {
    let Settings { log_level, log_format, .. } = configuration.settings;
    let log_level = LogLevelControl::new(telemetry::init_logging(log_level, log_format), log_level);
    super::process::rlimit::raise_open_file_limit();
    let (risks, mistakes): (Vec<_>, Vec<_>) =
        configuration.notices.iter().cloned().partition(|notice| notice.kind == NoticeKind::Risk);
    mistakes.into_iter().for_each(log_notice);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(AUXILIARY_THREADS)
        .thread_name("side")
        .enable_all()
        .build()
        .map_err(Failure::runtime)?;
    let result = runtime.block_on(run(&configuration, risks, log_level));
    // Do not wait for background tasks at exit.
    runtime.shutdown_background();
    result
}

async fn run(
    configuration: &Configuration,
    risks: Vec<Notice>,
    log_level: LogLevelControl,
) -> Result<(), Failure> {
    let settings = &configuration.settings;
    // First, because a SIGHUP would end a process that has no handler for it yet.
    let mut signals = Signals::install()?;
    // Run every step that can fail before answering the first call.
    let response_config = server_config::response_config(settings)?;
    let certificates = CertificateReloader::new(settings)?;
    let tls = certificates.as_ref().map(|certificates| certificates.tls.clone());
    let Some(started) = InitialPolicy::start(settings, &mut signals).await? else { return Ok(()) };
    let listener = server_config::bind_grpc(settings, tls.clone())?;
    let http_ports = HttpPorts::bind(settings).await?;
    // Not earlier: before the reason why the service cannot start, they would look like it.
    risks.into_iter().for_each(log_notice);

    let telemetry = Arc::clone(&started.telemetry);
    let modes = GlobalModes { shadow: settings.shadow_mode, quota: settings.quota_mode };
    let store = AnyStore::open(settings, &started.secret, listener.worker_handles())?;
    let (policy, observer) = (Arc::clone(&started.policy), Arc::clone(&telemetry));
    let decider = Arc::new(Decider::new(policy, store, observer, modes));
    let (overrides, requests) = OperatorOverrides::new(&decider);
    let watch = |path| base_file::watch(path, Arc::clone(&overrides));
    let _base_file = settings.overrides.clone().map(watch).transpose()?;
    let rate_limit = rate_limit_service(&decider, &overrides, settings, response_config);
    let health = Health::default();

    let wiring = Arc::new(AdminWiring {
        configuration: configuration.clone(),
        decider: Arc::clone(&decider),
        rate_limit: Arc::clone(&rate_limit),
        health: health.clone(),
        telemetry: Arc::clone(&telemetry),
        connection_stats: listener.connection_stats(),
        unreadable: listener.unreadable_callers(),
        http_memory: listener.http_memory(),
        tls_counters: tls.map(|tls| tls.counters()),
        control_plane: started.control_plane_status(),
        overrides: Arc::clone(&overrides),
        log_level,
        token: settings.debug_token_file.clone().map(admin_actions::watch_token).transpose()?,
        peers: Peers::start(&settings.peers),
        rates: RateSampler::default(),
    });
    let (metrics, exporters) = wiring.start_metrics()?;
    http_ports.log_addresses(listener.address().map(|address| address.to_string()));
    let http_ports = http_ports.serve(&wiring, metrics);
    tokio::spawn(drain_keys(Arc::clone(&wiring)));
    let Some(is_connected) = wait_for_redis(&decider, settings, &mut signals).await? else {
        return Ok(());
    };
    // Not earlier: it would report a Redis that has had no time to connect as an outage.
    start_tasks(&wiring, requests, is_connected).await;
    started.become_ready(settings, &health);
    let files = started.files;
    let mut watchers = Vec::from_iter(started.attach(overrides)?);
    if let Some(mut certificates) = certificates {
        // Apart from the policy, so that a hanging file system blocks only one of them.
        watchers.push(WatcherThread::start("certificates", move |poll| certificates.poll(poll))?);
    }
    log_global_modes(configuration);
    log_ready(is_connected, &decider, files, &telemetry.policy_fingerprint());
    let stop = async {
        let drain = signals.wait_for_stop(|| watchers.iter().for_each(WatcherThread::reload)).await;
        tracing::info!("stopping");
        exit_at_hard_limit(settings.hard_limit);
        http_ports.leave();
        tokio::spawn(signals.exit_on_next_signal());
        drain
    };
    let draining = listener.serve(Router::new(rate_limit, health), stop).await;
    drop(watchers);
    finish_calls(draining, http_ports, &decider, exporters).await;
    Ok(())
}

/// Waits for the calls on both ports and for what they leave behind, and stops the worker threads last,
/// because the connections to Redis run on them.
async fn finish_calls(
    mut draining: DrainingListener,
    http_ports: RunningHttpPorts,
    decider: &ServiceDecider,
    exporters: OtlpExporters,
) {
    let deadline = draining.deadline();
    let (cut_off, ()) = tokio::join!(draining.finish_calls(), http_ports.stop(deadline));
    let _ = tokio::time::timeout_at(deadline, decider.store().wait_until_idle()).await;
    let _ = timeout(LAST_EXPORT_TIMEOUT, exporters.stop()).await;
    draining.stop().await;
    tracing::info!(cut_off, "stopped");
}

/// Waits until Redis is connected, as the settings say. Returns whether it is, or `None` if the process
/// is to stop. Nothing has been served yet, so there is nothing to drain, and no watcher to reload.
async fn wait_for_redis(
    decider: &ServiceDecider,
    settings: &Settings,
    signals: &mut Signals,
) -> Result<Option<bool>, Failure> {
    tokio::select! {
        ready = decider.store().wait_until_ready(settings) => Ok(Some(ready?)),
        _ = signals.wait_for_stop(|| {}) => {
            tracing::info!("stopped before Redis was connected");
            Ok(None)
        }
    }
}

/// Starts the task of the overrides at run time, waits for those in Redis, and starts the sweeps.
async fn start_tasks(wiring: &Arc<AdminWiring>, requests: Requests, is_connected: bool) {
    let (overrides, redis) = (Arc::clone(&wiring.overrides), wiring.decider.store().redis());
    let store = redis.map(|redis| redis.remote().override_store(wiring.peers.instance));
    let counts_replicas = wiring.configuration.settings.replicas.is_none();
    tokio::spawn(redis_follower::run(overrides, requests, store, counts_replicas));
    if is_connected {
        // Otherwise, a new replica would not apply them to its first calls.
        let _ = timeout(OVERRIDES_TIMEOUT, wiring.overrides.wait_until_polled()).await;
    }
    tokio::spawn(sweep(Arc::clone(wiring)));
}

fn rate_limit_service(
    decider: &Arc<ServiceDecider>,
    overrides: &Arc<OperatorOverrides>,
    settings: &Settings,
    response_config: ResponseConfig,
) -> Arc<RlsService<ServiceDecider>> {
    let mut service = RlsService::new(Arc::clone(decider), Clock::System, response_config);
    service.bounds = server_config::bounds(settings);
    service.has_limits_service = settings.batches;
    service.counter_access = settings.counter_access;
    service.overrides = Some(Arc::clone(overrides) as _);
    service.open_permissions = server_config::open_permissions(settings);
    Arc::new(service)
}

fn log_ready(
    is_connected: bool,
    decider: &ServiceDecider,
    files: Option<usize>,
    fingerprint: &str,
) {
    let rules = decider.policy().rules().len();
    let addresses = decider.store().redis().map(|redis| redis.remote().transport().addresses());
    let store = if addresses.is_some() { "redis" } else { "memory" };
    if is_connected {
        tracing::info!(store, addresses, files, rules, fingerprint, "ready");
    } else {
        let calls = "decided by each rule's on_store_failure, by default with counters in memory";
        tracing::warn!(
            calls,
            addresses,
            files,
            rules,
            fingerprint,
            "ready, degraded: Redis is not connected"
        );
    }
}

/// Warns of the global modes, and says which source sets each.
fn log_global_modes(Configuration { settings, values, .. }: &Configuration) {
    let origin = |name| values.iter().find(|value| value.row.name == name).map(|it| &it.origin);
    if let Some(origin) = origin("shadow-mode").filter(|_| settings.shadow_mode) {
        let advice = "remove this setting, and restart, to reject calls over a limit";
        tracing::warn!(%origin, advice, "global shadow mode is on: no call is rejected");
    }
    if let Some(origin) = origin("quota-mode").filter(|_| settings.quota_mode) {
        tracing::warn!(%origin, "global quota mode is on: a call passes if one descriptor passes");
    }
}

fn log_notice(Notice { kind, name, text }: Notice) {
    match kind {
        NoticeKind::UnknownVariable => {
            tracing::warn!(name, advice = text, "unknown environment variable, ignored");
        }
        NoticeKind::UnknownArgument => {
            tracing::warn!(name, advice = text, "unknown argument, ignored");
        }
        NoticeKind::NoEffect => tracing::warn!(name, reason = text, "setting without effect"),
        NoticeKind::Risk => tracing::warn!(name, reason = text, "risky setting"),
    }
}

/// Starts a thread that ends the process with exit code 0 after `hard_limit`, even if the shutdown
/// hangs. Otherwise, the supervisor would send SIGKILL later, which looks like a crash. If the
/// thread cannot be started, `--hard-limit` still applies to the drain of gRPC calls.
fn exit_at_hard_limit(hard_limit: Duration) {
    let _ = thread::Builder::new().name("hard-limit".to_owned()).spawn(move || {
        thread::sleep(hard_limit);
        tracing::warn!("hard limit reached, exiting during the drain");
        process::exit(0);
    });
}

/// Runs once a second. Removes expired counters, ends expired overrides, and restores the
/// configured log level after a temporary change. Also logs Redis outages, rejections, bills that
/// were not charged, and rules for which the memory store is full.
async fn sweep(wiring: Arc<AdminWiring>) {
    let AdminWiring { decider, telemetry, .. } = &*wiring;
    let memory = decider.store().memory();
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        ticks.tick().await;
        let now = Clock::System.now();
        memory.sweep(now, SWEEP_SLOTS);
        if let Some(redis) = decider.store().redis() {
            // Logs the start and the end of outages, also without traffic.
            redis.outage(now);
            if redis.is_rehearsal_over(Clock::System.monotonic_now()) {
                admin_actions::enable_store(redis);
            }
        }
        log_overflows(decider);
        let now = Clock::System.monotonic_now();
        wiring.overrides.expire();
        telemetry.keep_latency(now);
        telemetry.keep_history(Clock::System.now(), now);
        wiring.log_level.expire(now);
        telemetry.log_refusals();
        telemetry.log_calls_without_limit(now, &|calls| {
            decider.policy().advise_without_limit(&calls.domain, calls.descriptors())
        });
        telemetry.warn_of_lost_bills();
    }
}

/// Logs each rule whose new keys now share counters or are rejected because the memory store is
/// full.
fn log_overflows(decider: &ServiceDecider) {
    for overflow in decider.store().memory().new_overflows() {
        let policy = decider.policy();
        let rule = policy.rule_of_limit(overflow.limit_id);
        let rule = rule.map_or("request override", |rule| &*rule.path);
        if overflow.is_refusing {
            tracing::warn!(rule, "the memory store is full: new keys of the rule are rejected");
        } else {
            tracing::warn!(rule, "the memory store is full: new keys of the rule share counters");
        }
    }
}

/// Moves records of keys from their ring buffer into the statistics, 20 times per second.
/// At this rate, a small buffer is enough.
async fn drain_keys(wiring: Arc<AdminWiring>) {
    let mut ticks = tokio::time::interval(telemetry::DRAIN_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let names = |rule, limit| live_page_data::limit_name(&wiring.decider.policy(), rule, limit);
    loop {
        ticks.tick().await;
        wiring.telemetry.top_keys().drain(Clock::System.now(), &names);
    }
}
