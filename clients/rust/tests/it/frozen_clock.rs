//! Proof that nothing sleeps in the path of a request: the clock stands still.

use std::sync::mpsc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode};
use tidegate_client::Mapping;
use tokio::time::Instant;
use tower::ServiceExt as _;

use crate::support::{PATIENCE, Tidegate};

/// tokio's clock is paused, and does not advance by itself while a blocking task runs. So whoever sleeps,
/// however briefly, sleeps until the blocking task gives up, and then the clock has moved. 200 rejected requests are answered all the same, each with a
/// `Retry-After` of up to a year.
#[tokio::test(start_paused = true)]
async fn rejections_are_answered_while_the_clock_stands_still() {
    let (end, ended) = mpsc::channel::<()>();
    let blocking = tokio::task::spawn_blocking(move || ended.recv_timeout(PATIENCE));
    let start = Instant::now();
    let nobody_wakes_up = tokio::time::sleep(Duration::from_millis(1));
    tokio::pin!(nobody_wakes_up);

    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let mapping = Mapping::from_json(
        r#"{"descriptors": [{"entries": [{"key": "user", "header": "x-user"}]}]}"#,
    );
    let app =
        Router::new().route("/", get(|| async { "hello" })).layer(client.layer(mapping.unwrap()));
    for number in 1..=205 {
        let request = Request::get("/").header("x-user", "ann").body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        if number <= 5 {
            assert_eq!(response.status(), StatusCode::OK);
        } else {
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            assert!(response.headers().contains_key("retry-after"));
        }
    }
    assert_eq!(client.counters().rejected, 200);
    assert_eq!(start.elapsed(), Duration::ZERO);
    let still_asleep = std::future::poll_fn(|context| {
        std::task::Poll::Ready(nobody_wakes_up.as_mut().poll(context).is_pending())
    });
    assert!(still_asleep.await);
    end.send(()).unwrap();
    blocking.await.unwrap().unwrap();
}
