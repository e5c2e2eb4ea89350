//! Budget for reading a policy: the number of its nodes, and the memory for its text. All files of a
//! policy, or all resources of a control plane, share one.
//!
//! Not here: the sizes of files, which are checked before they are read (`source`).

use std::cell::Cell;

/// Maximum number of nodes in a policy: descriptors and limits. In a response of a control plane,
/// the names of replaced limits and the values in `metadata` count, too. A rule takes about 1 KiB
/// once compiled, so that 250,000 nodes, with the policy that they replace, fit into 512 MiB.
pub const NODES_MAX: usize = 250_000;

/// Maximum memory for reading a policy, in bytes: the syntax trees of all files, and the text of the
/// compiled rules. A file may have a node of 28 bytes for every two bytes of its text, and an
/// aliased or inherited text may be in every rule, so a bound on the files' sizes is not enough.
pub const READ_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Nodes and bytes that a policy has used so far, each at most [`NODES_MAX`] and
/// [`READ_BYTES_MAX`].
#[derive(Clone, Debug, Default)]
pub struct ReadBudget {
    nodes: Cell<usize>,
    bytes: Cell<usize>,
    is_exceeded: Cell<bool>,
}

impl ReadBudget {
    pub(crate) fn bytes_left(&self) -> usize {
        READ_BYTES_MAX.saturating_sub(self.bytes.get())
    }

    /// Uses nodes and bytes. Returns false if fewer are left, and from then on.
    pub(crate) fn take(&self, nodes: usize, bytes: usize) -> bool {
        self.nodes.set(self.nodes.get().saturating_add(nodes));
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        self.nodes.get() <= NODES_MAX && self.bytes.get() <= READ_BYTES_MAX
    }

    /// Returns the error for an exceeded budget at the first call, and `None` at further calls,
    /// because one error is enough.
    pub(crate) fn first_error(&self) -> Option<String> {
        (!self.is_exceeded.replace(true)).then(exceeded_message)
    }
}

/// For policies of several domains, of which each is compiled by itself.
#[cfg(feature = "server")]
impl ReadBudget {
    /// Uses what `other` has used.
    pub(crate) fn take_all(&self, other: &ReadBudget) {
        self.take(other.nodes.get(), other.bytes.get());
    }

    /// Returns what was used since `before`, an earlier state of this budget.
    pub(crate) fn since(&self, before: &ReadBudget) -> ReadBudget {
        let used = ReadBudget::default();
        used.take(self.nodes.get() - before.nodes.get(), self.bytes.get() - before.bytes.get());
        used
    }

    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_exceeded.get()
    }
}

/// Returns the error for a policy that exceeds a [`ReadBudget`].
pub(crate) fn exceeded_message() -> String {
    format!(
        "from here on, the policy has more than {NODES_MAX} descriptors and limits, or takes more \
         than {READ_BYTES_MAX} bytes of memory; remove some, or divide them among several \
         services"
    )
}
