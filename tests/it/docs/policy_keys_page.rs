//! The tables of keys in `docs/POLICY.md` are generated from the JSON Schema, which is generated
//! from the keyword table.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tidegate::policy::schema;

const BEGIN: &str = "<!-- generated: policy keys -->\n";
const END: &str = "\n<!-- end generated -->";

/// The levels in reading order, with the headings of their tables.
const LEVELS: [(&str, &str); 12] = [
    ("file", "Top level of the file"),
    ("descriptor", "An entry of `descriptors`"),
    ("rate_limit", "`rate_limit`, or an entry of `rate_limits`"),
    ("replaces", "An entry of `replaces`"),
    ("mark", "`mark`"),
    ("reserve", "`reserve`"),
    ("tiers", "`tiers`"),
    ("class", "A class of `tiers`"),
    ("body", "`body`"),
    ("http", "`http`"),
    ("http_descriptor", "An entry of `descriptors` in `http`"),
    ("http_entry", "An entry of `entries` in `http`"),
];

fn tables() -> String {
    let schema = schema();
    let levels = schema["$defs"].as_object().unwrap();
    assert_eq!(levels.len(), LEVELS.len(), "a level without a table");
    let mut tables = String::new();
    for (level, heading) in LEVELS {
        write!(tables, "\n### {heading}\n\n| key | takes | meaning |\n|---|---|---|\n").unwrap();
        for (name, key) in levels[level]["properties"].as_object().unwrap() {
            let meaning = key["description"].as_str().unwrap().replace('|', "\\|");
            writeln!(tables, "| `{name}` | {} | {meaning} |", takes(key)).unwrap();
        }
    }
    tables
}

/// What a key takes. Null and the other spellings of YAML 1.1, which every key accepts, are left out.
fn takes(key: &Value) -> String {
    let forms = key["anyOf"].as_array().cloned().unwrap_or_else(|| vec![key.clone()]);
    forms.iter().find_map(form).unwrap_or_else(|| panic!("no form is known for {key}"))
}

fn form(form: &Value) -> Option<String> {
    if let Some(bytes) = form["maxLength"].as_u64() {
        return Some(format!("text, up to {bytes} bytes"));
    }
    if let Some(words) = form["enum"].as_array() {
        let words: Vec<String> =
            words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`")).collect();
        return Some(format!("one of {}", words.join(", ")));
    }
    if form.get("$ref").is_some() {
        return Some("map".to_owned());
    }
    let types = match &form["type"] {
        Value::String(one) => vec![one.as_str()],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    match *types.first()? {
        "integer" => Some(integer(form)),
        "boolean" => Some("boolean".to_owned()),
        "array" if form["items"].get("$ref").is_some() => Some("list of maps".to_owned()),
        "array" => Some("list of names".to_owned()),
        "object" if form["additionalProperties"].is_object() => Some("map of maps".to_owned()),
        "object" => Some("map".to_owned()),
        "string" if form["pattern"].as_str()?.ends_with("%$") => {
            Some("percentage, such as `24%`".to_owned())
        }
        _ => None,
    }
}

fn integer(form: &Value) -> String {
    match (form["minimum"].as_u64().unwrap(), form["maximum"].as_u64().unwrap()) {
        (least, most) if most == i64::MAX.unsigned_abs() => format!("integer from {least}"),
        (least, most) => format!("integer, {least} to {most}"),
    }
}

#[test]
fn the_page_lists_every_key_as_it_is() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/POLICY.md");
    let page = fs::read_to_string(page).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the start of the generated section");
    let (shown, after) = rest.split_once(END).expect("its end");
    let tables = tables();
    if shown != tables {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("POLICY.md");
        fs::write(&file, [before, BEGIN, &tables, END, after].concat()).unwrap();
        panic!(
            "docs/POLICY.md has other keys than the policy language; {} is correct",
            file.display()
        );
    }
}
