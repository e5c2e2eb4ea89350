"""The client against a real Tidegate, over TLS, and without one."""

import asyncio
import socket
import unittest

from support import PATIENCE_SECONDS, TidegateCase, call

from tidegate_client import Call, Client, Counters, Descriptor, Failure, Outcome, SettingsError
import certificates
import tidegate_process

# The longest wait that the policy can ask for.
YEAR_SECONDS = 366 * 86_400
EXPORT = Call([Descriptor([("export", "ann")], hold=True)])


class Decisions(TidegateCase):
    async def test_the_sixth_of_five_is_rejected_with_the_time_to_wait(self):
        client = self.client(self.serve("--headers", "x-ratelimit")[0])
        for _ in range(5):
            decision = await client.check(call("user", "ann"))
            self.assertEqual((decision.outcome, decision.passes, decision.retry_after), (Outcome.ALLOWED, True, None))
        decision = await client.check(call("user", "ann"))
        self.assertEqual((decision.outcome, decision.passes), (Outcome.REJECTED, False))
        self.assertTrue(1 <= decision.retry_after <= YEAR_SECONDS, decision)
        names = dict(decision.headers)
        self.assertIn(b"retry-after", names)
        self.assertIn(b"x-ratelimit-limit", names)
        self.assertEqual(client.counters, Counters(allowed=5, rejected=1, failed=0))
        self.assertTrue((await client.check(call("user", "ben"))).passes)

    async def test_a_call_near_a_soft_limit_and_over_it_passes_with_marks(self):
        client = self.client(self.serve()[0])
        for expected in (b"near", b"over", b"over"):
            decision = await client.check(call("soft", "ann"))
            self.assertEqual((decision.outcome, decision.marks), (Outcome.ALLOWED, ((b"x-quota", expected),)))
        both = Call([Descriptor([("soft", "ann")]), Descriptor([("banned", "ann")])])
        decision = await client.check(both)
        self.assertEqual((decision.outcome, decision.marks), (Outcome.REJECTED, ()))

    async def test_a_date_is_read_like_seconds(self):
        client = self.client(self.serve("--retry-after", "date")[0])
        self.assertTrue((await client.check(call("user", "ann", 5))).passes)
        decision = await client.check(call("user", "ann"))
        self.assertTrue(1 <= decision.retry_after <= YEAR_SECONDS, decision)

    async def test_hits_are_charged_and_refunded(self):
        client = self.client(self.serve()[0])
        three = call("user", "ann", 3)
        self.assertTrue((await client.check(three)).passes)
        self.assertIs((await client.check(three)).outcome, Outcome.REJECTED)
        await client.refund(three)
        self.assertTrue((await client.check(three)).passes)
        peek = Call([Descriptor([("user", "ann")], hits=0)])
        for _ in range(10):
            self.assertTrue((await client.check(peek)).passes, "a peek charges nothing")

    async def test_values_that_are_not_text_are_counted(self):
        client = self.client(self.serve()[0])
        self.assertTrue((await client.check(call("user", b"a\xffb", 5))).passes)
        self.assertIs((await client.check(call("user", b"a\xffb"))).outcome, Outcome.REJECTED)

    async def test_a_call_without_descriptors_passes_without_asking(self):
        client = self.client(self.serve()[0])
        self.assertTrue((await client.check(Call([]))).passes)
        self.assertEqual(client.counters, Counters())

    async def test_waiting_honours_retry_after_until_the_call_passes(self):
        client = self.client(self.serve()[0])
        for _ in range(2):
            self.assertTrue((await client.wait(call("paced", "job"), PATIENCE_SECONDS)).passes)
        self.assertEqual(client.counters.allowed, 2)
        self.assertIn(client.counters.rejected, (1, 2), "told to wait once, and not polling")

    async def test_waiting_gives_up_at_once_where_it_cannot_help(self):
        client = self.client(self.serve()[0])
        # Never allowed: there is no Retry-After.
        decision = await client.wait(call("banned", "job"), YEAR_SECONDS)
        self.assertEqual((decision.outcome, decision.retry_after), (Outcome.REJECTED, None))
        # Allowed again next year, which is later than the patience ends.
        self.assertTrue((await client.check(call("user", "ann", 5))).passes)
        decision = await client.wait(call("user", "ann"), 0)
        self.assertIs(decision.outcome, Outcome.REJECTED)
        self.assertEqual(client.counters, Counters(allowed=1, rejected=2, failed=0))


    async def test_a_batch_has_a_decision_for_each_call(self):
        client = self.client(self.serve()[0])
        others = [Call([]), call("", "an entry without a key"), call("user", "ben")]
        decisions = await client.check_many([call("user", "ann")] * 6 + others)
        outcomes = [decision.outcome for decision in decisions]
        self.assertEqual(outcomes[:6].count(Outcome.REJECTED), 1)
        self.assertEqual(outcomes[6:], [Outcome.ALLOWED, Outcome.FAILED, Outcome.ALLOWED])
        self.assertEqual(client.counters, Counters(allowed=6, rejected=1, failed=1))
        self.assertEqual(await client.check_many([]), [])

    async def test_a_batch_beyond_the_bound_fails_as_a_whole(self):
        client = self.client(self.serve()[0])
        calls = [call("user", "ann")] * 1_025
        decisions = await client.check_many(calls)
        self.assertEqual({(it.outcome, it.passes) for it in decisions}, {(Outcome.FAILED, True)})
        # The largest batch, each with a rejection.
        decisions = await client.check_many(calls[1:])
        self.assertEqual([it.outcome for it in decisions].count(Outcome.REJECTED), 1_019)


class Holds(TidegateCase):
    async def test_a_slot_is_released_at_the_end_of_its_context(self):
        client = self.client(self.serve()[0])
        async with client.hold(EXPORT) as decision:
            self.assertTrue(decision.passes)
            async with client.hold(EXPORT) as second:
                self.assertIs(second.outcome, Outcome.REJECTED)
        await self.until_passes(client, EXPORT)

    async def test_a_caller_that_goes_away_while_it_asks_leaves_no_slot_behind(self):
        client = self.client(self.serve()[0])

        async def ask():
            async with client.hold(EXPORT):
                await asyncio.sleep(PATIENCE_SECONDS)

        for _ in range(20):
            asked = asyncio.create_task(ask())
            await asyncio.sleep(0)
            asked.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await asked
        await self.until_passes(client, EXPORT)

    async def test_a_refund_leaves_slots_alone(self):
        client = self.client(self.serve()[0])
        async with client.hold(EXPORT):
            await client.refund(EXPORT)
            async with client.hold(EXPORT) as second:
                self.assertIs(second.outcome, Outcome.REJECTED)


class WithoutTidegate(TidegateCase):
    async def test_a_refund_without_tidegate_is_an_error(self):
        client = self.client(f"https://localhost:{tidegate_process.free_port()}")
        with self.assertRaises(Failure) as raised:
            await client.refund(call("user", "ann"))
        self.assertIn("UNAVAILABLE", str(raised.exception))

    def silent(self):
        """A server that the kernel accepts connections for, and that says nothing."""
        listener = socket.socket()
        self.addCleanup(listener.close)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        return f"https://localhost:{listener.getsockname()[1]}"

    async def test_an_absent_service_lets_requests_pass_or_not_by_choice(self):
        for choice, passes in (("allow", True), ("deny", False)):
            client = self.client(f"https://localhost:{tidegate_process.free_port()}", on_failure=choice)
            decision = await client.check(call("user", "ann"))
            self.assertEqual((decision.outcome, decision.passes), (Outcome.FAILED, passes))
            self.assertTrue(decision.failure.may_pass_later())
            self.assertEqual(client.counters, Counters(failed=1))

    async def test_a_service_that_hangs_costs_the_timeout(self):
        client = self.client(self.silent(), timeout=0.02)
        decision = await client.check(call("user", "ann"))
        self.assertEqual((decision.failure.kind, decision.passes), ("timeout", True))

    async def test_no_more_calls_wait_than_allowed(self):
        client = self.client(self.silent(), pending_max=3)
        waiting = [asyncio.create_task(client.check(call("user", "ann"))) for _ in range(3)]
        await asyncio.sleep(0)
        decision = await client.check(call("user", "ann"))
        self.assertEqual(decision.failure.kind, "busy")
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        self.assertTrue(all(task.cancelled() for task in waiting))
        # Those who went away left their places.
        asked = asyncio.create_task(client.check(call("user", "ann")))
        await asyncio.wait([asked], timeout=0.05)
        self.assertFalse(asked.done(), "waiting, not rejected")
        asked.cancel()

    async def test_a_service_that_returns_is_found_again(self):
        address, process = self.serve()
        client = self.client(address)
        self.assertTrue((await client.check(call("user", "ann"))).passes)
        process.kill()
        process.wait()
        self.assertIs((await client.check(call("user", "ann"))).outcome, Outcome.FAILED)
        self.serve(grpc_port=int(address.rpartition(":")[2]))
        await self.until_passes(client, call("user", "ann"))

    async def test_tls_verifies_both_sides(self):
        address, _ = self.serve()
        others = self.directory / "others"
        others.mkdir()
        certificates.write(others)
        wrong = {
            "an unknown authority": self.client(address, ca_pem=(others / "ca.pem").read_bytes()),
            "the system's authorities": self.client(address, ca_pem=None),
            "no client certificate": self.client(address, identity_pem=None),
            "another name": self.client(address, server_name="elsewhere.test"),
            "plain text": Client(address.replace("https", "http"), "shop", timeout=PATIENCE_SECONDS),
        }
        for what, client in wrong.items():
            with self.subTest(what):
                decision = await client.check(call("user", "ann"))
                self.assertEqual((decision.outcome, decision.failure.kind), (Outcome.FAILED, "status"), decision)
                await client.close()
        self.assertIs((await self.client(address).check(call("user", "ann", 5))).outcome, Outcome.ALLOWED)

    async def test_wrong_settings_are_named(self):
        wrong = [({"ca_pem": b"x"}, "https"), ({"timeout": 0}, "timeout"), ({"pending_max": 0}, "pending_max"),
                 ({"on_failure": "open"}, "on_failure")]
        for settings, says in wrong:
            with self.subTest(says), self.assertRaisesRegex(SettingsError, says):
                Client("http://localhost:1", "shop", **settings)
        with self.assertRaisesRegex(SettingsError, "domain"):
            Client("http://localhost:1", "")


if __name__ == "__main__":
    unittest.main()
