//! Puts the parts together and serves: load, bind, answer, and leave in order.
//!
//! Leaving: on SIGTERM or SIGINT health and readiness say no; for the drain delay everything goes
//! on; connections are asked to go and finish their calls; the process exits with 0, at the hard
//! limit at the latest. Not here: each part's own work.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::exit_codes::Failure;
use super::load_policy::{Loaded, Loader};
use super::log_level::Levels;
use super::policy_reload;
use super::policy_reload::Reload;
use super::runtime_overrides::Switching;
use super::settings::{LogFormat, LogLevel, Settings, TopValues};
use super::wiring::certificate_reload::Certificates;
use super::wiring::store_setup::{AnyStore, Deciding};
use super::wiring::{admin_routes, server_config};
use super::{Configured, admin_actions, page_data, rlimit};
use crate::admin::{self, Hosts, Limits};
use crate::clock::Clock;
use crate::decide::{Decider, Modes};
use crate::domain::RuleId;
use crate::server::{Health, Listener, RateLimit, Router};
use crate::telemetry::{self, Format, Level, Telemetry, Values};

/// Threads for everything but gRPC: probes, scrapes, `/json`, accepting connections.
const SIDE_THREADS: usize = 2;

/// How often expired counters are swept out, and how many slots are looked at each time: a store of
/// a million keys is gone through in eight seconds, for about 10 ms a second.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const SWEEP_SLOTS: usize = 131_072;

/// How long the HTTP ports may take to finish what is under way, once gRPC has finished.
const SIDE_STOP_MAX: Duration = Duration::from_millis(250);

/// How long the last metrics and traces may take: nobody waits for the process any more.
const LAST_SEND_MAX: Duration = Duration::from_secs(1);

/// Serves until told to stop.
///
/// # Errors
///
/// What keeps it from starting.
pub fn serve(configured: Configured) -> Result<(), Failure> {
    let settings = &configured.settings;
    let levels = Arc::new(start_logs(settings));
    rlimit::raise();
    for notice in configured.notices() {
        tracing::warn!(name = notice.name, text = notice.text, "a setting to know about");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(SIDE_THREADS)
        .thread_name("side")
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    let done = runtime.block_on(run(&configured, levels));
    // Nothing that still runs on the side may hold up the exit.
    runtime.shutdown_background();
    done
}

async fn run(configured: &Configured, levels: Arc<Levels>) -> Result<(), Failure> {
    let settings = &configured.settings;
    let loader = Loader::of(settings)?;
    let loaded = loader.load(RuleId(0))?;
    policy_reload::log_warnings(&loaded.warnings);
    let telemetry = telemetry_of(settings, &loaded);

    // Everything that can be refused is asked for before anything is served.
    let response_config = server_config::response_config(settings)?;
    let certificates = Certificates::of(settings)?;
    let tls = certificates.as_ref().map(Certificates::tls);
    let listener = Listener::bind(server_config::grpc(settings, tls.clone())?)?;
    let http = bind(&settings.http_host, settings.http_port).await?;
    let debug = bind(&settings.debug_host, settings.debug_port).await?;
    let prometheus = bind_prometheus(settings).await?;
    let told_to_stop = stop_signal()?;

    let (files, rules) = (loaded.files, loaded.policy.rules().len());
    let fingerprint = loaded.fingerprint;
    let modes = Modes { shadow: settings.shadow_mode, quota: settings.quota_mode };
    let store = AnyStore::open(settings, &loader.secret, listener.cores())?;
    let reloading = Reload::new(loader, &loaded, Arc::clone(&telemetry), settings.policy_poll);
    let policy = Arc::new(loaded.policy);
    let decider = Arc::new(Decider::new(policy, store, Arc::clone(&telemetry), modes));
    let switching = Arc::new(Switching::new(Arc::clone(&decider)));
    let operate =
        admin_actions::operate(&decider, &switching, &levels, settings.debug_token_file.clone())?;
    let rate_limit = Arc::new(RateLimit::new(Arc::clone(&decider), Clock::System, response_config));
    let health = Health::new();

    let (stop_side, side_stops) = watch::channel(false);
    let parts = admin_routes::Parts {
        configured,
        decider: Arc::clone(&decider),
        rate_limit: Arc::clone(&rate_limit),
        health: health.clone(),
        telemetry: Arc::clone(&telemetry),
        traffic: listener.traffic(),
        tls: tls.map(|tls| tls.counters()),
    };
    let mut side = tokio::task::JoinSet::new();
    let limits = Limits::default();
    let (scrape, sending) = parts.metrics()?;
    announce(&listener, &http, &debug, prometheus.as_ref());
    let public_routes = admin::public_routes(parts.public(&scrape));
    side.spawn(admin::serve(http, public_routes, limits, side_stops.clone()));
    let debug_routes = admin::debug_routes(parts.debug(operate, &switching), hosts(&debug));
    side.spawn(admin::serve(debug, debug_routes, Limits::of_debug(), side_stops.clone()));
    if let Some(listener) = prometheus {
        let routes = admin::metrics_routes(scrape, &settings.prometheus_path);
        side.spawn(admin::serve(listener, routes, limits, side_stops));
    }
    keep_house(&decider, &switching, levels, telemetry);
    decider.store().until_ready(settings).await?;
    let watched = watch_files(reloading, switching, certificates)?;

    health.set_serving(true);
    tracing::info!(files, rules, %fingerprint, "ready");
    let hard_limit = settings.hard_limit;
    let stop = async move {
        told_to_stop.await;
        tracing::info!("stopping");
        exit_at_the_latest(hard_limit);
    };
    let drained = listener.serve(Router::new(rate_limit, health), stop).await?;

    watched.iter().for_each(Watched::end);
    stop_side.send_replace(true);
    let ended = async { while side.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(SIDE_STOP_MAX, ended).await;
    let _ = tokio::time::timeout(LAST_SEND_MAX, sending.end()).await;
    tracing::info!(cut_off = drained.cut_off, "stopped");
    Ok(())
}

/// Counters at zero, for the policy that was loaded.
fn telemetry_of(settings: &Settings, loaded: &Loaded) -> Arc<Telemetry> {
    let telemetry = Telemetry::new(settings.near_limit_ratio).counting(settings.metrics);
    let telemetry = Arc::new(telemetry.showing(values(settings)));
    let names = policy_reload::rule_names(&loaded.policy);
    telemetry.loaded(RuleId(0), names, loaded.fingerprint, Clock::System.now());
    telemetry
}

/// How refused keys are shown.
fn values(settings: &Settings) -> Values {
    match settings.top_values {
        TopValues::Shortened => Values::Shortened,
        TopValues::Hashed => Values::Hashed,
    }
}

/// A port that only this machine reaches answers to this machine's names only.
fn hosts(debug: &TcpListener) -> Hosts {
    match debug.local_addr() {
        Ok(address) if !address.ip().is_loopback() => Hosts::Any,
        Ok(_) | Err(_) => Hosts::Local,
    }
}

fn start_logs(settings: &Settings) -> Levels {
    let level = match settings.log_level {
        LogLevel::Off => Level::Off,
        LogLevel::Panic | LogLevel::Fatal | LogLevel::Error => Level::Error,
        LogLevel::Warning | LogLevel::Warn => Level::Warn,
        LogLevel::Info => Level::Info,
        LogLevel::Debug | LogLevel::Trace => Level::Debug,
    };
    let format = match settings.log_format {
        LogFormat::Text => Format::Text,
        LogFormat::Json => Format::Json,
    };
    Levels::new(telemetry::start_logs(level, format), level)
}

async fn bind_prometheus(settings: &Settings) -> Result<Option<TcpListener>, Failure> {
    let (host, port) = &settings.prometheus_addr;
    match settings.use_prometheus {
        true => Ok(Some(bind(host, *port).await?)),
        false => Ok(None),
    }
}

async fn bind(host: &str, port: u16) -> Result<TcpListener, Failure> {
    let address = server_config::resolved(host, port)?;
    TcpListener::bind(address)
        .await
        .map_err(|error| Failure::Address { address: address.to_string(), error })
}

/// Says which addresses were bound: port 0 has become a number. Whoever starts the process with it
/// reads this line.
fn announce(
    grpc: &Listener,
    http: &TcpListener,
    debugging: &TcpListener,
    prometheus: Option<&TcpListener>,
) {
    let address = |listener: &TcpListener| {
        listener.local_addr().map(|address| address.to_string()).unwrap_or_default()
    };
    tracing::info!(
        grpc = grpc.addresses().first().map(ToString::to_string),
        http = address(http),
        debug = address(debugging),
        prometheus = prometheus.map(address),
        "listening"
    );
}

/// Resolves at the first SIGTERM, SIGINT or SIGHUP: envoyproxy/ratelimit leaves in order on all three.
fn stop_signal() -> Result<impl Future<Output = ()>, Failure> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::Runtime)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(Failure::Runtime)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hang_up.recv() => {}
        }
    })
}

/// Ends the process at the hard limit, whatever hangs: a supervisor's SIGKILL would come later and
/// look like a crash. Where no thread is to be had, the drain's own limit has to do.
fn exit_at_the_latest(hard_limit: Duration) {
    let _ = thread::Builder::new().name("hard-limit".to_owned()).spawn(move || {
        thread::sleep(hard_limit);
        tracing::warn!("the hard limit ends the drain");
        process::exit(0);
    });
}

/// What goes on beside the decisions until the process ends.
fn keep_house(
    decider: &Arc<Deciding>,
    switching: &Arc<Switching>,
    levels: Arc<Levels>,
    telemetry: Arc<Telemetry>,
) {
    tokio::spawn(take_in(Arc::clone(decider), telemetry));
    tokio::spawn(sweep(Arc::clone(decider), Arc::clone(switching), levels));
}

/// What is done every second: expired counters go, switches and log levels whose time is up; a line
/// about refusals.
async fn sweep(decider: Arc<Deciding>, switching: Arc<Switching>, levels: Arc<Levels>) {
    let memory = decider.store().memory();
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    loop {
        ticks.tick().await;
        let now = Clock::System.now();
        memory.sweep(now, SWEEP_SLOTS);
        switching.expire(now);
        levels.expire(now);
        decider.observer().tell_refusals();
    }
}

/// Takes notes of refused keys in, many times a second, so that the ring they wait in is small.
async fn take_in(decider: Arc<Deciding>, telemetry: Arc<Telemetry>) {
    let mut ticks = tokio::time::interval(telemetry::TAKE_IN_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let names = |rule, limit| page_data::limit_name(&decider.policy(), rule, limit);
    loop {
        ticks.tick().await;
        telemetry.top().take_in(Clock::System.now(), &names);
    }
}

/// A thread that looks at files.
struct Watched {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Watched {
    fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
    }
}

/// Policy and certificates are looked at by a thread each: a file system that hangs for one must
/// not keep the other.
fn watch_files(
    policy: Reload,
    switching: Arc<Switching>,
    certificates: Option<Certificates>,
) -> Result<Vec<Watched>, Failure> {
    let replace = move |policy| switching.replaced(policy);
    let mut watched = vec![watch("policy", move |stop| policy.run(stop, replace))?];
    if let Some(certificates) = certificates {
        watched.push(watch("certificates", move |stop| certificates.run(stop))?);
    }
    Ok(watched)
}

fn watch(name: &str, run: impl FnOnce(&AtomicBool) + Send + 'static) -> Result<Watched, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let thread = thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || run(&told))
        .map_err(Failure::Runtime)?;
    Ok(Watched { stop, thread })
}
