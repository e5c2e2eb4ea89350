//! Overrides at run time in Redis: their records, and the replicas that follow them.
//!
//! Never on the path of a request. Not here: the law by which records merge (`domain`), when a replica
//! polls (`app`).

use super::client::client_context::ConnectError;
use super::client::side_connection::SideConnection;
use super::client::topology::RedisClient;
use super::script::keys::Prefix;
use super::script::library::{OVERRIDE_POLL, OVERRIDE_WRITE};
use crate::domain::{Micros, OverrideRecord};

/// Number of records that are read or written together. Redis executes a page in about a millisecond,
/// while other commands wait.
pub(crate) const PAGE_RECORDS: usize = 500;

/// Time after which a replica that has not polled is no longer counted, 10 s.
const REPLICA_EXPIRY: Micros = Micros(10_000_000);

/// Records of overrides with their ids. Records that cannot be read are left out.
pub(crate) type RecordPage = Vec<(String, OverrideRecord)>;

/// Client of the overrides in Redis.
#[derive(Debug)]
pub(crate) struct OverrideStore {
    connection: SideConnection,
    keys: [String; 3],
    /// Random number of this process.
    replica: u64,
}

/// State of the overrides in Redis, and the changes after a version.
#[derive(Debug)]
pub(crate) struct PollReply {
    /// Clock of the server.
    pub(crate) time: Micros,
    /// Version of the latest change.
    pub(crate) highest: u64,
    /// Checksum of all records, as of a table.
    pub(crate) checksum: u64,
    /// Number of replicas that polled recently, with this one.
    pub(crate) replicas: u32,
    pub(crate) changes: RecordPage,
    /// Whether there are changes after these.
    pub(crate) has_more: bool,
}

impl OverrideStore {
    pub(crate) fn new(client: &RedisClient, prefix: &Prefix, replica: u64) -> OverrideStore {
        let keys = prefix.override_keys();
        OverrideStore { connection: SideConnection::new(client, &keys[0]), keys, replica }
    }

    /// Returns the changes after a version, at most [`PAGE_RECORDS`], and counts this replica.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis cannot be reached or replies with an error.
    pub(crate) async fn poll(&mut self, after: u64) -> Result<PollReply, ConnectError> {
        let mut script = OVERRIDE_POLL.prepare_invoke();
        for key in &self.keys {
            script.key(key);
        }
        script.arg(self.replica).arg(after).arg(PAGE_RECORDS).arg(REPLICA_EXPIRY.0);
        let reply: (u64, String, u32, Vec<String>, Vec<Option<String>>) =
            self.connection.send(async |to| script.invoke_async(to).await).await?;
        let (time, state, replicas, ids, records) = reply;
        let number = |at| state.split(' ').nth(at).and_then(|text: &str| text.parse().ok());
        let has_more = ids.len() >= PAGE_RECORDS;
        let record = |(id, record): (String, Option<String>)| Some((id, record?.parse().ok()?));
        Ok(PollReply {
            time: Micros(time),
            highest: number(0).unwrap_or(0),
            checksum: number(1).unwrap_or(0),
            replicas,
            changes: ids.into_iter().zip(records).filter_map(record).collect(),
            has_more,
        })
    }

    /// Writes a change of an override, and returns its record. Its version is higher than `known`, the
    /// highest one that this replica knows: Redis may have lost it.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis cannot be reached or replies with an error. The change may have been
    /// written nevertheless.
    pub(crate) async fn change(
        &mut self,
        id: &str,
        known: u64,
        body: &str,
    ) -> Result<OverrideRecord, ConnectError> {
        let written = self.write([(id, [known.to_string(), "now".to_owned()], body)]).await?;
        let unreadable = || ConnectError::failed("the reply to a change cannot be read");
        format!("{written} {body}").parse().map_err(|()| unreadable())
    }

    /// Writes those of the records that win over the records that Redis has.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis cannot be reached or replies with an error.
    pub(crate) async fn push(
        &mut self,
        records: &[(String, OverrideRecord)],
    ) -> Result<(), ConnectError> {
        let each = records.iter().map(|(id, record)| {
            let numbers = [record.version.to_string(), record.written_at.0.to_string()];
            (&**id, numbers, &*record.body)
        });
        self.write(each).await.map(drop)
    }

    /// Removes records that nothing has replaced.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis cannot be reached or replies with an error.
    pub(crate) async fn forget(&mut self, records: &[(String, u64)]) -> Result<(), ConnectError> {
        let each =
            records.iter().map(|(id, version)| (&**id, [version.to_string(), String::new()], ""));
        self.write(each).await.map(drop)
    }

    async fn write<'r>(
        &mut self,
        records: impl IntoIterator<Item = (&'r str, [String; 2], &'r str)>,
    ) -> Result<String, ConnectError> {
        let mut script = OVERRIDE_WRITE.prepare_invoke();
        script.key(&self.keys[0]).key(&self.keys[1]);
        for (id, [version, time], body) in records {
            script.arg(id).arg(version).arg(time).arg(body);
        }
        self.connection.send(async |to| script.invoke_async(to).await).await
    }

    /// Returns the next records of all, about [`PAGE_RECORDS`], and the cursor after them: 0 after the
    /// last. Start with cursor 0.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis cannot be reached or replies with an error.
    pub(crate) async fn scan(&mut self, cursor: u64) -> Result<(u64, RecordPage), ConnectError> {
        let mut command = redis::cmd("HSCAN");
        command.arg(&self.keys[0]).arg(cursor).arg("COUNT").arg(PAGE_RECORDS);
        let reply: (u64, Vec<(String, String)>) =
            self.connection.send(async |to| command.query_async(to).await).await?;
        let record = |(id, text): (String, String)| {
            let record = text.parse().ok().filter(|_| !id.is_empty())?;
            Some((id, record))
        };
        Ok((reply.0, reply.1.into_iter().filter_map(record).collect()))
    }
}
