//! Recognizes templates that nothing has filled in, such as `{{ .Values.limit }}`.
//!
//! Not here: where a policy may have them (`reader`, `compile::unmatched_values`).

use super::tree::{Node, Value};

/// Beginnings and ends of the templates of Helm, Go, Jinja, ERB, shells, and Kubernetes, and what Go
/// writes for a value that is missing or has the wrong type.
const TEMPLATES: [(&str, &str); 8] = [
    ("{{", "}}"),
    ("{%", "%}"),
    ("<%", "%>"),
    ("${", "}"),
    ("$(", ")"),
    ("%!", ")"),
    ("<no value>", ""),
    ("<nil>", ""),
];

/// What is wrong with a template that nothing has filled in.
pub(crate) const TEMPLATE_ADVICE: &str =
    "a template that was not filled in; set its value, and render the file again";

/// Returns whether a text contains a template that nothing has filled in.
pub(crate) fn has_template(text: &str) -> bool {
    let is_between = |(begin, end): &(&str, &str)| {
        text.split_once(begin).is_some_and(|(_, rest)| rest.contains(end))
    };
    // Hardly any text has one of these, and every value of a policy is asked for.
    text.contains(['{', '<', '$', '%']) && TEMPLATES.iter().any(is_between)
}

/// Returns whether a value is a template that nothing has filled in. YAML reads an unquoted
/// `{{ .Values.limit }}` as a map whose key is a map.
pub(crate) fn is_template(value: Node<'_>) -> bool {
    match value.value() {
        Value::Scalar(text, _) => has_template(text),
        Value::Map(map) => map.entries().any(|(key, _)| matches!(key.value(), Value::Map(_))),
        Value::List(_) => false,
    }
}
