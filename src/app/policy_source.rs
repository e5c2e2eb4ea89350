//! Source of the policy, which is either files or a control plane.

use std::sync::Arc;

use super::active_policy::{ActivePolicy, log_warnings};
use super::control_plane_policy::ControlPlanePolicy;
use super::load_policy::{PolicyLoader, serving_key_secret};
use super::operator_overrides::OperatorOverrides;
use super::policy_watcher::PolicyReloader;
use super::process::exit_codes::Failure;
use super::process::signals::Signals;
use super::process::watcher_thread::WatcherThread;
use crate::control_plane::ControlPlaneStatus;
use crate::policy::{Policy, Secret};
use crate::server::Health;
use crate::settings::{PolicySourceKind, Settings};
use crate::telemetry::Telemetry;

/// Policy with which the service starts, and the source of the policies that replace it.
pub(super) struct InitialPolicy {
    pub(super) policy: Arc<Policy>,
    pub(super) secret: Secret,
    pub(super) telemetry: Arc<Telemetry>,
    /// Number of policy files; `None` if a control plane sends the policy.
    pub(super) files: Option<usize>,
    source: PolicySource,
}

enum PolicySource {
    Files(Box<PolicyReloader>),
    ControlPlane(Arc<ControlPlanePolicy>),
}

impl InitialPolicy {
    /// Loads the policy files, or starts the control plane client and waits for its first policy.
    /// With `--force-start-without-initial-config`, does not wait. Returns `None` if a signal stops
    /// the process during the wait.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read or the policy does not compile.
    pub(super) async fn start(
        settings: &Settings,
        signals: &mut Signals,
    ) -> Result<Option<InitialPolicy>, Failure> {
        let telemetry = new_telemetry(settings);
        if settings.config_type == PolicySourceKind::File {
            return InitialPolicy::load_files(settings, telemetry).map(Some);
        }
        let secret = serving_key_secret(settings)?;
        let source = ControlPlanePolicy::start(settings, secret.clone(), &telemetry)?;
        if !settings.force_start_without_initial_config {
            tracing::info!("waiting for the first policy from the control plane");
            tokio::select! {
                () = source.wait_for_first_policy() => {}
                _ = signals.wait_for_stop(|| {}) => {
                    tracing::info!("stopped before the first policy was received");
                    return Ok(None);
                }
            }
        }
        let (policy, files) = (source.latest(&secret), None);
        let source = PolicySource::ControlPlane(source);
        Ok(Some(InitialPolicy { policy, secret, telemetry, files, source }))
    }

    fn load_files(
        settings: &Settings,
        telemetry: Arc<Telemetry>,
    ) -> Result<InitialPolicy, Failure> {
        let secret = serving_key_secret(settings)?;
        let loader = PolicyLoader::new(settings, secret.clone())?;
        let (loaded, files) = loader.load()?;
        log_warnings(&loaded.warnings);
        let policy = Arc::new(loaded.policy);
        let mut active = ActivePolicy::new(Arc::clone(&telemetry));
        active.replace(&policy, loaded.fingerprint);
        let source = PolicySource::Files(Box::new(PolicyReloader::new(loader, active, files)));
        let files = Some(loaded.files);
        Ok(InitialPolicy { policy, secret, telemetry, files, source })
    }

    /// Returns the state of the control plane client, or `None` if policies come from files.
    pub(super) fn control_plane_status(&self) -> Option<Arc<ControlPlaneStatus>> {
        match &self.source {
            PolicySource::Files(_) => None,
            PolicySource::ControlPlane(policy) => Some(Arc::clone(&policy.status)),
        }
    }

    /// Keeps the policy of `service` up to date. Returns the thread that watches the policy files,
    /// or `None` if a control plane sends the policy.
    ///
    /// # Errors
    ///
    /// Returns [`Failure::Unavailable`] if the thread cannot be started.
    pub(super) fn attach(
        self,
        service: Arc<OperatorOverrides>,
    ) -> Result<Option<WatcherThread>, Failure> {
        match self.source {
            PolicySource::Files(mut reloader) => {
                let poll = move |reason| {
                    if let Some(policy) = reloader.poll(reason) {
                        service.replace_policy(policy);
                    }
                    reloader.pause()
                };
                WatcherThread::start("policy", poll).map(Some)
            }
            PolicySource::ControlPlane(source) => {
                source.attach(service, &self.policy);
                Ok(None)
            }
        }
    }

    /// Sets the health status to SERVING: immediately or, with
    /// `--healthy-with-at-least-one-config-loaded`, once the control plane has sent a policy.
    pub(super) fn become_ready(&self, settings: &Settings, health: &Health) {
        match &self.source {
            PolicySource::ControlPlane(source)
                if settings.healthy_with_at_least_one_config_loaded =>
            {
                let (source, health) = (Arc::clone(source), health.clone());
                tokio::spawn(async move {
                    source.wait_for_first_policy().await;
                    health.set_serving(true);
                });
            }
            PolicySource::Files(_) | PolicySource::ControlPlane(_) => health.set_serving(true),
        }
    }
}

fn new_telemetry(settings: &Settings) -> Arc<Telemetry> {
    let telemetry =
        Telemetry::new(settings.near_limit_ratio).with_value_display(settings.top_values);
    Arc::new(telemetry.with_global_shadow(settings.shadow_mode))
}
