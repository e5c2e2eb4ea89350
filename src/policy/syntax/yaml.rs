//! YAML text to a tree of values, in the way of `serde_yaml`, with four differences: a key that
//! stands twice does not end the reading (the first one stays), integers beyond 64 bits become
//! floats as in YAML 1.1, tags of no type of YAML's are noted and left out, and merge keys (`<<`)
//! are applied from the inside out.
//!
//! Not here: places (`places`), bounds (`layout`), meaning.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde_yaml::{Mapping, Value};

use super::diagnostic::{Path, Step};

/// What was read.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) root: Value,
    /// Some key stands twice in one map.
    pub(crate) has_repeated_keys: bool,
    /// Some value or key had a tag that was left out.
    pub(crate) has_tags: bool,
}

/// Reads the first document of a text.
pub(crate) fn read(text: &str) -> Result<Tree, serde_yaml::Error> {
    let seen = Seen::default();
    let root = match serde_yaml::Deserializer::from_str(text).next() {
        Some(document) => Loose(&seen).deserialize(document)?,
        None => Value::Null,
    };
    Ok(Tree { root, has_repeated_keys: seen.repeated.get(), has_tags: seen.tags.get() })
}

/// What was met on the way.
#[derive(Default)]
struct Seen {
    repeated: Cell<bool>,
    tags: Cell<bool>,
}

/// Reads any value; notes a key that stands twice, and a tag.
#[derive(Clone, Copy)]
struct Loose<'c>(&'c Seen);

impl<'de> DeserializeSeed<'de> for Loose<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Loose<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Number((value as f64).into()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok(Value::Number((value as f64).into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Sequence(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Mapping::new();
        while let Some(key) = entries.next_key_seed(self)? {
            let value = entries.next_value_seed(self)?;
            if map.contains_key(&key) {
                self.0.repeated.set(true);
            } else {
                map.insert(key, value);
            }
        }
        Ok(Value::Mapping(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Value, A::Error> {
        let (_, contents) = data.variant::<String>()?;
        self.0.tags.set(true);
        contents.newtype_variant_seed(self)
    }
}

/// Applies the merge keys of a tree, innermost first, so that a merged map brings along what was
/// merged into it. A map's own entries win, then the earlier of several merged maps. The paths of
/// merge keys that name something else than maps go to `bad`.
pub(crate) fn merge(value: &mut Value, path: &mut Path, bad: &mut Vec<Path>) {
    match value {
        Value::Mapping(map) => {
            for (key, value) in map.iter_mut() {
                path.0.push(Step::Key(key_text(key).into()));
                merge(value, path, bad);
                path.0.pop();
            }
            let Some(merged) = map.remove("<<") else { return };
            let list = match merged {
                Value::Sequence(list) => list,
                one => vec![one],
            };
            for one in list {
                let Value::Mapping(one) = one else {
                    bad.push(path.clone().key("<<"));
                    continue;
                };
                for (key, value) in one {
                    map.entry(key).or_insert(value);
                }
            }
        }
        Value::Sequence(list) => {
            for (at, value) in list.iter_mut().enumerate() {
                path.0.push(Step::Index(at));
                merge(value, path, bad);
                path.0.pop();
            }
        }
        Value::Tagged(tagged) => merge(&mut tagged.value, path, bad),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A map's key as text.
pub(crate) fn key_text(key: &Value) -> String {
    match key {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Null => "null".to_owned(),
        Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => String::new(),
    }
}
