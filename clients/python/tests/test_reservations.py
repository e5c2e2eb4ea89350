"""Reservations of a real Tidegate, and without one. The limit of `tokens` is 100."""

import asyncio
import unittest

from support import TidegateCase, call

from tidegate_client import Call, Counters, Failure, Outcome
import tidegate_process

TOKENS = call("tokens", "ann")


class Reservations(TidegateCase):
    async def assert_left(self, client, expected):
        """Exactly so many tokens are available."""
        self.assertEqual([await self.fits(client, hits) for hits in (expected, expected + 1)], [True, False])

    async def fits(self, client, hits):
        async with client.reserve(TOKENS, hits, on_unsettled="release") as budget:
            return budget.decision.outcome is Outcome.ALLOWED

    async def until_fits(self, client, hits):
        loop = asyncio.get_running_loop()
        deadline = loop.time() + tidegate_process.PATIENCE_SECONDS
        while not await self.fits(client, hits):
            self.assertLess(loop.time(), deadline)
            await asyncio.sleep(0.02)

    async def test_estimates_that_do_not_fit_together_are_rejected_before_they_are_used(self):
        client = self.client(self.serve()[0])

        async def ask(estimate):
            async with client.reserve(TOKENS, estimate) as budget:
                outcomes.append(budget.decision.outcome)
                if len(outcomes) == 5:
                    all_asked.set()
                await all_asked.wait()
                await budget.settle(estimate)

        outcomes, all_asked, tasks = [], asyncio.Event(), []
        for estimate in (58, 80, 175, 175, 175):
            tasks.append(asyncio.create_task(ask(estimate)))
            await self.until(lambda: len(outcomes) == len(tasks))
        await asyncio.gather(*tasks)
        self.assertEqual(outcomes, [Outcome.ALLOWED] + [Outcome.REJECTED] * 4)
        self.assertEqual(client.counters, Counters(allowed=1, rejected=4))
        await self.assert_left(client, 42)

    async def test_what_was_not_used_is_free_again_and_a_second_settle_charges_nothing(self):
        client = self.client(self.serve()[0])
        async with client.reserve(TOKENS, 60) as budget:
            await self.assert_left(client, 40)
            self.assertIsNone(await budget.settle(25))
            await self.assert_left(client, 75)
            self.assertIsNone(await budget.settle(70))
            self.assertIsNone(await budget.release())
        await self.assert_left(client, 75)

    async def test_more_than_the_estimate_is_charged_even_beyond_the_limit(self):
        client = self.client(self.serve()[0])
        async with client.reserve(TOKENS, 60) as budget:
            await budget.settle(130)
        self.assertFalse(await self.fits(client, 1))

    async def test_an_exception_in_the_block_charges_the_estimate_or_not_by_choice(self):
        client = self.client(self.serve()[0])
        for choices, left in [({}, 90), ({"on_unsettled": "release"}, 90), ({"on_unsettled": "keep"}, 80)]:
            with self.assertRaises(ZeroDivisionError):
                async with client.reserve(TOKENS, 10, **choices) as budget:
                    self.assertTrue(budget.decision.passes)
                    1 / 0
            await self.assert_left(client, left)

    async def test_a_hold_that_is_kept_ends_with_its_ttl_and_a_charged_estimate_does_not(self):
        client = self.client(self.serve()[0])
        for estimate, choices in [(10, {}), (90, {"on_unsettled": "keep"})]:
            async with client.reserve(TOKENS, estimate, ttl=0.5, **choices) as budget:
                self.assertTrue(budget.decision.passes)
        # When the hold of 90 has ended, that of 10 would have, too.
        await self.until_fits(client, 90)
        await self.assert_left(client, 90)

    async def test_a_release_charges_nothing(self):
        client = self.client(self.serve()[0])
        async with client.reserve(TOKENS, 60) as budget:
            self.assertIsNone(await budget.release())
        await self.assert_left(client, 100)

    async def test_a_renewal_replaces_the_estimate_if_it_fits(self):
        client = self.client(self.serve()[0])
        async with client.reserve(TOKENS, 60) as budget:
            self.assertTrue((await budget.renew(90)).passes)
            self.assertIs((await budget.renew(101)).outcome, Outcome.REJECTED)
            await self.assert_left(client, 10)
        await self.assert_left(client, 10)
        before = client.counters.allowed
        self.assertTrue((await budget.renew(1)).passes, "nothing is held, so nothing is asked")
        self.assertEqual(client.counters.allowed, before)

    async def test_a_rejected_reservation_settles_nothing(self):
        client = self.client(self.serve()[0])
        async with client.reserve(TOKENS, 101) as budget:
            self.assertEqual((budget.decision.outcome, budget.decision.passes), (Outcome.REJECTED, False))
            self.assertIsNone(await budget.settle(50))
        async with client.reserve(TOKENS, 101) as budget:
            pass
        await self.assert_left(client, 100)

    async def test_a_caller_that_goes_away_while_it_settles_is_charged(self):
        client = self.client(self.serve()[0])
        async with client.reserve(TOKENS, 60) as budget:
            settling = asyncio.create_task(budget.settle(25))
            await asyncio.sleep(0)
            settling.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await settling
        await self.until_fits(client, 75)
        await self.assert_left(client, 75)

    async def test_a_limit_without_reserve_is_charged_the_estimate(self):
        client = self.client(self.serve()[0])
        async with client.reserve(call("user", "ann"), 4) as budget:
            self.assertIsNone(await budget.settle(1))
        self.assertTrue((await client.check(call("user", "ann"))).passes)
        self.assertIs((await client.check(call("user", "ann"))).outcome, Outcome.REJECTED)

    async def test_a_call_without_descriptors_passes_without_asking(self):
        client = self.client(f"https://localhost:{tidegate_process.free_port()}")
        async with client.reserve(Call([]), 60) as budget:
            self.assertIs(budget.decision.outcome, Outcome.ALLOWED)
            self.assertIsNone(await budget.settle(25))
        self.assertEqual(client.counters, Counters())

    async def test_without_tidegate_the_client_decides_and_nothing_is_settled(self):
        for choice, passes in (("allow", True), ("deny", False)):
            client = self.client(f"https://localhost:{tidegate_process.free_port()}", on_failure=choice)
            async with client.reserve(TOKENS, 60) as budget:
                self.assertEqual((budget.decision.outcome, budget.decision.passes), (Outcome.FAILED, passes))
                self.assertIsNone(await budget.settle(25))
            self.assertEqual(client.counters, Counters(failed=1))
            self.assertFalse(client._later)

    async def test_a_settle_that_fails_says_why_and_is_sent_once_more(self):
        address, process = self.serve()
        client = self.client(address)
        async with client.reserve(TOKENS, 60) as budget:
            process.kill()
            process.wait()
            self.assertIsInstance(await budget.settle(25), Failure)
            self.assertEqual(len(client._later), 1)
            self.assertIsNone(await budget.settle(25))
        self.assertLessEqual(len(client._later), 1)


if __name__ == "__main__":
    unittest.main()
