"""Tidegate as the rate limit service of Envoy Gateway itself: its program in standalone mode, its Envoy, and its own rate
limit fixtures, all from the Go module and the Envoy that `make gateways` installs. For each fixture, Tidegate accepts the
policies, and requests through Envoy are limited as the fixture says.

usage: run.py GATEWAYS VENV [TEST...]"""

import pathlib
import sys
import tempfile
import time
import unittest

import isolation
from standalone import NAMES, RateLimitServer, Standalone

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from processes import PROGRAM, ROOT, until  # noqa: E402

# Of clients within and outside of the networks in the fixtures.
LOCAL, NEIGHBOUR, STRANGER = "192.168.7.1", "192.168.7.2", "10.9.9.9"
USER_ONE, USER_TWO, USER_THREE = ({"x-user-id": name} for name in ("one", "two", "three"))
HITS_MAX = 2**32 - 1
CONNECTED = "connected to the control plane"
REJECTED = "resource from the control plane rejected"
assert REJECTED in (ROOT / "src/control_plane/client.rs").read_text(), "it would never be in the log"
PREFIX = "backendtrafficpolicy-"


class Programs:
    """What the tests run, and where the fixtures are."""
    tidegate, gateway, policies, envoy, module = PROGRAM, *[None] * 4


class UnderEnvoyGateway(unittest.TestCase):
    def _callTestMethod(self, method):
        """Runs a test again if it failed while an hour ended, because the limits are per hour."""
        hour = time.time() // 3600
        try:
            method()
        except AssertionError:
            if time.time() // 3600 == hour:
                raise
            self.doCleanups()
            method()

    def start(self, fixture, rules):
        """Starts everything with a fixture, and waits until Tidegate has this number of rules."""
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        path = Programs.module / "internal/gatewayapi/testdata" / f"{fixture}.in.yaml"
        self.processes = Standalone(pathlib.Path(place.name), Programs, path)
        self.addCleanup(self.processes.stop)
        self.processes.start()
        until(f"{rules} rules of {fixture}", lambda: len(self.processes.rules() or []) == rules)
        self.assertNotIn(REJECTED, self.processes.log("tidegate"))

    def ask(self, place, *request, **options):
        # 500: Envoy has no connection to Tidegate yet.
        return until(f"a decision on {place}", lambda: self._decided(place, request, options))

    def _decided(self, place, request, options):
        answer = self.processes.request(*place.split("/"), *request, **options)
        return answer if answer[0] != 500 else None

    def statuses(self, count, place, *request, **options):
        return [self.ask(place, *request, **options)[0] for _ in range(count)]

    def has_limit(self, limit, place, *request, headers_of_ours=True, **options):
        """Asserts that this many requests are admitted, and no more."""
        status, headers = self.ask(place, *request, **options)
        self.assertNotEqual(status, 429, headers)
        if headers_of_ours:
            self.assertIn(f"{limit};w=3600", headers["x-ratelimit-limit"])
            self.assertEqual(headers["x-ratelimit-remaining"], str(limit - 1))
        self.assertNotIn(429, self.statuses(limit - 1, place, *request, **options))
        self.is_rejected(place, *request, **options)

    def is_rejected(self, place, *request, **options):
        self.assertEqual(self.ask(place, *request, **options)[0], 429)

    def is_unlimited(self, place, *request, **options):
        status, headers = self.ask(place, *request, **options)
        self.assertNotEqual(status, 429, headers)
        self.assertNotIn("x-ratelimit-limit", headers)

    def test_rules_of_gateway_and_route_merged(self):
        self.start(f"{PREFIX}strategic-merge-global-ratelimit", 2)
        self.has_limit(5, "gateway-1/http", USER_ONE)
        self.has_limit(5, "gateway-1/http", USER_TWO)
        # Gateways share the counter of a shared rule.
        self.is_rejected("gateway-2/http", USER_ONE)
        self.is_unlimited("gateway-2/http", USER_TWO)

    def test_shared_rules_of_a_gateway(self):
        self.start(f"{PREFIX}strategic-merge-only-gw-rl", 2)
        self.has_limit(5, "gateway-1/http", source=LOCAL)
        self.has_limit(5, "gateway-1/http", source=STRANGER)
        # Of its two limits, that of its address is used up first.
        self.is_rejected("gateway-1/http", USER_ONE, source=LOCAL)
        self.has_limit(5, "gateway-1/http", USER_ONE, source=NEIGHBOUR)
        self.is_unlimited("gateway-2/http", USER_ONE)

    def test_shared_rules_of_a_route_of_two_gateways(self):
        self.start(f"{PREFIX}strategic-merge-only-httproute-rl", 2)
        self.has_limit(5, "gateway-1/http", source=LOCAL)
        self.is_rejected("gateway-2/http", source=LOCAL)
        self.has_limit(5, "gateway-2/http", USER_ONE, source=NEIGHBOUR)
        self.is_rejected("gateway-1/http", USER_ONE, source=STRANGER)

    def test_distinct_addresses_of_a_network_with_a_local_limit_as_well(self):
        self.start(f"{PREFIX}with-ratelimit-both-type", 1)
        for source in (LOCAL, NEIGHBOUR):
            # Envoy's local limit writes the same headers over ours.
            self.has_limit(20, "gateway-1/http", source=source, headers_of_ours=False)
        self.assertNotIn(429, self.statuses(22, "gateway-1/http", source=STRANGER))

    def test_headers_for_each_rule(self):
        self.start(f"{PREFIX}with-ratelimit-per-rule-headers", 3)
        place = "gateway-1/http"
        self.has_limit(20, place, USER_TWO)
        self.has_limit(30, place, USER_THREE)
        self.assertNotIn("x-ratelimit-limit", self.ask(place, USER_ONE)[1])
        self.assertEqual(self.statuses(10, place, USER_ONE), [200] * 9 + [429])
        self.is_unlimited(place, {"x-user-id": "four"})

    def test_shadow_mode_and_the_largest_limit(self):
        self.start(f"{PREFIX}with-ratelimit", 6)
        self.has_limit(20, "gateway-2/http-app1", source=LOCAL, host="app1.gateway.envoyproxy.io")
        self.is_unlimited("gateway-2/http-app1", source=STRANGER, host="app1.gateway.envoyproxy.io")
        tenant = {**USER_ONE, "x-org-id": "acme"}
        headers = self.ask("gateway-1/http", tenant, "/user/1")[1]
        self.assertEqual(headers["x-ratelimit-limit"], "4294967295, 4294967295;w=3600")
        self.assertEqual(headers["x-ratelimit-remaining"], "4294967294")
        self.is_unlimited("gateway-1/http", tenant, "/other")
        self.is_unlimited("gateway-1/http", {**tenant, "x-org-id": "admin"}, "/user/1")
        self.assertNotIn(429, self.statuses(32, "gateway-3/http", path="/test", method="POST"))

    def test_shared_rules_of_distinct_headers_and_networks(self):
        self.start(f"{PREFIX}with-shared-ratelimit", 4)
        for tenant in ("acme", "other"):
            self.has_limit(10, "gateway-1/http", {**USER_ONE, "x-org-id": tenant})
        self.is_unlimited("gateway-1/http", {**USER_ONE, "x-org-id": "admin"})
        self.has_limit(20, "gateway-2/http", source=LOCAL)
        self.has_limit(20, "gateway-2/http", source=STRANGER)
        self.has_limit(10, "gateway-3/http", {**USER_ONE, "x-org-id": "acme"})

    def test_a_service_that_a_control_plane_without_kubernetes_cannot_see(self):
        self.start("global-ratelimit-service-discovery", 1)
        self.has_limit(10, "gateway-1/http", USER_ONE)
        self.is_unlimited("gateway-1/http", USER_TWO)

    def test_rules_that_envoy_gateway_rejects_are_none_of_ours(self):
        for fixture, gateway in (("invalid-distinct-invert", "gateway"), ("invalid-regex", "gateway-1")):
            self.start(f"{PREFIX}with-ratelimit-{fixture}", 0)
            until("the control plane", lambda: CONNECTED in self.processes.log("tidegate"))
            # Envoy Gateway lets no request pass whose policy it rejects.
            self.assertEqual(self.processes.request(gateway, "http")[0], 500)
            self.assertEqual(self.processes.rules(), [])
            self.doCleanups()

    def test_each_fixture_with_a_global_limit_has_a_test(self):
        directory = Programs.module / "internal/gatewayapi/testdata"
        fixtures = [path for path in directory.glob("*.in.yaml") if "\n        global:\n" in path.read_text()
                    or "\n      global:\n" in path.read_text()]
        self.assertGreater(len(fixtures), 5)
        source = pathlib.Path(__file__).read_text()
        for path in fixtures:
            name = path.name.removesuffix(".in.yaml").removeprefix(PREFIX)
            self.assertIn(name.removeprefix("with-ratelimit-invalid-"), source)


def leaves(descriptors, path=()):
    """Each descriptor with a limit, and the keys and values on the path to it."""
    for one in descriptors or []:
        own = (*path, (one["key"], one["value"]))
        if one["rate_limit"]:
            yield own, one
        yield from leaves(one["descriptors"], own)


def rule_name(domain, path):
    """The name of a rule, as Tidegate prints it."""
    return ".".join([domain, *(f"{key}_{value}" if value else key for key, value in path)])


class UnderItsRateLimitServer(unittest.TestCase):
    def test_each_fixture_of_its_translator_is_decided_as_its_limits_say(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        processes = RateLimitServer(pathlib.Path(place.name), Programs)
        self.addCleanup(processes.stop)
        processes.start()
        fixtures = [path for directory in ("ratelimit-config", "xds-ir")
                    for path in sorted((Programs.module / "internal/xds/translator/testdata/in" / directory).glob("*.yaml"))
                    if "global:" in path.read_text()]
        self.assertGreater(len(fixtures), 30)
        limits = 0
        for fixture in fixtures:
            with self.subTest(fixture.name):
                limits += self.check(processes, fixture)
        print(f"{len(fixtures)} fixtures, {limits} limits", file=sys.stderr)
        self.assertNotIn(REJECTED, processes.log("tidegate"))

    def check(self, processes, fixture):
        """Serves a fixture, compares every limit in it, and returns their number."""
        policies = processes.serve(fixture)
        found = [(policy["domain"], path, one) for policy in policies for path, one in leaves(policy["descriptors"])]
        self.assertTrue(found)
        expected = sorted((rule_name(domain, path), one["rate_limit"]["requests_per_unit"]) for domain, path, one in found)
        until(f"the rules {expected}", lambda: expected == sorted(
            (rule["rule"], rule["limits"][0]["requests_per_unit"]) for rule in processes.rules() or []))
        processes.flush()
        for domain, path, one in found:
            limit, path = one["rate_limit"]["requests_per_unit"], [(key, value or "any") for key, value in path]
            # Neither depends on when a window ends: what is rejected is not charged.
            if limit < HITS_MAX:
                self.assertEqual(processes.ask(domain, path, limit + 1), one["shadow_mode"], (path, one))
            self.assertTrue(processes.ask(domain, path, limit), (path, one))
        return len(found)


if __name__ == "__main__":
    isolation.enter(NAMES, [f"{address}/32" for address in (LOCAL, NEIGHBOUR, STRANGER)])
    built, venv = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
    Programs.module, Programs.gateway, Programs.policies = (built / name for name in ("module", "envoy-gateway", "policies"))
    Programs.envoy, = venv.glob("lib/python3*/site-packages/envoy/_bin/envoy")
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[3:]])
