//! Certificates and keys: any bytes give TLS or a named error.

use tidegate::domain::DomainGrant;
use tidegate::domain::Permissions;
use tidegate::server::{Tls, TlsMaterial};

use crate::fuzzer::{Target, feed};
use crate::mutation::{Decisions, Random, mutated};
use crate::sort;
use crate::support::certificate_authority::Authority;

#[test]
fn any_certificates_are_used_or_refused() {
    let words = ["-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n", "MIIB", "=", "\n"];
    let target = Target { name: "certificates", share: 2, words: &[] };
    let authority = Authority::new();
    let ours = authority.signs("tidegate.test");
    let good = [ours.certificate.as_str(), ours.key.as_str(), authority.certificate.as_str()];
    let make = |random: &mut Random| random.bytes(24);
    feed(&target, Vec::new(), make, |input| {
        let mut by = Decisions::of(input);
        let damaged = by.below(3);
        let mut random = Random::seeded(by.number());
        let part = |n: usize| match n == damaged {
            true => mutated(
                &mut random.clone(),
                good[n].as_bytes(),
                good[(n + 1) % 3].as_bytes(),
                &words,
            ),
            false => good[n].as_bytes().to_vec(),
        };
        let material = TlsMaterial {
            certificate: part(0),
            private_key: part(1),
            client_authority: Some(part(2)),
            allowed_callers: Vec::new(),
            grants: vec![DomainGrant {
                domain: "edge".to_owned(),
                caller: "a.test".to_owned(),
                permissions: Permissions::NONE,
            }],
        };
        random.next();
        match Tls::new(&material) {
            Ok(_) => sort(damaged),
            Err(error) => {
                let said = error.to_string();
                assert!(!said.contains(&ours.key[100..160]));
                sort((damaged, said))
            }
        }
    });
}
