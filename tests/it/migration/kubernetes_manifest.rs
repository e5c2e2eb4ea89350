//! Applies `manifest.yaml` as Kubernetes would: the ConfigMap mounted with its links, the
//! container's command and environment.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_yaml::Value;

use crate::support::tidegate_process::linked;

#[derive(Deserialize)]
struct ConfigMap {
    data: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    command: Vec<String>,
    env: Vec<Variable>,
    volume_mounts: Vec<Mount>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    mount_path: String,
}

/// The address of Redis in the manifest.
const REDIS: &str = "redis:6379";

/// The container's command with its environment, in a file system below `root`, counting in this Redis.
pub fn command(root: &Path, redis: &str) -> Command {
    let (config_map, container) = read();
    for mount in &container.volume_mounts {
        mount_files(&below(root, &mount.mount_path), &config_map.data);
    }
    let program = below(root, &container.command[0]);
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    let mut command = linked(&program);
    command.args(&container.command[1..]);
    for Variable { name, value } in container.env {
        match name.as_str() {
            "RUNTIME_ROOT" => command.env(name, below(root, &value)),
            "REDIS_URL" => command.env(name, value.replace(REDIS, redis)),
            _ => command.env(name, value),
        };
    }
    command
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn read() -> (ConfigMap, Container) {
    let documents: Vec<Value> = serde_yaml::Deserializer::from_str(include_str!("manifest.yaml"))
        .map(|document| Value::deserialize(document).unwrap())
        .collect();
    let [config_map, deployment] = documents.try_into().unwrap();
    let container = deployment["spec"]["template"]["spec"]["containers"][0].clone();
    (serde_yaml::from_value(config_map).unwrap(), serde_yaml::from_value(container).unwrap())
}

/// A ConfigMap in a container: the files lie in a directory with a time for a name, a link `..data`
/// leads there, and the files' names are links through that.
fn mount_files(directory: &Path, files: &BTreeMap<String, String>) {
    const TIME: &str = "..2026_07_05_10_00_00.123456789";
    fs::create_dir_all(directory.join(TIME)).unwrap();
    symlink(TIME, directory.join("..data")).unwrap();
    for (name, text) in files {
        fs::write(directory.join(TIME).join(name), text).unwrap();
        symlink(Path::new("..data").join(name), directory.join(name)).unwrap();
    }
}
