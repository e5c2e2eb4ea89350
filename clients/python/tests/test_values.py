"""Mappings, Retry-After, and responses: values computed from values."""

import datetime
import ipaddress
import json
import unittest

from support import VECTORS

from tidegate_client import VALUE_BYTES_MAX, CallError, Decision, Mapping, MappingError, Outcome, address_entry
from tidegate_client import _decision, _messages
from tidegate_client._mapping import decoded_path


def raw(text):
    """In the vectors, each character is one byte."""
    return text.encode("latin-1")


def decided(code, headers):
    response = _messages.RateLimitResponse(overall_code=code, raw_body=b"slow down")
    for key, value in headers:
        response.response_headers_to_add.add(key=key, value=value)
    return _decision.of_response(response, datetime.datetime.now(datetime.timezone.utc))


class Values(unittest.TestCase):
    def test_descriptors_are_those_of_the_shared_vectors(self):
        cases = json.loads((VECTORS / "mapping.json").read_text())["requests"]
        self.assertGreaterEqual(len(cases), 20)
        for case in cases:
            with self.subTest(case["name"]):
                mapping = Mapping.from_json(json.dumps(case["mapping"]))
                headers = [(raw(name).lower(), raw(value)) for name, value in case["headers"]]
                call = mapping.call(case["method"], decoded_path(raw(case["path"])), headers, case["peer"])
                expected = [[(raw(key), raw(value)) for key, value in it] for it in case["descriptors"]]
                self.assertEqual([list(it.entries) for it in call.descriptors], expected)
                self.assertEqual(call.hits, case.get("hits", 1))

    def test_entries_of_addresses_are_those_of_the_shared_vectors(self):
        vectors = json.loads((VECTORS / "caller_address.json").read_text())
        self.assertGreaterEqual(len(vectors["entries"]), 10)
        for case in vectors["entries"]:
            more = {"ipv6_prefix": case["ipv6_prefix"]} if "ipv6_prefix" in case else {}
            for address in (case["address"], ipaddress.ip_address(case["address"])):
                with self.subTest(case["name"]):
                    self.assertEqual(address_entry("ip", address, **more), ("ip", case["value"]))
        for case in vectors["mistakes"]:
            with self.assertRaises(CallError) as raised:
                address_entry("ip", case["address"], case["ipv6_prefix"])
            self.assertEqual(str(raised.exception), case["says"])
        self.assertEqual(address_entry("ip", "fe80::1%eth0", 128), ("ip", "fe80::1"))
        for key, address, prefix, says in [
            (None, "::1", 64, "key: must be str or bytes"), ("ip", None, 64, "address: must be str"),
            ("ip", b"::1", 64, "address: must be str"), ("ip", 7, 64, "address: must be str"),
            ("ip", "", 64, "address: '' is not an IP address"), ("ip", "localhost", 64, "is not an IP address"),
            ("ip", "203.0.113.0/24", 64, "is not an IP address"), ("ip", "::1", "64", "ipv6_prefix: must be 1 to 128"),
            ("ip", "::1", None, "ipv6_prefix: must be 1 to 128"), ("ip", "::1", True, "ipv6_prefix: must be 1 to 128"),
        ]:
            with self.assertRaises(CallError) as raised:
                address_entry(key, address, prefix)
            self.assertIn(says, str(raised.exception))

    def test_the_mapping_of_the_page_is_valid(self):
        page = (VECTORS.parent / "README.md").read_text()
        block = page[page.index("    {\n"):page.index("\n    }\n") + len("\n    }\n")]
        call = Mapping.from_json(block).call("GET", b"/search/x", [(b"x-user", b"ann")], "203.0.113.9")
        self.assertEqual([it.entries for it in call.descriptors],
                         [((b"user", b"ann"),), ((b"route", b"/search"), (b"remote_address", b"203.0.113.9"))])

    def test_mistakes_are_those_of_the_shared_vectors(self):
        cases = json.loads((VECTORS / "mapping.json").read_text())["mistakes"]
        self.assertGreaterEqual(len(cases), 10)
        for case in cases:
            with self.subTest(case["says"]), self.assertRaises(MappingError) as raised:
                Mapping.from_json(json.dumps(case["mapping"]))
            self.assertIn(case["says"], str(raised.exception))

    def test_retry_after_is_read_as_in_the_shared_vectors(self):
        cases = json.loads((VECTORS / "retry_after.json").read_text())
        self.assertGreaterEqual(len(cases), 8)
        for case in cases:
            with self.subTest(case["value"]):
                now = datetime.datetime.fromtimestamp(case["now"], datetime.timezone.utc)
                self.assertEqual(_decision.retry_after(case["value"], now), case["seconds"])

    def test_marks_are_those_of_the_shared_vectors(self):
        cases = json.loads((VECTORS / "marks.json").read_text())
        self.assertGreaterEqual(len(cases), 4)
        for case in cases:
            with self.subTest(case["given"]):
                response = _messages.RateLimitResponse(overall_code=1)
                for key, value in case["given"]:
                    response.request_headers_to_add.add(key=raw(key), value=raw(value))
                decision = _decision.of_response(response, datetime.datetime.now(datetime.timezone.utc))
                self.assertEqual(list(decision.marks), [(raw(key), raw(value)) for key, value in case["marks"]])

    def test_a_long_value_is_cut_and_still_counted(self):
        mapping = Mapping.from_json('{"descriptors": [{"entries": [{"key": "t", "header": "x-t"}]}]}')
        call = mapping.call("GET", b"/", [(b"x-t", b"x" * (VALUE_BYTES_MAX + 1))], None)
        self.assertEqual(len(call.descriptors[0].entries[0][1]), VALUE_BYTES_MAX)

    def test_only_the_overall_code_decides(self):
        for code, outcome in ((0, Outcome.ALLOWED), (1, Outcome.ALLOWED), (2, Outcome.REJECTED), (9, Outcome.ALLOWED)):
            decision: Decision = decided(code, [(b"Retry-After", b"3")])
            self.assertEqual(decision.outcome, outcome)
            self.assertEqual(decision.passes, outcome is Outcome.ALLOWED)
            self.assertEqual(decision.retry_after, 3 if outcome is Outcome.REJECTED else None)
            self.assertEqual(decision.body, b"slow down" if outcome is Outcome.REJECTED else b"")

    def test_headers_that_would_break_the_response_are_left_out(self):
        decision = decided(2, [
            (b":status", b"200"), (b"content-length", b"5"), (b"Transfer-Encoding", b"chunked"), (b"grpc-status", b"0"),
            (b"x-split", b"a\r\nset-cookie: b"), (b"", b"empty"), (b"x-long", b"x" * 1_025),
            (b"content-type", b"application/json"), (b"X-RateLimit-Limit", b"5")])
        self.assertEqual([name for name, _ in decision.headers], [b"content-type", b"x-ratelimit-limit"])

    def test_at_most_as_many_headers_as_the_bound_are_taken(self):
        self.assertEqual(len(decided(1, [(b"x-many", b"1")] * 40).headers), 32)

    def test_messages_live_alongside_other_builds_of_the_same_api(self):
        # The default pool does not know ours, and takes a file of the name that Envoy's packages register.
        from google.protobuf import descriptor_pb2, descriptor_pool

        file = descriptor_pb2.FileDescriptorProto(
            name="envoy/service/ratelimit/v3/rls.proto", package="envoy.service.ratelimit.v3")
        file.message_type.add(name="RateLimitRequest")
        descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
        with self.assertRaises(KeyError):
            descriptor_pool.Default().FindFileByName("tidegate_client.proto")


if __name__ == "__main__":
    unittest.main()
