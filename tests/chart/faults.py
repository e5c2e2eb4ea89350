"""The fault of each alert, caused for real while it is recorded. Not here: how it is recorded (recorder),
what must be seen in it (test_recordings)."""

import json
import pathlib
import tempfile
import time
from dataclasses import dataclass, field

import chart
from recorder import CALLS, LIMIT, POLICY, RULE, Recording, Replica, client, counting_in, embedded
from servers import Cluster, ControlPlane, Redis, certificate

# Minutes before the fault: longer than every window of the rules, and than most of their patience.
CALM = 30
# And where a rule looks at an hour ago.
CALM_HOUR = 80
# As many as a call may have.
DESCRIPTORS = 64

FAULTS = []


@dataclass
class Fault:
    """An alert, in how many minutes after its fault it must fire, and what records it."""

    alert: str
    within: int
    record: object


@dataclass
class Seen:
    """A recording, the labels that its alert must have beside those of the installation, and its summary
    in the fault's last minute, where that is the same in every recording."""

    recording: Recording
    labels: dict = field(default_factory=dict)
    summary: str = None


def fault_of(alert, within):
    """Registers what records the fault of an alert."""

    def register(record):
        FAULTS.append(Fault(alert, within, record))
        return record

    return register


def with_redis(stack, more=None, pods="a"):
    """A Redis, and an installation that counts in it."""
    server = stack.enter_context(Redis())
    recording = Recording(counting_in({"address": server.node}, more), pods)
    return server, stack.enter_context(recording)


def told(recording, name, least):
    """Waits until the figure that Redis told is at least that."""
    replica = recording.replicas[0]
    recording.until(f"{name} is {least}", lambda: (replica.figure(name) or 0) >= least)


def comes_back(server, recording):
    """Redis answers again, and every call."""
    server.start()
    replica = recording.replicas[0]
    recording.until_connected(replica)
    # The breaker closes without calls; calls show that Redis decides them.
    recording.until("Redis decides again", lambda: replica.figure("tidegate_degraded") == 0,
                    lambda: replica.ask(recording.newcomer()))


def flood(replica, name, calls):
    """Calls of nothing but new clients."""
    for call in range(calls):
        replica.ask(*(client(f"{name}-{call}-{number}") for number in range(DESCRIPTORS)))


@fault_of("TidegateNoReplica", within=3)
def killed(stack):
    """Both replicas are killed, one after the other."""
    recording = stack.enter_context(Recording(embedded({"embedded": {"perReplicaLimits": True}}), "ab"))
    recording.healthy(CALM)
    a, b = recording.replicas
    a.process.kill()
    a.process.wait()
    recording.healthy(5, lambda: b.ask(recording.newcomer()))
    b.process.kill()
    b.process.wait()
    recording.breaks()
    recording.pass_minutes(5, lambda: None)
    return Seen(recording, summary="No replica of Tidegate answers")


@fault_of("TidegateDegraded", within=4)
def away(stack):
    """Redis is killed; another takes its place half an hour later."""
    server, recording = with_redis(stack)
    replica = recording.replicas[0]
    recording.healthy(CALM_HOUR)
    server.kill()
    recording.breaks()
    recording.pass_minutes(CALM)
    comes_back(server, recording)
    recording.mends()
    recording.pass_minutes(15)
    recording.healthy(CALM_HOUR)
    return Seen(recording, summary="100% of the decisions are made without Redis")


@fault_of("TidegateReloadRejected", within=1)
def broken_policy(stack):
    """A policy with a fault arrives, and is rolled back an hour later."""
    recording = stack.enter_context(Recording(embedded()))
    replica = recording.replicas[0]
    recording.healthy(CALM)
    replica.put("edge.yaml", POLICY.replace("unit:", "units:"))
    recording.breaks()
    recording.until("the policy is refused", lambda: replica.figure("tidegate_config_load_error_total") == 1)
    # However long it takes until somebody comes, the alert waits for them.
    recording.pass_minutes(60)
    replica.put("edge.yaml", POLICY)
    recording.until("it is rolled back", lambda: replica.figure("tidegate_config_last_reload_successful") == 1)
    recording.mends()
    # A span's first look reaches back to the minute before it.
    recording.pass_minutes(1)
    recording.healthy(CALM)
    return Seen(recording, {"pod": "a"}, "a rejected a new policy")


def steady(recording, refused):
    """A minute's load of so many hits refused, and of thirty that pass."""
    replica = recording.replicas[0]
    for _ in range(LIMIT + refused):
        replica.ask(client(f"eager-{recording.minutes}"))
    for number in range(30):
        replica.ask(client(f"calm-{recording.minutes}-{number}"))


@fault_of("TidegateRejectionsJumped", within=10)
def clients_flood(stack):
    """One hit in fifty is refused, then half of them: a client that does not stop."""
    recording = stack.enter_context(Recording(embedded()))
    recording.healthy(CALM_HOUR, lambda: steady(recording, refused=1))
    recording.breaks()
    recording.pass_minutes(20, lambda: steady(recording, refused=50))
    return Seen(recording, RULE, "50% of the hits of edge.client are rejected")


@fault_of("TidegateRuleNearLimit", within=40)
def clients_near(stack):
    """Every client comes to use all that it has."""
    recording = stack.enter_context(Recording(embedded()))
    replica = recording.replicas[0]

    def use(hits):
        for _ in range(hits):
            replica.ask(client(f"steady-{recording.minutes}"))

    recording.healthy(CALM, lambda: use(LIMIT // 2))
    recording.breaks()
    recording.pass_minutes(45, lambda: use(LIMIT))
    return Seen(recording, RULE, "20% of the hits of edge.client are near its limit")


@fault_of("TidegateInvalidCalls", within=2)
def too_many_descriptors(stack):
    """A route sends more descriptors than a call may have."""
    recording = stack.enter_context(Recording(embedded({"settings": {"descriptors": "2"}})))
    replica = recording.replicas[0]

    def too_many():
        body = json.dumps({"domain": "edge", "descriptors": [client("a"), client("b"), client("c")]})
        replica.caller.request("POST", "/json", body, {"Content-Type": "application/json"})
        reply = replica.caller.getresponse()
        said = reply.read()
        assert reply.status == 400, said

    recording.healthy(CALM)
    recording.breaks()
    recording.pass_minutes(15, too_many)
    return Seen(recording, {"reason": "descriptors"}, "Calls are invalid: descriptors")


@fault_of("TidegateCallsWithoutLimit", within=8)
def wrong_domain(stack):
    """A route asks for a domain that the policy does not have. Before, and beside it, calls have a value
    that the policy does not list: that is normal."""
    listed = POLICY + "  - {key: path, value: /login, rate_limit: {unit: year, requests_per_unit: 5}}\n"
    recording = stack.enter_context(Recording(embedded({"policy": {"files": {"edge.yaml": listed}}})))
    replica = recording.replicas[0]

    def unlisted():
        replica.ask({"entries": [{"key": "path", "value": "/home"}]})

    def misspelled():
        unlisted()
        body = json.dumps({"domain": "egde", "descriptors": [client("a")]})
        replica.caller.request("POST", "/json", body, {"Content-Type": "application/json"})
        reply = replica.caller.getresponse()
        said = reply.read()
        assert reply.status == 200, said

    recording.healthy(CALM, unlisted)
    recording.breaks()
    recording.pass_minutes(15, misspelled)
    labels = {"domain": "egde", "reason": "unknown_domain"}
    return Seen(recording, labels, "No limit applies to calls in the domain egde: unknown_domain")


@fault_of("TidegateBillsLost", within=2)
def bills_rejected(stack):
    """Clients ask with 0 hits and bill more than the limit, which counts bills only if they fit."""
    recording = stack.enter_context(Recording(embedded()))
    replica = recording.replicas[0]

    def bill():
        replica.ask({**client("billed"), "hitsAddend": "0"})
        replica.ask({**client("billed"), "hitsAddend": str(LIMIT + 1)})

    recording.healthy(CALM)
    recording.breaks()
    recording.pass_minutes(15, bill)
    return Seen(recording, {"cause": "rejected"}, "Bills are lost: rejected")


@fault_of("TidegateStoreFull", within=1)
def invented_keys(stack):
    """A flood of new keys fills the memory."""
    recording = stack.enter_context(Recording(embedded({"embedded": {"maxKeys": 4096}})))
    replica = recording.replicas[0]
    recording.healthy(CALM)
    recording.breaks()
    recording.pass_minutes(3, lambda: flood(replica, f"invented-{recording.minutes}", 4096 // DESCRIPTORS + 20))
    return Seen(recording, {"pod": "a"}, "The memory store of a is full")


@fault_of("TidegateBreakerOpen", within=2)
def frozen(stack):
    """Redis is stopped in its tracks: connections stay open, nobody answers."""
    server, recording = with_redis(stack)
    replica = recording.replicas[0]
    recording.healthy(CALM)
    server.freeze()
    recording.breaks()
    for waits in [replica.send(recording.newcomer()) for _ in range(CALLS)]:
        waits()
    recording.until("the breaker opens", lambda: replica.figure("tidegate_redis_breakers_open") == 1)
    recording.pass_minutes(3)
    return Seen(recording, {"node": server.node}, f"The circuit breaker of Redis node {server.node} is open")


@fault_of("TidegateRedisSlow", within=10)
def stalls(stack):
    """Redis stands still for a quarter of a second each minute, while a call waits for it."""
    server, recording = with_redis(stack)
    replica = recording.replicas[0]
    # So many calls that a few of them may wait for the CPU.
    recording.healthy(CALM, lambda: [recording.quiet() for _ in range(10)])

    def stall():
        recording.quiet()
        before = replica.figure("tidegate_redis_items_total")
        server.freeze()
        waits = replica.send(recording.newcomer())
        recording.until("the call is sent", lambda: replica.figure("tidegate_redis_items_total") > before)
        # This is the fault, not a wait for something.
        time.sleep(0.25)
        server.thaw()
        waits()

    recording.breaks()
    recording.pass_minutes(12, stall)
    return Seen(recording, {"node": server.node})


@fault_of("TidegateDecisionsSlow", within=10)
def stalls_too(stack):
    """The same, as the callers of the whole service see it."""
    return Seen(stalls(stack).recording)


@fault_of("TidegateControlPlaneLost", within=6)
def control_plane_killed(stack):
    """The control plane is killed, and comes back."""
    plane = stack.enter_context(ControlPlane())
    recording = stack.enter_context(Recording(embedded(), more=plane.environment))
    replica = recording.replicas[0]
    recording.until("the policy has arrived", lambda: replica.figure("tidegate_xds_domains") == 1)
    recording.healthy(CALM)
    plane.kill()
    recording.breaks()
    recording.until("the loss is seen", lambda: replica.figure("tidegate_xds_connected") == 0)
    recording.pass_minutes(15)
    plane.start()
    recording.mends()
    recording.until("it is connected again", lambda: replica.figure("tidegate_xds_connected") == 1)
    # A span's first look reaches back to the minute before it.
    recording.pass_minutes(1)
    recording.healthy(CALM)
    return Seen(recording, {"pod": "a"}, "a is not connected to the control plane")


@fault_of("TidegateCertificateExpires", within=1)
def certificate_expires(stack):
    """A certificate of three days takes the place of one of three months."""
    directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    certificate(directory, days=90)
    files = [{"name": "TIDEGATE_GRPC_SERVER_TLS_CERT", "value": str(directory / "tls.crt")},
             {"name": "TIDEGATE_GRPC_SERVER_TLS_KEY", "value": str(directory / "tls.key")}]
    values = embedded({"tls": {"enabled": True, "existingSecret": "tls"}, "extraEnv": files})
    recording = stack.enter_context(Recording(values))
    replica = recording.replicas[0]
    recording.healthy(CALM)
    end = replica.figure("tidegate_certificate_expiry_timestamp_seconds")
    certificate(directory, days=3)
    recording.breaks()
    recording.until("it is in force", lambda: replica.figure("tidegate_certificate_expiry_timestamp_seconds") < end)
    recording.pass_minutes(15)
    return Seen(recording)


@fault_of("TidegateShadowMode", within=12)
def rolled_with_shadow_mode(stack):
    """A rollout starts a replica with the mode on, and goes no further."""
    values = embedded({"prometheusRule": {"shadowModeFor": "10m"}})
    recording = stack.enter_context(Recording(values))
    recording.healthy(CALM)
    recording.breaks()
    newer = chart.manifests(chart.merged(values, {"settings": {"shadow-mode": True}}))
    recording.replicas.append(stack.enter_context(Replica("b", newer)))
    recording.pass_minutes(15)
    return Seen(recording, summary="Global shadow mode is on, so no call is rejected")


def changed_by_hand(stack, values, metric, *command):
    """A replica on which an operator's command has made the metric 1."""
    token = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "token"
    token.write_text("t")
    more = {"TIDEGATE_DEBUG_TOKEN_FILE": str(token)}
    recording = stack.enter_context(Recording(embedded(values), more=more))
    replica = recording.replicas[0]
    recording.healthy(CALM)
    ran = chart.program(*command, "--debug", f"127.0.0.1:{replica.ports['DEBUG_PORT']}", environment=more)
    assert ran.returncode == 0, ran.stderr
    recording.breaks()
    recording.until("it is told", lambda: replica.figure(metric) == 1)
    return recording


@fault_of("TidegateOverridesInForce", within=12)
def overridden(stack):
    """Somebody sets an override, and forgets it."""
    recording = changed_by_hand(stack, {"prometheusRule": {"overridesFor": "10m"}}, "tidegate_overrides",
                                "switch", "edge.client", "shadow", "--for", "24h")
    recording.pass_minutes(15)
    return Seen(recording, summary="1 overrides are in force")


@fault_of("TidegateOverridesPermanent", within=62)
def overridden_for_good(stack):
    """Somebody sets an override without an end."""
    recording = changed_by_hand(stack, {}, "tidegate_overrides_permanent", "override", "set", "edge", "client=ann",
                                "--limit", "5", "--permanent", "--reason", "T-42", "--by", "ann")
    recording.pass_minutes(65)
    return Seen(recording, summary="1 overrides never end")


@fault_of("TidegateRedisCommandsOutgrow", within=20)
def scattered(stack):
    """On a cluster a new policy no longer keeps the counters of a tenant together. Before, somebody floods
    for a while and is mostly refused without asking: that this ends, an hour ago, is no news."""
    together = (
        "domain: edge\n"
        "hash_tag: [tenant]\n"
        "descriptors:\n"
        "  - key: tenant\n"
        "    rate_limit: {unit: year, requests_per_unit: 1000000}\n"
        "    descriptors:\n"
        "      - key: client\n"
        f"        rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}\n"
    )
    cluster = stack.enter_context(Cluster())
    values = counting_in({"address": "", "cluster": {"addresses": cluster.addresses}},
                         {"mode": "cluster", "policy": {"files": {"edge.yaml": together}}})
    recording = stack.enter_context(Recording(values))
    replica = recording.replicas[0]
    tenant = {"key": "tenant", "value": "t"}

    def ask(name):
        replica.ask({"entries": [tenant]}, {"entries": [tenant, *client(name)["entries"]]})

    def tenants():
        for number in range(CALLS):
            ask(f"{recording.minutes}-{number}")

    def greedy():
        tenants()
        for _ in range(4 * LIMIT):
            ask("greedy")

    recording.healthy(CALM, tenants)
    recording.pass_minutes(20, greedy)
    # Until the alert of refusals is over.
    recording.pass_minutes(12, tenants)
    recording.healthy(CALM_HOUR, tenants)
    replica.put("edge.yaml", together.replace("hash_tag: [tenant]\n", ""))
    recording.breaks()
    recording.until("the policy is loaded", lambda: replica.figure("tidegate_config_load_success_total") == 2)
    recording.pass_minutes(22, tenants)
    return Seen(recording)


@fault_of("TidegateRedisCommandsDoubled", within=7)
def somebody_else(stack):
    """Strangers in the same Redis ask it 1,500 times a second, later three times as often. Between, Redis
    is away for a while: that it is asked again is no news."""
    server, recording = with_redis(stack)

    def strangers(times):
        recording.quiet()
        server.ask("--pipe", sent="PING\r\n" * 90_000 * times)
        told(recording, "tidegate_redis_commands_total", server.info("total_commands_processed"))

    recording.healthy(20, lambda: strangers(1))
    server.kill()
    recording.pass_minutes(12)
    comes_back(server, recording)
    # Until the alert of degraded answers is over.
    recording.pass_minutes(7, lambda: strangers(1))
    recording.healthy(15, lambda: strangers(1))
    recording.breaks()
    recording.pass_minutes(8, lambda: strangers(3))
    return Seen(recording)


@fault_of("TidegateRedisMemory", within=6)
def memory_fills(stack):
    """Invented keys fill Redis, which was half full."""
    server, recording = with_redis(stack)
    replica = recording.replicas[0]
    most = 2 * server.info("used_memory")
    server.ask("CONFIG", "SET", "maxmemory", str(most))
    told(recording, "tidegate_redis_memory_max_bytes", most)
    recording.healthy(CALM)
    recording.breaks()
    for number in range(1_000):
        if server.info("used_memory") > 0.8 * most:
            break
        flood(replica, f"invented-{number}", 5)
    told(recording, "tidegate_redis_memory_used_bytes", 0.75 * most)
    recording.pass_minutes(8)
    return Seen(recording, {"node": server.node})


@fault_of("TidegateRedisEvicts", within=6)
def evicts(stack):
    """Somebody lets Redis drop keys."""
    server, recording = with_redis(stack, pods="ab")
    recording.healthy(CALM)
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    recording.breaks()
    labels = {"node": server.node, "policy": "allkeys-lru"}
    for replica in recording.replicas:
        recording.until("it is told", lambda: replica.figure("tidegate_redis_eviction_info", **labels) == 1)
    recording.pass_minutes(8)
    return Seen(recording, labels, f"Redis node {server.node} evicts counters when it is full: allkeys-lru")


@fault_of("TidegatePoliciesDiffer", within=11)
def one_reloads(stack):
    """A new policy reaches one of two replicas."""
    recording = with_redis(stack, pods="ab")[1]
    replica = recording.replicas[1]
    recording.healthy(CALM)
    replica.put("edge.yaml", POLICY.replace(str(LIMIT), str(LIMIT + 1)))
    recording.breaks()
    recording.until("it is loaded", lambda: replica.figure("tidegate_config_load_success_total") == 2)
    recording.pass_minutes(13)
    return Seen(recording, summary="Replicas hold 2 different policies")


@fault_of("TidegateFallbackBeyondBound", within=2)
def too_many_share(stack):
    """Redis is killed while two replicas run, and limits are shared for one."""
    server, recording = with_redis(stack, {"replicaCount": 1}, pods="ab")
    recording.healthy(CALM)
    server.kill()
    recording.breaks()
    recording.pass_minutes(4)
    return Seen(recording, summary="2 replicas decide without Redis, more than share the limits")


@fault_of("TidegateKeysWithoutExpiry", within=16)
def foreign_key(stack):
    """Somebody writes a key without an end among ours."""
    server, recording = with_redis(stack)
    recording.healthy(CALM)
    server.ask("SET", "prod:tg1-theirs", "1")
    recording.breaks()
    told(recording, "tidegate_redis_keys_without_expiry", 1)
    recording.pass_minutes(18)
    return Seen(recording, {"node": server.node}, f"1 keys on Redis node {server.node} never expire")
