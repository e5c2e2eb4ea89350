//! Connection for commands that are not on the path of a request: one, to the node that holds a key.
//!
//! It is opened when it is needed, and given up after any error. Not a pool of `deadpool_redis`: before
//! each reuse, a pool sends UNWATCH, which the ACL in the documentation does not permit.

use std::sync::Arc;

use redis::RedisError;
use redis::aio::MultiplexedConnection;

use super::client_context::{ClientContext, ConnectError, read_password};
use super::config::Address;
use super::topology::{RedisClient, Topology};
use crate::store::redis::script::keys::key_slot;

/// Connection to the master or, on a cluster, to the owner of a hash slot.
#[derive(Debug)]
pub(crate) struct SideConnection {
    context: Arc<ClientContext>,
    topology: Arc<Topology>,
    slot: u16,
    open: Option<OpenConnection>,
}

/// An open connection, its node, and the password with which it logged in.
type OpenConnection = (Address, Option<String>, MultiplexedConnection);

impl SideConnection {
    /// Creates a connection for commands to `key`. It is opened by the first command.
    pub(crate) fn new(client: &RedisClient, key: &str) -> SideConnection {
        let (context, topology) = client.parts();
        SideConnection { context, topology, slot: key_slot(key.as_bytes()), open: None }
    }

    /// Sends a command and returns its reply. Takes at most twice the connect timeout.
    ///
    /// # Errors
    ///
    /// Returns an error if the node is unknown, connecting fails, or the command fails.
    pub(crate) async fn send<T>(
        &mut self,
        command: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
    ) -> Result<T, ConnectError> {
        // Out of its place, so that a connection whose reply did not arrive is not used again.
        let former = self.open.take();
        let sent = self.send_over(former, command).await;
        if let (Err(error), Topology::Cluster(cluster)) = (&sent, &*self.topology)
            && error.code() == Some("MOVED")
        {
            cluster.refresh_needed.notify_one();
        }
        Ok(sent?)
    }

    async fn send_over<T>(
        &mut self,
        former: Option<OpenConnection>,
        command: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
    ) -> Result<T, RedisError> {
        let Some(address) = self.topology.address_of(self.slot) else {
            return Err((redis::ErrorKind::Io, "no node is known").into());
        };
        let config = &self.context.config;
        // A password that cannot be read does not close the connection.
        let password = read_password(&config.auth).ok().flatten();
        let is_current = |(node, login, _): &OpenConnection| {
            *node == address && (password.is_none() || *login == password)
        };
        let mut connection = match former.filter(is_current) {
            Some((_, _, open)) => open,
            None => self.context.open(&address, &config.auth, config.db).await?,
        };
        let reply = command(&mut connection).await?;
        self.open = Some((address, password, connection));
        Ok(reply)
    }
}
