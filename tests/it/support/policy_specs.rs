//! Policies built without YAML, as `compile` would produce them.

use std::sync::Arc;

use tidegate::domain::{
    Accounting, Algorithm, Bucket, Charge, Descriptor, Entry, FixedWindow, Hits, Limit, Micros,
    OnStoreFailure, Override, Rate, Refill, Request, Unit, Window,
};
use tidegate::policy::compiled_policy::{DomainSpec, LimitSpec, NodeSpec, RuleSpec, ValueSpec};
use tidegate::policy::{Policy, Secret};

/// A domain with these nodes on its first level.
pub fn domain<const N: usize>(name: &str, nodes: [Node; N]) -> DomainSpec {
    DomainSpec {
        name: name.into(),
        accounting: Accounting::AllOrNothing,
        charge: Charge::Admitted,
        hash_tag: Box::default(),
        quota_group: Box::default(),
        http: None,
        body: None,
        nodes: nodes.into_iter().map(|node| node.0).collect(),
    }
}

/// A policy of one domain, `d`.
pub fn policy<const N: usize>(nodes: [Node; N]) -> Policy {
    Policy::build(vec![domain("d", nodes)], Secret::default())
}

/// A node under construction.
#[derive(Clone, Debug)]
pub struct Node(pub NodeSpec);

/// A node for any value of a key.
pub fn key(key: &str) -> Node {
    Node(NodeSpec {
        key: key.into(),
        value: ValueSpec::Any,
        share_threshold: false,
        value_to_metric: false,
        rule: None,
        children: Vec::new(),
    })
}

/// A node for a key and a value, which is a pattern where it has a star.
pub fn pair(name: &str, value: &str) -> Node {
    let mut node = key(name);
    node.0.value = match value {
        "" => ValueSpec::Any,
        text if text.contains('*') => ValueSpec::Pattern(text.into()),
        text => ValueSpec::Exact(text.into()),
    };
    node
}

impl Node {
    fn rule(&mut self) -> &mut RuleSpec {
        self.0.rule.get_or_insert_with(|| RuleSpec {
            limits: Arc::default(),
            replaces: Box::default(),
            name: None,
            shadow_mode: false,
            quota_mode: false,
            detailed_metric: false,
            metadata: None,
            body: None,
            location: None,
        })
    }

    /// So many per second.
    pub fn limit(self, per_second: u32) -> Node {
        self.with(spec(None, window(per_second, Unit::Second)))
    }

    /// So many per second, by that name.
    pub fn named(self, name: &str, per_second: u32) -> Node {
        self.with(spec(Some(name), window(per_second, Unit::Second)))
    }

    /// One more limit.
    pub fn with(mut self, limit: LimitSpec) -> Node {
        let rule = self.rule();
        rule.limits = rule.limits.iter().cloned().chain([limit]).collect();
        self
    }

    pub fn unlimited(mut self) -> Node {
        self.rule();
        self
    }

    pub fn replaces<const N: usize>(mut self, names: [&str; N]) -> Node {
        self.rule().replaces = names.into_iter().map(Box::from).collect();
        self
    }

    /// Anything else of the rule.
    pub fn ruled(mut self, change: impl FnOnce(&mut RuleSpec)) -> Node {
        change(self.rule());
        self
    }

    pub fn shared(mut self) -> Node {
        self.0.share_threshold = true;
        self
    }

    pub fn value_to_metric(mut self) -> Node {
        self.0.value_to_metric = true;
        self
    }

    pub fn over<const N: usize>(mut self, children: [Node; N]) -> Node {
        self.0.children.extend(children.into_iter().map(|node| node.0));
        self
    }
}

/// A limit's place in a rule.
pub fn spec(name: Option<&str>, limit: Arc<Limit>) -> LimitSpec {
    let bill_limit = limit.bill_limit().map(Arc::new);
    let name = name.map(Box::from);
    LimitSpec {
        name,
        in_list: false,
        per: None,
        limit,
        bill_limit,
        tiers: None,
        soft: None,
        cost: 1,
    }
}

/// One of a list of limits, with a key of those entries.
pub fn listed(name: &str, per: Option<&[usize]>, limit: Arc<Limit>) -> LimitSpec {
    LimitSpec { in_list: true, per: per.map(Box::from), ..spec(Some(name), limit) }
}

/// A fixed window.
pub fn window(requests_per_unit: u32, unit: Unit) -> Arc<Limit> {
    let rate = Rate { requests_per_unit, unit: Some(unit), unit_multiplier: 1 };
    let window = Window::Epoch { length: rate.window() };
    let algorithm =
        Algorithm::FixedWindow(FixedWindow { hits: Hits(requests_per_unit.into()), window });
    Arc::new(limit_of(rate, algorithm))
}

/// A bucket that refills so many hits per second.
pub fn bucket(per_second: u32, burst: u64) -> Arc<Limit> {
    let rate = Rate { requests_per_unit: per_second, unit: Some(Unit::Second), unit_multiplier: 1 };
    let emission = Micros(1_000_000 / u64::from(per_second));
    let (burst, refill) = (Hits(burst), Refill::Arrival { emission });
    let bucket = Bucket { burst, debt_burst: burst, refill, floor: Hits::ZERO, leaky: false };
    Arc::new(limit_of(rate, Algorithm::Bucket(bucket)))
}

/// A limit that has nothing but what every limit has.
pub fn limit_of(rate: Rate, algorithm: Algorithm) -> Limit {
    Limit {
        algorithm,
        rate,
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::Local,
        prepay: false,
        block_seconds: None,
        reserve: None,
        limit_id: 1,
    }
}

/// An entry.
pub fn entry<'a, K, V>(key: &'a K, value: &'a V) -> Entry<'a>
where
    K: AsRef<[u8]> + ?Sized,
    V: AsRef<[u8]> + ?Sized,
{
    Entry { key: key.as_ref(), value: value.as_ref() }
}

/// A descriptor of one hit.
pub fn descriptor<'a>(entries: &'a [Entry<'a>]) -> Descriptor<'a> {
    Descriptor {
        entries,
        hits: Hits::ONE,
        has_hits_addend: false,
        refund: false,
        limit: None,
        holder: None,
        hold: None,
    }
}

/// A descriptor of one hit that brings a limit along.
pub fn bringing<'a>(entries: &'a [Entry<'a>], per_unit: u32, unit: Unit) -> Descriptor<'a> {
    let limit = Override { requests_per_unit: per_unit, unit, unit_multiplier: 1 };
    Descriptor { limit: Some(limit), ..descriptor(entries) }
}

/// A request to the domain `d`.
pub fn request<'a>(descriptors: &'a [Descriptor<'a>]) -> Request<'a> {
    Request { domain: "d", descriptors }
}
