//! Certificates that change while the process serves.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::task::JoinHandle;

use super::tls_callers::{SERVER, ask, connect, fate, serving};
use crate::support::certificate_authority::{Authority, Identity};
use crate::support::tidegate_process::{Tidegate, metric};
use crate::support::wait::until;

fn until_replaced(serving: &Tidegate, times: u64) {
    until("the certificates are replaced", || {
        (metric(serving, "certificate_reloads_total") >= times).then_some(())
    });
}

fn until_refused(serving: &Tidegate, times: u64) {
    until("the certificates are refused", || {
        (metric(serving, "certificate_reload_failures_total") >= times).then_some(())
    });
}

/// Callers that go on until they are stopped: half of them connect anew for every call.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    callers: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(serving: &Arc<Tidegate>, trusted: &str, identity: &Identity) -> Load {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let caller = |number: usize| {
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            let (serving, trusted) = (Arc::clone(serving), trusted.to_owned());
            let identity = identity.clone();
            tokio::spawn(async move {
                let anew = || connect(&serving, &trusted, Some(&identity));
                let mut client = anew().await.expect("a connection");
                while !stop.load(Ordering::Relaxed) {
                    if number.is_multiple_of(2) {
                        client = anew().await.expect("a connection");
                    }
                    ask(&mut client, "edge").await.expect("an answer");
                    done.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            })
        };
        let callers = (0..4).map(caller).collect();
        Load { stop, done, callers }
    }

    /// Waits until that many more calls were answered.
    async fn goes_on(&self, calls: u64) {
        let end = self.done.load(Ordering::Relaxed) + calls;
        tokio::task::block_in_place(|| {
            until("calls are answered", || {
                assert!(!self.callers.iter().any(JoinHandle::is_finished), "a call was lost");
                (self.done.load(Ordering::Relaxed) >= end).then_some(())
            });
        });
    }

    async fn ends_without_a_loss(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.expect("no call was lost");
        }
        self.done.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotation_under_load_loses_no_call() {
    let (old, new) = (Authority::new(), Authority::new());
    let both = format!("{}{}", old.certificate, new.certificate);
    let (serving, mut secret) = serving(&old, &[]);
    let serving = Arc::new(serving);
    let load = Load::start(&serving, &both, &old.signs("gateway.test"));
    load.goes_on(20).await;
    // As an operator moves to another authority: first both are trusted, then the server shows the
    // new one's certificate; callers follow; then the old one is trusted no longer.
    let steps = crate::support::proof::times(3, 30);
    for step in 1..=steps {
        let signer = if step.is_multiple_of(2) { &old } else { &new };
        secret.becomes(&signer.signs(SERVER), &both);
        until_replaced(&serving, step);
        load.goes_on(20).await;
    }
    let calls = load.ends_without_a_loss().await;
    assert!(calls >= 20 * (steps + 1));
    secret.becomes(&new.signs(SERVER), &new.certificate);
    until_replaced(&serving, steps + 1);
    let fate = async |trusted: &Authority, signer: &Authority| {
        let identity = signer.signs("gateway.test");
        fate(&serving, &trusted.certificate, Some(&identity), "edge").await
    };
    assert_eq!(fate(&new, &new).await, "OK");
    assert_eq!(fate(&new, &old).await, "no connection", "trusted no longer");
    assert_eq!(fate(&old, &new).await, "no connection", "the server shows the new certificate");
}

#[tokio::test]
async fn certificates_that_cannot_be_used_are_refused_and_the_old_ones_stay() {
    let ours = Authority::new();
    let (serving, mut secret) = serving(&ours, &[]);
    let caller = ours.signs("gateway.test");
    let (one, other) = (ours.signs(SERVER), ours.signs(SERVER));
    let half = one.certificate[..one.certificate.len() / 2].to_owned();
    let bad = [
        (
            Identity { key: other.key, ..one.clone() },
            ours.certificate.as_str(),
            "does not match the certificate",
        ),
        (
            Identity { certificate: half, ..one.clone() },
            &ours.certificate,
            "no PEM certificate (no -----BEGIN",
        ),
        (
            Identity { key: String::new(), ..one.clone() },
            &ours.certificate,
            "no PEM private key (no -----BEGIN",
        ),
        (one.clone(), "", "not a PEM list"),
        (ours.signed_long_ago(SERVER), &ours.certificate, "has expired"),
        (ours.signs_for_later(SERVER), &ours.certificate, "not valid yet"),
        (ours.signs_client(SERVER), &ours.certificate, "not for servers"),
    ];
    for (times, (identity, callers, said)) in (1..).zip(bad) {
        secret.becomes(&identity, callers);
        until_refused(&serving, times);
        // Counted first, then said.
        let log = until(&format!("{said:?} in the log"), || {
            let log = serving.log();
            let last = log.lines().rfind(|line| line.contains("the old ones stay in force"));
            last.is_some_and(|line| line.contains(said)).then_some(log)
        });
        let key = identity.key.lines().nth(1).unwrap_or("no key");
        assert!(!log.contains(key), "a key in the log");
        assert_eq!(fate(&serving, &ours.certificate, Some(&caller), "edge").await, "OK");
    }
    let failures = metric(&serving, "certificate_reload_failures_total");
    assert_eq!((failures, metric(&serving, "certificate_reloads_total")), (7, 0), "once each");
    secret.becomes(&one, &ours.certificate);
    until_replaced(&serving, 1);
    assert_eq!(fate(&serving, &ours.certificate, Some(&caller), "edge").await, "OK");
}

#[tokio::test]
async fn a_file_that_is_gone_is_said_once_and_its_return_is_seen() {
    let ours = Authority::new();
    let (serving, secret) = serving(&ours, &[]);
    let caller = ours.signs("gateway.test");
    fs::remove_file(secret.path("tls.key")).unwrap();
    until_refused(&serving, 1);
    assert_eq!(fate(&serving, &ours.certificate, Some(&caller), "edge").await, "OK");
    // Written over in place rather than swapped, the certificate first.
    let next = ours.signs(SERVER);
    fs::remove_file(secret.path("tls.crt")).unwrap();
    fs::write(secret.path("tls.crt"), &next.certificate).unwrap();
    fs::write(secret.path("tls.key"), &next.key).unwrap();
    until_replaced(&serving, 1);
    assert_eq!(fate(&serving, &ours.certificate, Some(&caller), "edge").await, "OK");
    assert_eq!(metric(&serving, "certificate_reload_failures_total"), 1);
}
