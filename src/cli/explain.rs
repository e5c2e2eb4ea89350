//! `tidegate explain`: which rule a request meets, by which step, on which counter, and what it
//! would be answered.
//!
//! Not here: the matching (`policy`), the deciding (`decide`).

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::print;
use crate::app::{self, Asked, Failure};

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Explain {
    /// Policy files, or directories with .yaml and .yml files
    #[arg(long, required = true, value_name = "FILE|DIR")]
    policy: Vec<PathBuf>,
    /// The domain
    domain: String,
    /// Descriptors, each as k=v,k2=v2 (a comma inside a value: \,)
    #[arg(required = true, value_name = "K=V,K2=V2")]
    descriptors: Vec<String>,
    /// Hits of the request; 0 asks without taking
    #[arg(long, default_value_t = 1)]
    hits: u64,
    /// Several files may describe one domain
    #[arg(long, env = "MERGE_DOMAIN_CONFIG", hide_env_values = true,
          value_parser = BoolishValueParser::new())]
    merge_domain_config: bool,
    /// The key of the hash that makes counter keys, as the service has it
    #[arg(long, env = "TIDEGATE_KEY_SECRET", hide_env_values = true, default_value = "")]
    key_secret: String,
    /// Start of every key in Redis, as the service has it
    #[arg(long, env = "CACHE_KEY_PREFIX", hide_env_values = true, default_value = "")]
    cache_key_prefix: String,
}

const AFTER_HELP: &str = "\
Examples:
  tidegate explain --policy limits.yaml edge remote_address=10.0.0.1
  tidegate explain --policy limits/ edge api_token=t1,remote_address=10.0.0.1 plan=free";

impl Explain {
    pub(super) fn run(self) -> Result<(), Failure> {
        let loaded = app::check(&self.policy, self.merge_domain_config, &self.key_secret)?;
        let descriptors = self.descriptors.iter().map(|text| app::descriptor(text));
        let asked = Asked {
            domain: self.domain,
            descriptors: descriptors.collect::<Result<_, _>>()?,
            hits: self.hits,
        };
        print::out(&app::explain(Arc::new(loaded.policy), &self.cache_key_prefix, &asked)?)
    }
}
