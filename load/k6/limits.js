// Tests your own limit: how much is admitted when clients send more than it allows.
//
//   k6 run load/k6/limits.js                                  all scenarios, in sequence
//   k6 run -e TARGET=host:8081 -e DOMAIN=edge -e KEY=remote_address -e LIMIT=50 load/k6/limits.js
//
// LIMIT is the limit of one value of KEY, in requests per second. Each scenario uses its own value, so that
// they do not interfere. At the end, look at `admitted` and `refused` by scenario, at the 99th percentile of
// grpc_req_duration, and at the load on your backend.

import exec from 'k6/execution';
import grpc from 'k6/net/grpc';
import { check, sleep } from 'k6';
import { Counter } from 'k6/metrics';

const TARGET = __ENV.TARGET || 'localhost:8081';
const DOMAIN = __ENV.DOMAIN || 'load';
const KEY = __ENV.KEY || 'remote_address';
const LIMIT = Number(__ENV.LIMIT || 5);
// Of each scenario; several windows of the limit.
const SECONDS = Number(__ENV.SECONDS || 20);

const METHOD = 'envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit';

const client = new grpc.Client();
client.load(['../../proto'], 'envoy/service/ratelimit/v3/rls.proto');

const admitted = new Counter('admitted');
const refused = new Counter('refused');

let next = 0;
function then(scenario, seconds) {
  const begins = { startTime: `${next}s`, tags: { scenario_name: scenario.exec } };
  next += seconds + 1;
  return { ...scenario, ...begins };
}

export const options = {
  scenarios: {
    // From nothing to twice the limit: refusals begin where the limit is, not before.
    ramp: then({
      exec: 'ask', executor: 'ramping-arrival-rate', startRate: 0, timeUnit: '1s',
      preAllocatedVUs: 20, stages: [{ target: 2 * LIMIT, duration: `${SECONDS}s` }],
    }, SECONDS),
    // Four seconds' worth at once: no more than the burst passes.
    burst: then({ exec: 'ask', executor: 'shared-iterations', vus: 20, iterations: 4 * LIMIT, maxDuration: '10s' }, 10),
    // One window's worth on each side of a window boundary. A fixed window passes twice the limit here, a sliding
    // window and a bucket do not.
    edge: then({ exec: 'edge', executor: 'per-vu-iterations', vus: 1, iterations: 3, maxDuration: '10s' }, 10),
    // Ten clients that wait for Retry-After: few are rejected twice.
    honours: then({ exec: 'honours', executor: 'constant-vus', vus: 10, duration: `${SECONDS}s` }, SECONDS),
    // Ten clients that do not: the same number passes, and the rest is useless load.
    ignores: then({ exec: 'ignores', executor: 'constant-vus', vus: 10, duration: `${SECONDS}s` }, SECONDS),
  },
  thresholds: {
    checks: ['rate==1'],
    // One line per scenario in the summary.
    'admitted{scenario:ramp}': ['count>0'], 'refused{scenario:ramp}': ['count>=0'],
    'admitted{scenario:burst}': ['count>0'], 'refused{scenario:burst}': ['count>=0'],
    'admitted{scenario:edge}': ['count>0'], 'refused{scenario:edge}': ['count>=0'],
    'admitted{scenario:honours}': ['count>0'], 'refused{scenario:honours}': ['count>=0'],
    'admitted{scenario:ignores}': ['count>0'], 'refused{scenario:ignores}': ['count>=0'],
  },
};

// Sends one request. Returns the seconds to wait, 0 if it was admitted.
function once() {
  if (exec.vu.iterationInScenario === 0) {
    client.connect(TARGET, { plaintext: true });
  }
  const value = `k6-${exec.scenario.name}`;
  const question = { domain: DOMAIN, descriptors: [{ entries: [{ key: KEY, value }] }] };
  const answer = client.invoke(METHOD, question, { timeout: '1s' });
  // Anything but a decision is an error, and Envoy would apply its failure mode.
  check(answer, { decided: (a) => a && a.status === grpc.StatusOK });
  if (!answer.message || answer.message.overallCode !== 'OVER_LIMIT') {
    admitted.add(1);
    return 0;
  }
  refused.add(1);
  const told = (answer.message.responseHeadersToAdd || []).find((h) => h.key.toLowerCase() === 'retry-after');
  return told ? waits(told.value) : 1;
}

// Retry-After is seconds, or a date.
function waits(text) {
  return /^\d+$/.test(text) ? Number(text) : Math.max(0, (Date.parse(text) - Date.now()) / 1000);
}

export function ask() {
  once();
}

export function edge() {
  // Until just before the next full second, where windows start.
  sleep((1000 - (Date.now() % 1000) + 900) / 1000);
  for (let i = 0; i < 2 * LIMIT; i += 1) {
    once();
  }
}

export function honours() {
  // Add a random extra, because the clients were rejected together.
  const wait = once();
  sleep(wait > 0 ? wait + Math.random() / 2 : 0.1);
}

export function ignores() {
  once();
  sleep(0.05);
}
