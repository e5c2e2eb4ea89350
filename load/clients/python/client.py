"""Asks a rate limiter before each request, as a service would that has no Envoy in front.

A rejected request waits as long as Retry-After says (seconds or a date), else ever longer with jitter,
and tries again, a few times at most. A limiter that is away costs a moment and then the request passes:
choose what you would rather lose.

    pip install --require-hashes -r requirements.txt
    python client.py localhost:8081 edge user=ann
"""

import argparse
import datetime
import email.utils
import pathlib
import random
import sys
import time

import grpc

# The .proto files of the service; in a project of its own, compile them once instead.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "proto"))
messages, services = grpc.protos_and_services("envoy/service/ratelimit/v3/rls.proto")

# A decision takes a millisecond or two; after this long the limiter counts as away.
ANSWER_SECONDS_MAX = 0.25
TRIES_MAX = 5
# The first back-off is up to this long, the next up to twice that, and so on up to the cap.
BACKOFF_SECONDS_FIRST = 0.1
BACKOFF_SECONDS_MAX = 2.0
# Who is told to wait longer than this gives up at once: its own caller will not wait either.
WAIT_SECONDS_MAX = 30.0
# No answer; any other error is a request that is wrong and stays wrong.
AWAY = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}


def passes(service, question):
    """Whether the request may go on; waits and asks again while it is told to."""
    for attempt in range(1, TRIES_MAX + 1):
        try:
            answer = service.ShouldRateLimit(question, timeout=ANSWER_SECONDS_MAX)
        except grpc.RpcError as error:
            if error.code() not in AWAY:
                raise
            print(f"try {attempt}: away ({error.code().name}), let through")
            return True
        if answer.overall_code != messages.RateLimitResponse.OVER_LIMIT:
            print(f"try {attempt}: admitted")
            return True
        told = retry_after(answer)
        wait = backoff(attempt) if told is None else told
        if attempt == TRIES_MAX or wait > WAIT_SECONDS_MAX:
            break
        print(f"try {attempt}: refused, waiting ({'backoff' if told is None else 'retry-after'})")
        time.sleep(wait)
    print(f"try {attempt}: refused, giving up")
    return False


def retry_after(answer):
    """Seconds that the header tells to wait, as a number or as a date; None without one."""
    for header in answer.response_headers_to_add:
        if header.key.lower() != "retry-after":
            continue
        if header.value.isdecimal():
            return float(header.value)
        try:
            date = email.utils.parsedate_to_datetime(header.value)
        except ValueError:
            return None
        return max(0.0, (date - datetime.datetime.now(datetime.timezone.utc)).total_seconds())
    return None


def backoff(attempt):
    """Anything up to the bound: callers that were refused together must not return together."""
    return random.uniform(0, min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_FIRST * 2 ** (attempt - 1)))


def main():
    parser = argparse.ArgumentParser(description="Ask a rate limiter, and wait as it says.")
    parser.add_argument("--requests", type=int, default=1, help="requests, one after the other")
    parser.add_argument("target", metavar="HOST:PORT")
    parser.add_argument("domain")
    parser.add_argument("entries", metavar="KEY=VALUE[,KEY=VALUE]")
    given = parser.parse_args()
    question = messages.RateLimitRequest(domain=given.domain)
    descriptor = question.descriptors.add()
    for pair in given.entries.split(","):
        key, _, value = pair.partition("=")
        descriptor.entries.add(key=key, value=value)
    with grpc.insecure_channel(given.target) as channel:
        service = services.RateLimitServiceStub(channel)
        for _ in range(given.requests):
            if not passes(service, question):
                sys.exit(1)


if __name__ == "__main__":
    main()
