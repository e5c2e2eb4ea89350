//! Settings of the process, such as addresses, timeouts, the store, response headers and logs.
//!
//! A value comes from the first of these sources that sets it: flag, environment, settings file,
//! default. The table in `table` defines flags, help texts, environment variables, the struct
//! [`Settings`], and the page docs/SETTINGS.md. `app` reads the environment and the settings file;
//! `cli` generates flags from the table. Rate limits are not settings; see `policy`.

mod cross_checks;
mod domain_grants;
mod drop_in_mode;
mod foreign_names;
mod notices;
mod otlp_settings;
mod precedence;
mod redis_settings;
mod server_url;
mod setting_error;
mod setting_row;
mod table;
mod value_types;

pub use drop_in_mode::DropIn;
pub use foreign_names::find_similar_name;
pub use notices::{Notice, NoticeKind, find_notices};
pub use otlp_settings::{OtlpSettings, TraceSampler};
pub use precedence::{SettingValue, Sources, TextMap, report};
pub use redis_settings::{RedisLogin, RedisSettings, parse_login};
pub use server_url::ServerUrl;
pub use setting_error::SettingError;
pub use setting_row::SettingRow;
pub use table::{Settings, TABLE};
pub use value_types::{HeaderFamily, OnOff, PEERS_MAX, PolicySourceKind, RedisType, SecretText};
pub(crate) use value_types::{parse_elapsed, parse_lifetime, parse_timeout};
