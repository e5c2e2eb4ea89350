//! OTLP receiver over HTTP/1.1, with or without TLS: keeps every export that arrives at the path of
//! its signal, and answers 404 everywhere else.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use super::otlp_receiver::{ReceivedExports, Receiver};
use crate::support::certificate_authority::Identity;

impl Receiver {
    /// Starts a receiver that speaks HTTP, with this certificate or without TLS.
    pub fn start_http(identity: Option<&Identity>) -> Receiver {
        let kept = Arc::new(Mutex::new(ReceivedExports::default()));
        let keeps = Arc::clone(&kept);
        let acceptor = identity.map(acceptor);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        socket.set_nonblocking(true).unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = tokio::net::TcpListener::from_std(socket).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let (keeps, acceptor) = (Arc::clone(&keeps), acceptor.clone());
                    tokio::spawn(async move {
                        match acceptor {
                            None => serve(stream, keeps).await,
                            Some(acceptor) => {
                                if let Ok(stream) = acceptor.accept(stream).await {
                                    serve(stream, keeps).await;
                                }
                            }
                        }
                    });
                }
            });
        });
        Receiver { address, kept }
    }
}

fn acceptor(identity: &Identity) -> TlsAcceptor {
    let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let config = builder.with_no_client_auth().with_single_cert(chain, key).unwrap();
    TlsAcceptor::from(Arc::new(config))
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    kept: Arc<Mutex<ReceivedExports>>,
) {
    let service = service_fn(move |request| {
        let kept = Arc::clone(&kept);
        async move { Ok::<_, Infallible>(keep(request, &kept).await) }
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn keep(request: Request<Incoming>, kept: &Mutex<ReceivedExports>) -> Response<Empty<Bytes>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    assert_eq!(head.headers["content-type"], "application/x-protobuf");
    let key = head.headers.get("api-key").map(|key| key.to_str().unwrap().to_owned());
    let mut kept = kept.lock().unwrap();
    let mut response = Response::new(Empty::new());
    match (head.method, head.uri.path()) {
        (Method::POST, "/v1/metrics") => kept.metrics.push(decode(&body)),
        (Method::POST, "/v1/traces") => kept.traces.push(decode(&body)),
        _ => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    kept.keys.push(key);
    response
}

fn decode<M: prost::Message + Default>(body: &[u8]) -> M {
    M::decode(body).expect("a message of OTLP")
}
