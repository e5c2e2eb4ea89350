//! Body of a response: the service's, or a short one instead of it. Releases the request's slots when it is dropped.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::hold::Hold;

pin_project! {
    /// Body of the responses of [`crate::RateLimit`].
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
        // Dropped with the body: after its last byte, or when the client disconnects.
        hold: Option<Hold>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = KindProjection]
    enum Kind<B> {
        Inner { #[pin] body: B },
        Bytes { bytes: Bytes },
    }
}

impl<B> ResponseBody<B> {
    pub(crate) fn inner(body: B, hold: Option<Hold>) -> ResponseBody<B> {
        ResponseBody { kind: Kind::Inner { body }, hold }
    }

    pub(crate) fn of_bytes(bytes: Bytes) -> ResponseBody<B> {
        ResponseBody { kind: Kind::Bytes { bytes }, hold: None }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Inner { body } => body.poll_frame(context),
            KindProjection::Bytes { bytes } if bytes.is_empty() => Poll::Ready(None),
            KindProjection::Bytes { bytes } => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream(),
            Kind::Bytes { bytes } => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::Bytes { bytes } => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

/// For tonic, whose servers want a default.
impl<B: Default> Default for ResponseBody<B> {
    fn default() -> ResponseBody<B> {
        ResponseBody::inner(B::default(), None)
    }
}
