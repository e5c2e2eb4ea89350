//! Runs the control plane client on a dedicated thread, which also builds and activates each policy
//! that the client receives.
//!
//! The client is in `control_plane`. `policy_watcher` activates policies from files.

use std::sync::Arc;
use std::thread;

use tokio::sync::watch;

use super::active_policy::ActivePolicy;
use super::load_policy::{Fingerprint, policy_options};
use super::operator_overrides::OperatorOverrides;
use super::process::exit_codes::Failure;
use super::wiring::control_plane_config;
use crate::control_plane::{ControlPlaneStatus, LastGood, PolicyReceiver, ResponseEffect};
use crate::domain::Lock;
use crate::policy::{Policy, Secret};
use crate::settings::Settings;
use crate::telemetry::Telemetry;

/// Niceness of the control plane client's thread, as in nice(1): compiling a large policy must not
/// slow down calls.
const THREAD_NICENESS: i32 = 10;

/// Latest policy from a control plane, shared by the control plane client's thread and the service.
#[derive(Debug)]
pub(super) struct ControlPlanePolicy {
    /// Latest policy; `None` until the first one arrives.
    latest: watch::Sender<Option<Arc<Policy>>>,
    /// Service to which each new policy is passed; `None` until
    /// [`ControlPlanePolicy::attach`] is called. Locked while a policy is replaced.
    service: Lock<Option<Arc<OperatorOverrides>>>,
    pub(super) status: Arc<ControlPlaneStatus>,
}

impl ControlPlanePolicy {
    /// Starts the control plane client on a new thread. The client runs until the process ends.
    ///
    /// # Errors
    ///
    /// Returns an error if a file named in the settings cannot be read, or if the thread cannot be
    /// started.
    pub(super) fn start(
        settings: &Settings,
        secret: Secret,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Arc<ControlPlanePolicy>, Failure> {
        let status = Arc::new(ControlPlaneStatus::default());
        let client = control_plane_config::build_client(settings, Arc::clone(&status))?;
        let policy = Arc::new(ControlPlanePolicy {
            latest: watch::Sender::new(None),
            service: Lock::default(),
            status,
        });
        let options = policy_options(settings);
        let activator = Activator {
            policy: Arc::clone(&policy),
            secret,
            checks_max: options.bounds.checks_max,
            active: ActivePolicy::new(Arc::clone(telemetry)),
            former: None,
        };
        let last_good = LastGood::new(options, Default::default());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::runtime)?;
        let run = move || {
            // Without the lower priority, the policy is the same.
            let _ = rustix::process::nice(THREAD_NICENESS);
            runtime.block_on(client.run(last_good, activator));
        };
        thread::Builder::new().name("xds".to_owned()).spawn(run).map_err(Failure::runtime)?;
        Ok(policy)
    }

    pub(super) async fn wait_for_first_policy(&self) {
        // The sender lives as long as `self`.
        let _ = self.latest.subscribe().wait_for(Option::is_some).await;
    }

    /// Returns the latest policy. Before the first one arrives, returns an empty policy, which
    /// admits every call.
    pub(super) fn latest(&self, secret: &Secret) -> Arc<Policy> {
        let latest = self.latest.borrow().clone();
        latest.unwrap_or_else(|| Arc::new(Policy::build(Vec::new(), secret.clone())))
    }

    /// Applies each later policy from the control plane to `service`. If a policy
    /// newer than `policy`, with which the service was started, has already arrived, it takes
    /// effect immediately.
    pub(super) fn attach(&self, service: Arc<OperatorOverrides>, policy: &Arc<Policy>) {
        let mut attached = self.service.lock();
        let latest = self.latest.borrow().clone();
        if let Some(latest) = latest.filter(|latest| !Arc::ptr_eq(latest, policy)) {
            service.replace_policy(latest);
        }
        *attached = Some(service);
    }

    fn replace(&self, policy: &Arc<Policy>) {
        let service = self.service.lock();
        if let Some(service) = &*service {
            service.replace_policy(Arc::clone(policy));
        }
        self.latest.send_replace(Some(Arc::clone(policy)));
    }
}

/// Builds the policies that the control plane sends, and activates them. Runs on the control plane
/// client's thread.
struct Activator {
    policy: Arc<ControlPlanePolicy>,
    secret: Secret,
    /// Maximum number of limits that one call may check.
    checks_max: usize,
    active: ActivePolicy,
    /// Policy that was active before the current one. It is kept until no call uses it, because
    /// otherwise the last of these calls would have to free thousands of rules.
    former: Option<Arc<Policy>>,
}

impl PolicyReceiver for Activator {
    fn prepare(&mut self) {
        self.former = None;
        self.active.telemetry.forget_former_rules();
    }

    fn free_unused(&mut self) {
        // Only this thread can still use it, so nobody else can begin to.
        self.former.take_if(|former| Arc::strong_count(former) == 1);
    }

    fn receive(&mut self, last_good: &LastGood, effect: ResponseEffect) {
        if effect.activate {
            self.activate(last_good, effect.log);
        }
        if effect.newly_rejected {
            self.active.telemetry.record_policy_load_failure();
        } else if effect.accepted && !effect.activate {
            self.active.telemetry.record_policy_unchanged();
        }
    }
}

impl Activator {
    fn activate(&mut self, last_good: &LastGood, log: bool) {
        let (first, secret) = (self.active.next_rule, self.secret.clone());
        let policy = Policy::build_with_first_id(&last_good.domains(), secret, first);
        let policy = Arc::new(policy.with_checks_max(self.checks_max));
        let fingerprint = Fingerprint(last_good.fingerprint());
        if log {
            self.active.log_reload(&policy, None, fingerprint);
        }
        self.former = self.active.replace(&policy, fingerprint);
        self.policy.replace(&policy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_plane::RawResource;

    const RULES: usize = 12_490;

    fn activator() -> Activator {
        let policy = Arc::new(ControlPlanePolicy {
            latest: watch::Sender::new(None),
            service: Lock::default(),
            status: Arc::default(),
        });
        Activator {
            policy,
            secret: Secret::default(),
            checks_max: 64,
            active: ActivePolicy::new(Arc::new(Telemetry::new(0.8))),
            former: None,
        }
    }

    /// A resource of rules per year for values of 90 bytes, which begin with `digit`.
    fn many_rules(digit: u8) -> RawResource {
        let field = |number: u8, bytes: &[u8]| {
            let mut encoded = vec![number << 3 | 2];
            prost::encoding::encode_varint(bytes.len() as u64, &mut encoded);
            [encoded, bytes.to_vec()].concat()
        };
        let rule = |at: usize| {
            let value = format!("{digit}{at:>089}");
            let limit = field(3, &[0x08, 6, 0x10, digit]);
            field(3, &[field(1, b"k"), field(2, value.as_bytes()), limit].concat())
        };
        let rules: Vec<u8> = (0..RULES).flat_map(rule).collect();
        let value = [field(1, b"d"), field(2, b"d"), rules].concat().into();
        let type_url = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
        RawResource { type_url: type_url.to_owned(), value }
    }

    fn receive(activator: &mut Activator, last_good: &mut LastGood, resource: RawResource) {
        activator.prepare();
        let update = last_good.apply(vec![resource]);
        assert!(update.changed && update.rejections.is_empty(), "{update:?}");
        let effect =
            ResponseEffect { activate: true, newly_rejected: false, accepted: true, log: false };
        activator.receive(last_good, effect);
    }

    #[test]
    fn replacing_a_policy_takes_at_most_2816_bytes_for_each_rule() {
        let (mut activator, mut last_good) = (activator(), LastGood::default());
        let measured = allocation_counter::measure(|| {
            (1..=4).for_each(|n| receive(&mut activator, &mut last_good, many_rules(n)));
        });
        let bytes = measured.bytes_max as usize / RULES;
        println!(
            "{bytes} bytes for each rule, {} afterwards",
            measured.bytes_current as usize / RULES
        );
        assert!(bytes <= 2_816, "{bytes}");
    }

    #[test]
    fn a_former_policy_is_freed_once_no_call_uses_it() {
        let (mut activator, mut last_good) = (activator(), LastGood::default());
        receive(&mut activator, &mut last_good, many_rules(1));
        let in_use = activator.policy.latest(&Secret::default());
        receive(&mut activator, &mut last_good, many_rules(2));
        activator.free_unused();
        assert!(activator.former.is_some());
        drop(in_use);
        activator.free_unused();
        assert!(activator.former.is_none() && activator.active.policy.is_some());
    }
}
