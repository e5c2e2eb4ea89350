"""Wrong types and values are named where they are given, by the package's own errors."""

import asyncio
import math
import unittest

from support import call

from tidegate_client import (
    Call, CallError, Client, Descriptor, Mapping, MappingError, RateLimitMiddleware, SettingsError)

USER = Descriptor([("user", "ann")])
MAPPING = Mapping.from_json('{"descriptors": [{"entries": [{"key": "user", "header": "x-user"}]}]}')


class Types(unittest.TestCase):
    def raises(self, error, says, make):
        with self.assertRaises(error) as raised:
            make()
        self.assertIsInstance(raised.exception, ValueError)
        self.assertIn(says, str(raised.exception))

    def test_entries(self):
        for entries, says in [
            (None, "entries: must be a list of (key, value), not None"),
            (7, "entries: must be a list of (key, value), not int"),
            ("user", "entries: must be a list of (key, value), not str"),
            (b"user", "entries: must be a list of (key, value), not bytes"),
            ({"user": "ann"}, "entries: must be a list of (key, value), not dict"),
            ([], "entries: must not be empty"),
            (iter([]), "entries: must not be empty"),
            (("user", "ann"), "entries[0]: must be (key, value), not str"),
            (["ab"], "entries[0]: must be (key, value), not str"),
            ([{"user": "ann"}], "entries[0]: must be (key, value), not dict"),
            ([("user",)], "entries[0]: must be (key, value), not tuple of 1"),
            ([("user", "ann", "ben")], "entries[0]: must be (key, value), not tuple of 3"),
            ([("user", "ann"), None], "entries[1]: must be (key, value), not None"),
            ([(None, "ann")], "entries[0]: the key: must be str or bytes, not None"),
            ([("user", None)], "entries[0]: the value: must be str or bytes, not None"),
            ([("user", 7)], "entries[0]: the value: must be str or bytes, not int"),
            ([("user", 7.5)], "entries[0]: the value: must be str or bytes, not float"),
            ([("user", ["ann"])], "entries[0]: the value: must be str or bytes, not list"),
            ([("user", bytearray(b"ann"))], "entries[0]: the value: must be str or bytes, not bytearray"),
            ([("user", "a\ud800")], "entries[0]: the value: must be text that UTF-8 can encode, or bytes"),
        ]:
            with self.subTest(entries):
                self.raises(CallError, says, lambda: Descriptor(entries))

    def test_descriptors(self):
        for descriptors, says in [
            (None, "descriptors: must be a list of Descriptor, not None"),
            (7, "descriptors: must be a list of Descriptor, not int"),
            ("user", "descriptors: must be a list of Descriptor, not str"),
            (b"user", "descriptors: must be a list of Descriptor, not bytes"),
            ({"user": "ann"}, "descriptors: must be a list of Descriptor, not dict"),
            (USER, "descriptors: must be a list of Descriptor, not Descriptor"),
            ([("user", "ann")], "descriptors[0]: must be Descriptor, not tuple: write Descriptor([(key, value)])"),
            ([[("user", "ann")]], "descriptors[0]: must be Descriptor, not list"),
            ([USER, None], "descriptors[1]: must be Descriptor, not None"),
            ([Descriptor], "descriptors[0]: must be Descriptor, not type"),
            ([Call([])], "descriptors[0]: must be Descriptor, not Call"),
        ]:
            with self.subTest(descriptors):
                self.raises(CallError, says, lambda: Call(descriptors))
        self.assertEqual(Call(it for it in [USER]).descriptors, (USER,))

    def test_hits_and_holds(self):
        for hits, says in [
            (-1, "hits: must be 0 to "), (1 << 64, "hits: must be 0 to "), (-(1 << 70), "hits: must be 0 to "),
            (1.0, "hits: must be int, not float"), (math.nan, "hits: must be int, not float"),
            ("1", "hits: must be int, not str"), (b"1", "hits: must be int, not bytes"), ([], "hits: must be int, not list"),
            (True, "hits: must be int, not bool"),
        ]:
            with self.subTest(hits):
                self.raises(CallError, says, lambda: Call([USER], hits))
                self.raises(CallError, says, lambda: Descriptor([("user", "ann")], hits))
        self.raises(CallError, "hits: must be int, not None", lambda: Call([USER], None))
        self.raises(CallError, "hits: must be 0 to 4294967295", lambda: Call([USER], 1 << 32))
        self.assertEqual(Call([USER], (1 << 32) - 1).hits, (1 << 32) - 1)
        self.assertEqual(Descriptor([("user", "ann")], (1 << 64) - 1).hits, (1 << 64) - 1)
        for hold in (None, 1, "yes"):
            self.raises(CallError, "hold: must be bool, not ", lambda: Descriptor([("user", "ann")], hold=hold))

    def test_settings(self):
        for settings, says in [
            ({"address": None}, "address must be str, not None"), ({"address": b"http://a:1"}, "address must be str, not bytes"),
            ({"domain": None}, "domain must be str, not None"), ({"domain": 7}, "domain must be str, not int"),
            ({"timeout": None}, "timeout must be a number of seconds, not None"),
            ({"timeout": "20ms"}, "timeout must be a number of seconds, not str"),
            ({"timeout": True}, "timeout must be a number of seconds, not bool"),
            ({"timeout": math.nan}, "timeout must be finite"), ({"timeout": math.inf}, "timeout must be finite"),
            ({"timeout": -1}, "timeout must be finite and at least 0"), ({"timeout": 1e9}, "at most an hour"),
            ({"pending_max": 1.5}, "pending_max must be int, not float"), ({"pending_max": None}, "pending_max must be int"),
            ({"pending_max": -1}, "greater than 0"),
            ({"on_failure": None}, 'on_failure must be "allow" or "deny", not None'), ({"on_failure": ["allow"]}, "on_failure"),
            ({"ca_pem": "text"}, "ca_pem must be bytes, not str"), ({"server_name": b"a"}, "server_name must be str, not bytes"),
            ({"identity_pem": b"one"}, "identity_pem must be (certificate chain, private key)"),
            ({"identity_pem": (b"one",)}, "identity_pem must be (certificate chain, private key)"),
            ({"identity_pem": (b"one", None)}, "identity_pem: the private key must be bytes, not None"),
        ]:
            with self.subTest(settings):
                given = {"address": "https://localhost:1", "domain": "shop"} | settings
                self.raises(SettingsError, says, lambda: Client(**given))

    def test_mappings(self):
        for text, says in [
            (None, "mapping: must be JSON as str, not NoneType"), (b"{}", "mapping: must be JSON as str, not bytes"),
            ({}, "mapping: must be JSON as str, not dict"), ("", "mapping: "), ("[" * 60_000, "mapping: must not be nested"),
            ("7", "mapping: must be an object"), ("x" * 70_000, "mapping: must have at most 65536 bytes"),
            ('{"descriptors": [{"entries": [{"key": "\\ud800", "value": "x"}]}]}', "mapping: must be text that UTF-8"),
            ('{"descriptors": [{"entries": [{"key": 7, "value": "x"}]}]}', "key: must not be empty"),
            ('{"descriptors": [{"entries": [{"key": "a", "value": 7}]}]}', "value: must be a text"),
        ]:
            with self.subTest(text=str(text)[:40]):
                self.raises(MappingError, says, lambda: Mapping.from_json(text))

    def test_middleware(self):
        client = Client("http://localhost:1", "shop")
        self.raises(SettingsError, "client must be Client, not str", lambda: RateLimitMiddleware(None, "http", MAPPING))
        self.raises(SettingsError, "mapping must be Mapping, not str: use Mapping.from_json",
                    lambda: RateLimitMiddleware(None, client, "{}"))

    def test_calls_of_a_client(self):
        client = Client("http://localhost:1", "shop")
        for given in (None, "user", b"user", 7, [USER], USER, {"user": "ann"}, Call):
            says = "call: must be Call, not "
            with self.subTest(given):
                for ask in (client.check, client.refund):
                    self.raises(CallError, says, lambda: asyncio.run(ask(given)))
                self.raises(CallError, says, lambda: asyncio.run(client.wait(given, 1)))
                self.raises(CallError, says, lambda: client.hold(given))
                self.raises(CallError, says, lambda: client.reserve(given, 1))
                self.raises(CallError, says, lambda: asyncio.run(client.check_many([call("user", "ann"), given])))
        for calls in (None, 7, "user", call("user", "ann"), {"user": "ann"}):
            self.raises(CallError, "calls: must be a list of Call, not ", lambda: asyncio.run(client.check_many(calls)))
        for patience in (None, "60", math.nan, math.inf, -1, True):
            self.raises(SettingsError, "patience must be ", lambda: asyncio.run(client.wait(call("user", "ann"), patience)))
            self.raises(SettingsError, "timeout must be ", lambda: asyncio.run(client.connect(patience)))

    def test_reservations(self):
        client = Client("http://localhost:1", "shop")
        for estimate, says in [(None, "must be int, not None"), (1.5, "must be int, not float"), (-1, "must be 0 to "),
                               (1 << 64, "must be 0 to "), (True, "must be int, not bool")]:
            with self.subTest(estimate):
                reservation = client.reserve(Call([USER]), 1)
                self.raises(CallError, f"estimate: {says}", lambda: client.reserve(Call([USER]), estimate))
                self.raises(CallError, f"estimate: {says}", lambda: asyncio.run(reservation.renew(estimate)))
                self.raises(CallError, f"used: {says}", lambda: asyncio.run(reservation.settle(estimate)))
        for ttl in ("60", math.nan, math.inf, -1, True, 0):
            self.raises(SettingsError, "ttl must be ", lambda: client.reserve(Call([USER]), 1, ttl=ttl))
        for choice in (None, "charge", ["keep"], 7):
            self.raises(SettingsError, 'on_unsettled must be "charge_estimate", "release", or "keep", not ',
                        lambda: client.reserve(Call([USER]), 1, on_unsettled=choice))
        for descriptor in (Descriptor([("user", "ann")], hits=0), Descriptor([("user", "ann")], hold=True)):
            self.raises(CallError, "descriptors[1]: must not have hits or hold in a reservation",
                        lambda: client.reserve(Call([USER, descriptor]), 1))


if __name__ == "__main__":
    unittest.main()
