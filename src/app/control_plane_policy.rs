//! Policy that a control plane sends: starts the client on a thread of its own, builds each policy
//! there, and activates it.
//!
//! `control_plane` has the client; `policy_reload` does the same for policy files.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::watch;

use super::exit_codes::Failure;
use super::load_policy::{policy_options, read_key_secret};
use super::policy_files::Fingerprint;
use super::policy_reload::{first_rule_after, rule_names};
use super::runtime_overrides::RuntimeOverrides;
use super::wiring::control_plane_config;
use crate::clock::Clock;
use crate::control_plane::{ControlPlaneStatus, LastGood, ResponseEffect};
use crate::domain::RuleId;
use crate::policy::{Policy, Secret};
use crate::settings::Settings;
use crate::telemetry::Telemetry;

/// Priority of the thread, as in nice(1). While a large policy is compiled, calls come first.
const NICE: i32 = 10;

/// Policy of a control plane, as the rest of the process sees it.
#[derive(Debug)]
pub(super) struct ControlPlanePolicy {
    state: Mutex<CurrentPolicy>,
    /// Whether the first policy has arrived.
    has_first: watch::Sender<bool>,
    status: Arc<ControlPlaneStatus>,
}

#[derive(Debug, Default)]
struct CurrentPolicy {
    /// Latest policy; `None` before the first.
    latest: Option<Arc<Policy>>,
    /// Service whose policy is replaced; `None` while it is being assembled.
    service: Option<Arc<RuntimeOverrides>>,
}

impl ControlPlanePolicy {
    /// Starts the client. It runs until the process ends.
    ///
    /// # Errors
    ///
    /// Returns an error if a file that the settings name cannot be read, or the thread cannot be
    /// started.
    pub(super) fn start(
        settings: &Settings,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Arc<ControlPlanePolicy>, Failure> {
        let status = Arc::new(ControlPlaneStatus::default());
        let client = control_plane_config::client(settings, Arc::clone(&status))?;
        let policy = Arc::new(ControlPlanePolicy {
            state: Mutex::default(),
            has_first: watch::Sender::new(false),
            status,
        });
        let options = policy_options(settings);
        let mut activator = Activator {
            policy: Arc::clone(&policy),
            telemetry: Arc::clone(telemetry),
            secret: read_key_secret(settings)?,
            checks_max: options.bounds.checks_max,
            next_rule: RuleId(0),
            active: None,
            former: None,
        };
        let last_good = LastGood::new(options, Default::default());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::Runtime)?;
        let run = move || {
            // Without the lower priority, the policy is the same.
            let _ = rustix::process::nice(NICE);
            runtime.block_on(client.run(last_good, |last_good, effect| {
                activator.apply(last_good, effect);
            }));
        };
        thread::Builder::new().name("xds".to_owned()).spawn(run).map_err(Failure::Runtime)?;
        Ok(policy)
    }

    /// Waits for the first policy.
    pub(super) async fn first(&self) {
        // The sender lives as long as `self`.
        let _ = self.has_first.subscribe().wait_for(|has_first| *has_first).await;
    }

    /// Returns the latest policy; an empty one, for which every call is OK, before the first.
    pub(super) fn latest(&self, secret: &Secret) -> Arc<Policy> {
        let latest = self.state().latest.clone();
        latest.unwrap_or_else(|| Arc::new(Policy::build(Vec::new(), secret.clone())))
    }

    /// Connects the service, which was started with `policy`. Every later policy replaces its policy.
    pub(super) fn attach(&self, service: Arc<RuntimeOverrides>, policy: &Arc<Policy>) {
        let mut state = self.state();
        if let Some(latest) = state.latest.as_ref().filter(|latest| !Arc::ptr_eq(latest, policy)) {
            service.replace_policy(Arc::clone(latest));
        }
        state.service = Some(service);
    }

    pub(super) fn status(&self) -> Arc<ControlPlaneStatus> {
        Arc::clone(&self.status)
    }

    fn replace(&self, policy: &Arc<Policy>) {
        let mut state = self.state();
        state.latest = Some(Arc::clone(policy));
        if let Some(service) = &state.service {
            service.replace_policy(Arc::clone(policy));
        }
        drop(state);
        self.has_first.send_replace(true);
    }

    fn state(&self) -> MutexGuard<'_, CurrentPolicy> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Builds and activates policies, on the client's thread.
struct Activator {
    policy: Arc<ControlPlanePolicy>,
    telemetry: Arc<Telemetry>,
    secret: Secret,
    /// Maximum number of checks of a call.
    checks_max: usize,
    /// Id of the next policy's first rule.
    next_rule: RuleId,
    active: Option<Arc<Policy>>,
    /// Policy before the active one. It is kept until the next update, so that the last call that
    /// uses it does not have to free thousands of rules.
    former: Option<Arc<Policy>>,
}

impl Activator {
    fn apply(&mut self, last_good: &LastGood, effect: ResponseEffect) {
        if effect.activate {
            self.activate(last_good);
        }
        if effect.newly_rejected {
            self.telemetry.policy_load_failed();
        } else if effect.accepted && !effect.activate {
            self.telemetry.policy_unchanged();
        }
    }

    fn activate(&mut self, last_good: &LastGood) {
        let (first, domains) = (self.next_rule, last_good.domains());
        let policy = Policy::build_with_first_id(&domains, self.secret.clone(), first);
        let policy = Arc::new(policy.with_checks_max(self.checks_max));
        let fingerprint = Fingerprint::of_hash(last_good.fingerprint());
        let names = rule_names(&policy);
        self.telemetry.policy_loaded(first, names, fingerprint, Clock::System.now());
        self.next_rule = first_rule_after(&policy, first);
        self.policy.replace(&policy);
        self.former = self.active.replace(policy);
        tracing::info!(
            rules = self.active.as_ref().map_or(0, |policy| policy.rules().len()),
            %fingerprint,
            "policy reloaded"
        );
    }
}
