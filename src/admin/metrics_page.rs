//! HTTP handler of the metrics page. A rendering of the page takes at least 500 bytes per rule, so
//! concurrent readers share renderings. Otherwise, each stalled connection would keep a separate
//! rendering in memory.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use tokio::sync::{Mutex, oneshot, watch};

use super::http_server::ConnectionCloser;
use crate::telemetry::{CONTENT_TYPE as OPENMETRICS, CONTENT_TYPE_PLAIN as PLAIN, MetricsPage};

/// Maximum age of a rendering of the metrics page that a new reader may share with earlier readers,
/// 1 s. Shorter than any usual scrape interval. See [`READ_TIME_MIN`] for an exception.
const SHARED_AGE_MAX: Duration = Duration::from_secs(1);

/// Minimum time that a client gets to read a rendering of the metrics page, 10 s: the default
/// scrape timeout of Prometheus. At most two renderings per format are in memory. While clients are
/// reading both, new readers share the newer one until it is 10 s old. The next new reader then
/// gets a new rendering, and the connections that are still reading the oldest one are closed.
const READ_TIME_MIN: Duration = Duration::from_secs(10);

/// Handler of the metrics page in two formats, OpenMetrics and plain text.
pub struct MetricsEndpoint {
    page: Arc<MetricsPage>,
    openmetrics: Mutex<Renderings>,
    plain: Mutex<Renderings>,
    now: fn() -> Instant,
}

/// Weak references to the renderings of the page in one format that clients are reading.
#[derive(Default)]
struct Renderings {
    newest: Option<(Instant, Weak<Rendering>)>,
    older: Weak<Rendering>,
}

/// Text of the metrics page, rendered once and shared by concurrent readers.
struct Rendering {
    text: String,
    /// Set to true to close the connections that are still reading this text.
    revoked: watch::Sender<bool>,
}

/// Handle that keeps a rendered metrics page in memory while it is sent as a response body. Dropped
/// when the body has been sent or its connection has closed.
struct RenderingReader {
    rendering: Arc<Rendering>,
    _reading: oneshot::Sender<()>,
}

impl AsRef<[u8]> for RenderingReader {
    fn as_ref(&self) -> &[u8] {
        self.rendering.text.as_bytes()
    }
}

impl MetricsEndpoint {
    /// Creates a handler for `page`. `now` reads the monotonic clock.
    pub fn new(page: Arc<MetricsPage>, now: fn() -> Instant) -> MetricsEndpoint {
        MetricsEndpoint { page, openmetrics: Mutex::default(), plain: Mutex::default(), now }
    }

    async fn respond(&self, headers: &HeaderMap, connection: ConnectionCloser) -> Response {
        let (page, now) = (&self.page, (self.now)());
        let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let accepts_openmetrics = accept.is_some_and(|accept| accept.contains("openmetrics"));
        let (content_type, rendering) = if accepts_openmetrics && !page.has_ratelimit_names() {
            (OPENMETRICS, self.openmetrics.lock().await.share_or_render(now, || page.text()))
        } else {
            (PLAIN, self.plain.lock().await.share_or_render(now, || page.plain_text()))
        };
        let Ok(rendering) = rendering else {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        };
        ([(CONTENT_TYPE, content_type)], share_text(rendering, connection)).into_response()
    }
}

impl Renderings {
    /// Returns a rendering of the page for a new reader. Reuses the newest rendering if clients are
    /// still reading it and it is younger than [`SHARED_AGE_MAX`], or younger than
    /// [`READ_TIME_MIN`] if clients are also reading an older rendering. Otherwise, renders the
    /// page again.
    fn share_or_render(
        &mut self,
        now: Instant,
        render: impl FnOnce() -> Result<String, fmt::Error>,
    ) -> Result<Arc<Rendering>, fmt::Error> {
        let newest = self.newest.as_ref().and_then(|(at, newest)| Some((*at, newest.upgrade()?)));
        if let Some((at, newest)) = newest {
            let age = now.saturating_duration_since(at);
            let older = self.older.upgrade();
            if age < SHARED_AGE_MAX || (older.is_some() && age < READ_TIME_MIN) {
                return Ok(newest);
            }
            if let Some(older) = older {
                older.revoked.send_replace(true);
            }
            self.older = Arc::downgrade(&newest);
        }
        let text = render()?;
        let rendering = Arc::new(Rendering { text, revoked: watch::Sender::new(false) });
        self.newest = Some((now, Arc::downgrade(&rendering)));
        Ok(rendering)
    }
}

/// Returns a response body that sends a rendered metrics page without copying its text. If the
/// rendering is revoked before the whole body has been sent, the connection is closed.
fn share_text(rendering: Arc<Rendering>, connection: ConnectionCloser) -> Bytes {
    let (reading, sent) = oneshot::channel();
    let mut revoked = rendering.revoked.subscribe();
    tokio::spawn(async move {
        tokio::select! {
            Ok(_) = revoked.wait_for(|revoked| *revoked) => connection.notify_one(),
            _ = sent => {}
        }
    });
    Bytes::from_owner(RenderingReader { rendering, _reading: reading })
}

/// Builds the metrics route. Clients whose `Accept` header includes OpenMetrics, such as
/// Prometheus, get that format, and all others get plain text. A page with metric names of
/// envoyproxy/ratelimit is always plain text.
pub fn metrics_routes(page: Arc<MetricsEndpoint>, path: &str) -> Router {
    let metrics = move |headers: HeaderMap, connection: Option<Extension<ConnectionCloser>>| {
        let page = Arc::clone(&page);
        let connection = connection.map(|Extension(closer)| closer).unwrap_or_default();
        async move { page.respond(&headers, connection).await }
    };
    Router::new().route(path, get(metrics))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_readers_share_two_renderings_and_have_ten_seconds() {
        let (mut page, mut count) = (Renderings::default(), 0);
        #[allow(clippy::disallowed_methods, reason = "any instant serves as the start")]
        let start = Instant::now();
        let mut at = |ms: u64| {
            let render = || {
                count += 1;
                Ok((count - 1).to_string())
            };
            page.share_or_render(start + Duration::from_millis(ms), render)
        };
        let is_revoked = |rendering: &Rendering| *rendering.revoked.borrow();

        let first = at(0).unwrap();
        assert_eq!(at(999).unwrap().text, "0", "a recent one is shared");
        let second = at(1_000).unwrap();
        assert_eq!(second.text, "1");
        for ms in [2_500, 10_999] {
            assert_eq!(at(ms).unwrap().text, "1", "no third one");
        }
        assert!(!is_revoked(&first));
        let third = at(11_000).unwrap();
        assert_eq!((&*third.text, is_revoked(&first), is_revoked(&second)), ("2", true, false));
        drop((first, second, third));
        assert_eq!(at(11_001).unwrap().text, "3", "nobody reads: each reader gets a new one");
    }
}
