//! The HTTP ports: probes, metrics, `/json`, listings, and the requests they refuse.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use socket2::{Domain, Socket, Type};

use crate::support::http::{get, post, send};
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, directory, run};
use crate::support::wait::until;

const ASK: &str =
    r#"{"domain":"edge","descriptors":[{"entries":[{"key":"client","value":"ann"}]}]}"#;

#[test]
fn probes_succeed_while_it_serves() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    let http = serving.port("http");
    let answer = |path| {
        let reply = get(http, path);
        (reply.status, reply.body)
    };
    assert_eq!(answer("/healthcheck"), (200, "OK".to_owned()));
    assert_eq!(answer("/healthz").0, 200);
    assert_eq!(answer("/readyz").0, 200);
    assert_eq!(answer("/nonsense").0, 404);
}

#[test]
fn probes_and_metrics_are_read_only() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    for path in ["/healthcheck", "/healthz", "/readyz", "/metrics"] {
        assert_eq!(post(serving.port("http"), path, ASK).status, 405, "{path}");
    }
    assert!(serving.ask("ann").contains("4 left"), "nothing was charged");
}

#[test]
fn json_answers_200_429_and_400() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    let http = serving.port("http");
    let statuses: Vec<u16> = (0..6).map(|_| post(http, "/json", ASK).status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    let refused = post(http, "/json", ASK);
    let body: serde_json::Value = serde_json::from_str(&refused.body).expect("JSON");
    assert_eq!(body["overallCode"], "OVER_LIMIT");
    assert!(refused.head.contains("content-type: application/json"), "{}", refused.head);
    for bad in ["", "{", r#"{"domain":"edge"}"#, r#"{"domain":"","descriptors":[]}"#] {
        assert_eq!(post(http, "/json", bad).status, 400, "{bad}");
    }
    let large = format!("{{\"domain\":\"{}\"}}", "x".repeat(5 << 20));
    assert_eq!(post(http, "/json", &large).status, 413);
    let chunked = |content_type: &str, body: &str| {
        send(
            http,
            &format!(
                "POST /json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{content_type}\
                 Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
                body.len()
            ),
        )
    };
    let json = "Content-Type: Application/JSON; charset=utf-8\r\n";
    assert_eq!(chunked(json, ASK).status, 429);
    assert_eq!(chunked(json, &large).status, 413);
    for other in ["", "Content-Type: text/plain\r\n", "Content-Type: application/jsonp\r\n"] {
        let reply = chunked(other, ASK);
        assert_eq!(reply.status, 415, "{other}");
        assert_eq!(reply.body, "the content type must be application/json\n");
    }
}

#[test]
fn json_answers_503_if_the_store_is_unavailable_and_the_rule_says_error() {
    let policy = format!("{FIVE_A_DAY}on_store_failure: error\n");
    let serving = Tidegate::policy(&policy, &["--redis-url", "127.0.0.1:1"]);
    let reply = post(serving.port("http"), "/json", ASK);
    assert_eq!(reply.status, 503, "{}", reply.body);
    assert!(reply.head.contains("content-type: text/plain"), "{}", reply.head);
}

#[test]
fn the_body_of_a_denial_without_the_store_does_not_claim_too_many_requests() {
    let refused = |mode: &str| {
        let policy = format!("{FIVE_A_DAY}on_store_failure: {mode}\n");
        let serving =
            Tidegate::policy(&policy, &["--redis-url", "127.0.0.1:1", "--rejection-body", "true"]);
        let replies = (0..6).map(|_| post(serving.port("http"), "/json", ASK));
        let refused = replies.into_iter().find(|reply| reply.status == 429).expect("a refusal");
        let answer: serde_json::Value = serde_json::from_str(&refused.body).expect("JSON");
        let body = STANDARD.decode(answer["rawBody"].as_str().expect("a body")).expect("base64");
        let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        body["error"].as_str().expect("an error").to_owned()
    };
    assert_eq!(refused("deny"), "rate_limit_unavailable");
    assert_eq!(refused("local"), "too_many_requests");
}

#[test]
fn the_message_size_bounds_a_json_body_and_a_grpc_message() {
    let serving = Tidegate::policy(FIVE_A_DAY, &["--message-size", "64KiB"]);
    let long = ASK.replace("ann", &"x".repeat(65_536));
    assert_eq!(post(serving.port("http"), "/json", &long).status, 413);
    let value = format!("client={}", "x".repeat(65_536));
    let ask = run(&["ask", &serving.port("grpc").to_string(), "edge", &value]);
    assert!(ask.err.contains("the message is longer than 65536 bytes"), "{}", ask.err);
}

#[test]
fn json_can_be_switched_off() {
    let serving = Tidegate::policy(FIVE_A_DAY, &["--json", "off"]);
    assert_eq!(post(serving.port("http"), "/json", ASK).status, 404);
}

#[test]
fn metrics_count_by_rule_and_never_contain_request_data() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    for _ in 0..7 {
        serving.ask("ann");
    }
    post(serving.port("http"), "/json", &ASK.replace("edge", "unheard-of"));
    let reply = get(serving.port("http"), "/metrics");
    assert!(reply.head.contains("text/plain; version=0.0.4"), "{}", reply.head);
    let labels = r#"{domain="edge",rule="edge.client"}"#;
    for (name, hits) in
        [("rule_hits", 7), ("rule_within_limit_hits", 5), ("rule_over_limit_hits", 2)]
    {
        let line = format!("tidegate_{name}_total{labels} {hits}\n");
        assert!(reply.body.contains(&line), "{line}{}", reply.body);
    }
    assert!(reply.body.contains("tidegate_domain_not_found_total 1\n"), "{}", reply.body);
    assert!(!reply.body.contains("ann"));
    // The only names of callers are domains, and their number is bounded.
    let named = reply.body.lines().filter(|line| line.contains("unheard-of"));
    let expected =
        "tidegate_calls_without_limit_total{domain=\"unheard-of\",reason=\"unknown_domain\"} 1";
    assert_eq!(named.collect::<Vec<_>>(), [expected]);
    let head =
        "Accept: application/openmetrics-text; version=1.0.0\r\nHost: x\r\nConnection: close";
    let reply = send(serving.port("http"), &format!("GET /metrics HTTP/1.1\r\n{head}\r\n\r\n"));
    assert!(reply.head.contains("application/openmetrics-text"), "{}", reply.head);
    assert!(reply.body.ends_with("# EOF\n"));
}

#[test]
fn decisions_are_counted_by_rule_source_and_status_and_timed() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    for _ in 0..6 {
        serving.ask("ann");
    }
    post(serving.port("http"), "/json", &ASK.replace("edge", ""));
    let body = get(serving.port("http"), "/metrics").body;
    let rule = r#"{domain="edge",rule="edge.client","#;
    for line in [
        format!(r#"tidegate_rule_decisions_total{rule}code="ok",source="memory"}} 5"#),
        format!(r#"tidegate_rule_decisions_total{rule}code="over_limit",source="memory"}} 1"#),
        r#"tidegate_calls_total{status="ok"} 6"#.to_owned(),
        r#"tidegate_calls_total{status="invalid_argument"} 1"#.to_owned(),
        "tidegate_decision_seconds_count 7".to_owned(),
        r#"tidegate_decision_seconds_bucket{le="+Inf"} 7"#.to_owned(),
    ] {
        assert!(body.contains(&format!("{line}\n")), "{line} in\n{body}");
    }
    for le in ["0.006", "0.02"] {
        assert!(
            body.contains(&format!(r#"tidegate_decision_seconds_bucket{{le="{le}"}}"#)),
            "{le}"
        );
    }
    let fingerprint = serving.logged("ready").expect("a line")["fingerprint"].clone();
    let policy = format!("tidegate_policy_info{{fingerprint={fingerprint}}} 1\n");
    assert!(body.contains(&policy), "{policy} in\n{body}");
}

#[test]
fn use_prometheus_opens_an_additional_port() {
    let flags = ["--use-prometheus", "--prometheus-addr", "127.0.0.1:0", "--prometheus-path", "/m"];
    let serving = Tidegate::policy(FIVE_A_DAY, &flags);
    let reply = get(serving.port("prometheus"), "/m");
    assert!(reply.status == 200 && reply.body.contains("tidegate_"), "{}", reply.body);
}

#[test]
fn the_debug_port_lists_explains_and_changes_nothing() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    let debug = serving.port("debug");
    assert!(debug.ip().is_loopback(), "unless DEBUG_HOST says otherwise");
    let page = |path: &str| get(debug, path).body;
    for path in ["/rlconfig", "/config", "/policy", "/explain", "/log-level"] {
        assert!(page("/").contains(path), "{path}");
    }
    assert!(page("/rlconfig").contains("edge.client: unit=YEAR requests_per_unit=5"));
    assert!(page("/policy").contains("edge.client") && page("/config").contains("grpc-port"));
    let explained = page("/explain?domain=edge&descriptor=client%3Dann");
    assert!(explained.contains("client=ann: default"), "{explained}");
    assert_eq!(get(debug, "/explain?domain=edge").status, 400);
    assert_eq!(post(debug, "/rlconfig", "").status, 405);
    assert!(serving.ask("ann").contains("4 left"), "explaining has charged nothing");
}

#[test]
fn limit_headers_are_sent_as_configured() {
    let serving = Tidegate::policy(FIVE_A_DAY, &["--headers", "both", "--retry-after", "off"]);
    let told = serving.ask("ann").to_lowercase();
    for header in ["  ratelimit-limit: 5", "  x-ratelimit-remaining: 4", "  ratelimit-reset: "] {
        assert!(told.contains(header), "{header}: {told}");
    }
}

#[test]
fn a_request_head_that_is_too_long_is_rejected() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    let long = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(64 * 1024));
    assert_eq!(send(serving.port("http"), &long).status, 431);
}

#[test]
fn idle_connections_on_one_port_leave_files_for_the_calls() {
    let files = directory(&[("policy.yaml", FIVE_A_DAY)]);
    let path = files.path().join("policy.yaml");
    let mut few_files = Command::new("sh");
    few_files.args(["-c", "ulimit -S -n 64 && exec \"$0\" serve --policy \"$1\""]);
    few_files.arg(env!("CARGO_BIN_EXE_tidegate")).arg(path).env_clear();
    let serving = Tidegate::start(&mut few_files, files);
    let idle = || TcpStream::connect(serving.port("http")).expect("it listens");
    let _idle: Vec<TcpStream> = (0..100).map(|_| idle()).collect();
    assert!(serving.ask("ann").contains("4 left"));
}

#[test]
fn a_connection_that_is_not_http_is_closed_and_affects_no_other() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    let mut stream = TcpStream::connect(serving.port("http")).expect("it listens");
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").expect("writable");
    let mut answer = Vec::new();
    // Closed with a reset or with 400: both are an end.
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(get(serving.port("http"), "/healthz").status, 200);
}

#[test]
fn metrics_can_have_the_names_of_envoyproxy_ratelimit() {
    let plain = Tidegate::policy(FIVE_A_DAY, &[]);
    assert!(!get(plain.port("http"), "/metrics").body.contains("\nratelimit_"));
    let serving = Tidegate::policy(FIVE_A_DAY, &["--ratelimit-metric-names"]);
    for _ in 0..7 {
        serving.ask("ann");
    }
    let body = get(serving.port("http"), "/metrics").body;
    for line in [
        r#"ratelimit_service_rate_limit_total_hits{domain="edge",key1="client"} 7"#,
        r#"ratelimit_service_rate_limit_within_limit{domain="edge",key1="client"} 5"#,
        r#"ratelimit_service_rate_limit_over_limit{domain="edge",key1="client"} 2"#,
        r#"ratelimit_service_rate_limit_near_limit{domain="edge",key1="client"} 1"#,
        r#"ratelimit_service_rate_limit_shadow_mode{domain="edge",key1="client"} 0"#,
        r#"ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 7"#,
        r#"ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"} 7"#,
        r#"ratelimit_service_should_rate_limit_error{err_type="redis_error"} 0"#,
        "ratelimit_service_config_load_success 1",
        r#"tidegate_rule_hits_total{domain="edge",rule="edge.client"} 7"#,
    ] {
        assert!(body.contains(&format!("{line}\n")), "{line} in\n{body}");
    }
}

#[test]
fn refusals_are_logged_once_a_second_with_a_count_and_without_request_data() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    let ask = ASK.replace("ann", "somebody-private");
    let refused = until("a line about rejections", || {
        for _ in 0..20 {
            post(serving.port("http"), "/json", &ask);
        }
        serving.logged("a call was rejected")
    });
    assert_eq!((&refused["limit"], &refused["source"]), (&"daily".into(), &"memory".into()));
    assert_eq!((&refused["domain"], &refused["rule"]), (&"edge".into(), &"edge.client".into()));
    assert!(refused["rejections"].as_u64().unwrap() > 0 && refused["retry_after_ms"].is_u64());
    assert_eq!(refused["rule_rejections"], refused["rejections"], "there is one rule");
    assert!(serving.log().lines().count() < 20, "{}", serving.log());
    assert!(!serving.log().contains("somebody-private"));
}

#[test]
fn slow_readers_of_metrics_share_renderings() {
    const RULES: u32 = 20_000;
    const READERS: usize = 40;
    let rule = |n| format!("  - {{key: k{n}, rate_limit: {{unit: hour, requests_per_unit: 5}}}}\n");
    let policy: String = (0..RULES).map(rule).collect();
    let serving = Tidegate::policy(&format!("domain: edge\ndescriptors:\n{policy}"), &[]);
    let http = serving.port("http");
    let page = get(http, "/metrics").body.len();
    let before = serving.proc_status("VmRSS") << 10;
    let reader = |n: usize| {
        // A reader with another start of a rendering than the one before it.
        std::thread::sleep(std::time::Duration::from_millis(if n.is_multiple_of(10) {
            1_100
        } else {
            0
        }));
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(4 << 10).expect("a small buffer");
        socket.connect(&http.into()).expect("it listens");
        let mut stream = TcpStream::from(socket);
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("it reads");
        let mut first = [0; 15];
        stream.read_exact(&mut first).expect("it answers");
        assert_eq!(&first, b"HTTP/1.1 200 OK");
        stream
    };
    let readers: Vec<TcpStream> = (0..READERS).map(reader).collect();
    let grown = (serving.proc_status("VmRSS") << 10).saturating_sub(before);
    println!("{READERS} readers of a page of {page} bytes take {grown} bytes");
    assert!(page > 8 << 20, "the page is larger than the buffers of a socket: {page}");
    assert!(grown < 6 * page, "{grown} bytes for {READERS} readers of {page} bytes");
    assert_eq!(get(http, "/healthz").status, 200);
    drop(readers);
}

#[test]
fn calls_admitted_by_the_global_shadow_mode_are_counted() {
    let serving = Tidegate::policy(FIVE_A_DAY, &["--shadow-mode", "true"]);
    for _ in 0..7 {
        assert_eq!(post(serving.port("http"), "/json", ASK).status, 200);
    }
    let metrics = get(serving.port("http"), "/metrics").body;
    assert!(metrics.contains("tidegate_global_shadow_mode_total 2\n"), "{metrics}");
}
