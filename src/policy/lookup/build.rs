//! Builds the lookup tree from the compiled spec.
//!
//! If a spec contains duplicate domains or duplicate sibling nodes, the first in file order wins;
//! `compile` rejects such specs. Not here: diagnostics (`compile`).

use std::borrow::Borrow;
use std::collections::HashMap;
use std::sync::Arc;

use super::counter_key;
use super::counter_key::Secret;
use super::matcher::CHECKS_MAX;
use super::patterns::Patterns;
use super::tree::{
    DescriptorTree, Domain, KeyEntry, KeyGroup, KeyTemplate, NodeId, Policy, Rule, TreeNode,
    configured_path,
};
use crate::domain::{Limit, RuleId};
use crate::policy::compiled_policy::{
    DomainSpec, LimitSpec, NodeSpec, RuleSpec, TierMethod, ValueSpec,
};
use crate::policy::diagnostic::to_u32;

impl Policy {
    /// Builds a policy from compiled domains. Rules are numbered in file order, parents before
    /// children.
    ///
    /// Takes time and memory linear in the size of the policy. Never fails.
    pub fn build(domains: Vec<DomainSpec>, secret: Secret) -> Policy {
        Policy::build_with_first_id(&domains, secret, RuleId(0))
    }

    /// Builds a policy from compiled domains. Rules get consecutive ids, starting with `first`. A
    /// process never reuses ids, so that a call in progress during a reload cannot be attributed to
    /// the wrong rule.
    pub fn build_with_first_id(
        domains: &[impl Borrow<DomainSpec>],
        secret: Secret,
        first: RuleId,
    ) -> Policy {
        let mut builder = TreeBuilder { first_rule_id: first.0, secret, ..TreeBuilder::default() };
        for domain in domains {
            builder.add_domain(domain.borrow());
        }
        let mut limits = builder.rules.iter().flat_map(|rule| rule.limits.iter());
        Policy {
            has_soft_limits: limits.any(|limit| limit.soft.is_some()),
            rules: Arc::new(builder.rules),
            first_rule_id: first.0,
            tree: Arc::new(builder.tree),
            secret: builder.secret,
            checks_max: CHECKS_MAX,
            overrides: None,
        }
    }
}

#[derive(Default)]
struct TreeBuilder {
    tree: DescriptorTree,
    rules: Vec<Rule>,
    first_rule_id: u32,
    secret: Secret,
}

impl TreeBuilder {
    fn add_domain(&mut self, spec: &DomainSpec) {
        if self.tree.domain(&spec.name).is_some() {
            return;
        }
        let is_leaf = spec.nodes.is_empty();
        let root = self.add_node(TreeNode { is_leaf, ..TreeNode::default() });
        self.tree.domain_index.insert(spec.name.clone(), self.tree.domains.len());
        self.tree.domains.push(Domain {
            name: spec.name.clone(),
            accounting: spec.accounting,
            charge: spec.charge,
            hash_tag: spec.hash_tag.clone(),
            quota_group: spec.quota_group.clone(),
            http: spec.http.clone(),
            root,
        });
        self.add_children(spec, root, &spec.nodes);
    }

    /// Adds the nodes and rules below a node, in file order.
    fn add_children(&mut self, domain: &DomainSpec, parent: NodeId, specs: &[NodeSpec]) {
        let mut patterns: HashMap<u32, (Vec<&str>, Vec<NodeId>)> = HashMap::new();
        for spec in specs {
            let node = self.add_node(TreeNode {
                parent: Some(parent),
                key: spec.key.clone(),
                value: spec.value.clone(),
                share_threshold: spec.share_threshold,
                value_to_metric: spec.value_to_metric,
                rule: None,
                is_leaf: spec.children.is_empty(),
            });
            let group = self.find_or_add_group(parent, &spec.key);
            match &spec.value {
                ValueSpec::Pattern(text) if text.contains('*') => {
                    let (texts, nodes) = patterns.entry(group).or_default();
                    texts.push(text);
                    nodes.push(node);
                }
                ValueSpec::Exact(value) | ValueSpec::Pattern(value) => {
                    self.add_exact_child(group, value, node);
                }
                ValueSpec::Any => {
                    self.tree.groups[group as usize].default.get_or_insert(node);
                }
            }
            if let Some(rule) = &spec.rule {
                self.add_rule(domain, node, rule);
            }
            self.add_children(domain, node, &spec.children);
        }
        for (group, (texts, nodes)) in patterns {
            self.tree.groups[group as usize].patterns =
                Some((Patterns::new(texts), nodes.into_boxed_slice()));
        }
    }

    fn add_node(&mut self, node: TreeNode) -> NodeId {
        self.tree.nodes.push(node);
        NodeId(to_u32(self.tree.nodes.len() - 1))
    }

    fn find_or_add_group(&mut self, parent: NodeId, key: &str) -> u32 {
        let (tree, key_bytes) = (&mut self.tree, key.as_bytes().into());
        *tree.group_index.entry((parent.0, key_bytes)).or_insert_with(|| {
            tree.groups.push(KeyGroup { parent, key: key.into(), ..KeyGroup::default() });
            to_u32(tree.groups.len() - 1)
        })
    }

    fn add_exact_child(&mut self, group: u32, value: &Arc<str>, node: NodeId) {
        self.tree.groups[group as usize].has_exact = true;
        // The text of the node.
        let value = Arc::clone(value).into();
        self.tree.exact_index.entry((group, value)).or_insert(node.0);
    }

    fn add_rule(&mut self, domain: &DomainSpec, node: NodeId, spec: &RuleSpec) {
        let id = RuleId(self.first_rule_id.wrapping_add(to_u32(self.rules.len())));
        self.tree.nodes[node.0 as usize].rule = Some(id);
        let path = self.tree.path_to(node);
        // The domain whose rules are being added.
        let of_domain = self.tree.domains.len() - 1;
        let keys = path.iter().map(|node| node.key.as_bytes());
        let keys = self.tree.hash_of_keys(self.tree.domains[of_domain].root, keys);
        let key_templates: Vec<_> =
            spec.limits.iter().map(|limit| self.build_key_template(domain, &path, limit)).collect();
        // Shared, because the templates of siblings are equal and would take a quarter of the policy.
        let last = self.rules.last().map(|rule| &rule.key_templates);
        let key_templates = match last.filter(|last| ***last == *key_templates) {
            Some(last) => Arc::clone(last),
            None => key_templates.into(),
        };
        let printed = configured_path(&domain.name, &path);
        let values_in_metrics = spec.detailed_metric || path.iter().any(|node| shows_value(node));
        self.tree.rule_keys.insert(keys);
        self.rules.push(Rule {
            id,
            path: printed.into(),
            limits: Arc::clone(&spec.limits),
            shadow_mode: spec.shadow_mode,
            quota_mode: spec.quota_mode,
            metadata: spec.metadata.clone(),
            body: spec.body.clone().or_else(|| domain.body.clone()),
            location: spec.location.clone(),
            values_in_metrics,
            detailed_metric: spec.detailed_metric,
            domain: to_u32(of_domain),
            node,
            key_templates,
            replaces: spec.replaces.clone(),
            overrides: None,
            value_overrides: None,
        });
    }

    fn build_key_template(
        &self,
        domain: &DomainSpec,
        path: &[&TreeNode],
        spec: &LimitSpec,
    ) -> KeyTemplate {
        // The entry with the class is not part of the key: either all classes share one counter, or
        // the prefix contains the class name.
        let levels = path.len() - usize::from(spec.tiers.is_some());
        let mut positions: Vec<usize> = match &spec.per {
            None => (0..levels).collect(),
            Some(per) => per.iter().copied().filter(|at| *at < levels).collect(),
        };
        // `per` is a set: its order does not change the counter.
        positions.sort_unstable();
        positions.dedup();
        let key_entry =
            |at: usize| KeyEntry { position: at, shared_pattern: shared_pattern(path[at]) };
        let entry_at =
            |key: &str| positions.iter().copied().find(|at| *path[*at].key == *key).map(key_entry);
        let tag =
            domain.hash_tag.iter().map(|key| entry_at(key)).collect::<Option<Box<[KeyEntry]>>>();
        let prefix = |class: Option<&str>, limit: &Limit| {
            let is_whole_path = positions.len() == path.len();
            spec.identity_prefix(&self.secret, &domain.name, class, limit, path, is_whole_path)
        };
        let classes = spec.tiers.iter().flat_map(|tiers| {
            let is_separate = tiers.method == TierMethod::Separate;
            tiers.classes.iter().map(move |class| (is_separate.then_some(&*class.name), class))
        });
        KeyTemplate {
            prefix: prefix(None, &spec.limit),
            class_prefixes: classes.map(|(name, class)| prefix(name, &class.limit)).collect(),
            tag: tag.filter(|tag| !tag.is_empty()),
            entries: positions.iter().copied().map(key_entry).collect(),
        }
    }
}

impl LimitSpec {
    /// Returns the part of the identity that all counters of this limit share. `limit` may be that of
    /// a consumer class. `is_whole_path` says whether counter keys contain the whole path.
    pub(crate) fn identity_prefix(
        &self,
        secret: &Secret,
        domain: &str,
        class: Option<&str>,
        limit: &Limit,
        path: &[&TreeNode],
        is_whole_path: bool,
    ) -> Box<[u8]> {
        let listed = self.name.as_deref().filter(|_| self.in_list);
        let prefix = counter_key::identity_prefix(domain, listed, class, limit);
        // The values of a whole path lead to one rule. Fewer of them may lead to several.
        if is_whole_path {
            return prefix;
        }
        let path = path.iter().map(|node| (&*node.key, node.value.text()));
        counter_key::rule_identity_prefix(secret, &prefix, path)
    }
}

/// Returns whether the rule's path in metrics contains the request's value for this node even
/// without `detailed_metric`.
fn shows_value(node: &TreeNode) -> bool {
    let varies = match node.value {
        ValueSpec::Exact(_) => false,
        ValueSpec::Any => true,
        ValueSpec::Pattern(_) => !node.share_threshold,
    };
    node.value_to_metric && varies
}

fn shared_pattern(node: &TreeNode) -> Option<Arc<str>> {
    match &node.value {
        ValueSpec::Pattern(text) if node.share_threshold => Some(text.clone()),
        ValueSpec::Pattern(_) | ValueSpec::Exact(_) | ValueSpec::Any => None,
    }
}
