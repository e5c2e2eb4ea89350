"""The live page, as who operates the service sees it."""

import contextlib
import json
import socket
import statistics
import time
import unittest

import flood_history
from browser import Browser, until
from service import TOKEN, Service

# How soon the page must show who is being limited.
SHOWN_WITHIN_SECONDS = 2
# Floods that the median is taken of.
FLOODS = 3
MARKUP = "<img src=x onerror=alert(1)>"


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.service = Service()
        self.addCleanup(self.service.close)
        # The page of the former test polls a service that has ended.
        self.browser.open("about:blank")
        self.browser.console()
        self.browser.look("light", 1280, 900)
        self.browser.open(self.service.page())
        until("the page is live", lambda: self.browser.text("#state") == "Live")

    def tearDown(self):
        said = [line for line in self.browser.console() if line["level"] in ("SEVERE", "WARNING")]
        self.assertEqual(said, [], "the console is silent")

    def limited(self):
        return self.browser.text("#groups") or ""

    def spend(self, *descriptor):
        """Calls until one is rejected."""
        while self.service.call(descriptor) == "OK":
            pass

    def test_it_shows_who_is_limited_within_two_seconds_of_a_flood(self):
        took = []
        for flood in range(FLOODS):
            token = f"flood-{flood}"
            self.spend(("api_token", token))
            began = time.monotonic()
            until("the key is shown", lambda: f"api_token={token}" in self.limited())
            took.append(time.monotonic() - began)
        print(f"shown after {', '.join(f'{seconds:.2f}' for seconds in took)} s")
        self.assertLessEqual(statistics.median(took), SHOWN_WITHIN_SECONDS)
        self.assertIn("edge.api_token", self.limited())
        self.assertIn("per-token", self.limited())
        until("a screen reader is told", lambda: "Limited now by edge.api_token" in self.browser.text("#said"))
        self.browser.click("input[value=last_day]")
        until("the day has it too", lambda: "api_token=flood-0" in self.limited())

    def test_a_fresh_visitor_sees_the_flood_that_began_ten_minutes_ago(self):
        injected = flood_history.inject(self.browser)
        self.addCleanup(flood_history.remove, self.browser, injected)
        self.spend(("api_token", "ann"))
        self.browser.open("about:blank")
        self.browser.open(self.service.page())
        since = lambda selector: any(f"since {time}" in (self.browser.text(selector) or "") for time in flood_history.began_at(self.browser))
        until("the list says since when", lambda: since("#groups"))
        until("so does the overview", lambda: since("#rejected"))
        label = lambda: self.browser.run("return document.querySelector('#calls-chart svg').getAttribute('aria-label')")
        self.assertRegex(label(), r"Calls per second, last hour\. \d\d:\d\d:\d\d: .* admitted, .* rejected.*\. Highest at \d\d:\d\d: \d+ rejected\.")
        axes = self.browser.run("return [...document.querySelectorAll('#calls-chart text')].map(each => each.textContent)")
        # Every ten minutes, except for a time that would lie on the numbers at the left.
        self.assertIn(len([mark for mark in axes if ":" in mark]), (5, 6), axes)
        self.assertIn("200", axes)
        # By keyboard: a point before the flood.
        self.browser.run("document.querySelector('#moment').focus()")
        self.browser.press(*["left"] * 70)
        self.assertIn(", 0 rejected", self.browser.run("return document.querySelector('#moment').getAttribute('aria-valuetext')"))
        self.assertIn(", 0 rejected", self.browser.text("#calls-chart b"))

    def test_the_servers_own_history_is_drawn(self):
        self.browser.open("about:blank")
        self.spend(("api_token", "ann"))
        self.browser.open(self.service.page())
        drawn = "const d = document.querySelector('#calls-chart path[class=c1]')?.getAttribute('d'); return d && new Set([...d.matchAll(/ ([\\d.]+)/g)].map(each => each[1])).size"
        until("rejections of before the visit are in the chart", lambda: (self.browser.run(drawn) or 0) > 1)

    def test_rates_by_rule_are_shown_while_calls_come(self):
        def shown():
            for _ in range(5):
                self.service.call([("remote_address", "192.0.2.7")])
            return "edge.remote_address" in (self.browser.text("#rates") or "")
        until("the rule is listed", shown)
        self.assertIn("per second", self.browser.text("#admitted"))
        self.assertIn("Memory", self.browser.text("#store-now"))

    def test_calls_without_a_limit_are_shown_with_their_rate_and_what_was_meant(self):
        def rows():
            for _ in range(3):
                self.service.call([("remote_address", "192.0.2.7")], domain="egde")
                self.service.call([("remote_adress", "192.0.2.7")])
            self.service.call([("no_such_key", MARKUP)], domain=MARKUP)
            return self.browser.text("#unmatched") or ""
        until("the wrong domain is listed", lambda: "egde" in rows() and "The policy does not have this domain." in rows())
        until("what was meant is shown", lambda: "did you mean edge?" in rows())
        until("the wrong key is named", lambda: "did you mean remote_address?" in rows())
        self.assertIn(MARKUP, rows())
        cells = "return [...document.querySelectorAll('#unmatched td.number')].map(cell => parseFloat(cell.textContent))"
        until("rates are shown", lambda: any(rate > 0 for rate in self.browser.run(cells) or [] if rate))
        self.assertFalse(self.browser.run("return document.querySelector('#unmatched img') !== null"))

    def test_callers_that_cannot_be_understood_are_named_with_the_way_out(self):
        with socket.create_connection(("127.0.0.1", int(self.service.ports["grpc"].rpartition(":")[2])), 5) as caller:
            caller.sendall(b"GET / HTTP/1.1\r\nHost: tidegate\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                caller.recv(1)
        until("the caller is named", lambda: "HTTP/1.1 on the gRPC port" in (self.browser.text("#unreadable") or ""))
        self.assertIn("set http2_protocol_options on Envoy", self.browser.text("#unreadable"))

    def tried(self, descriptors, hits=1):
        """What the page says a request would be answered: the code."""
        self.browser.run("document.querySelector('#answer').dataset.code = ''")
        self.browser.fill("#descriptors", "\n".join(descriptors))
        self.browser.fill("#hits", str(hits))
        self.browser.click("#form button")
        return until("an answer", lambda: self.browser.run("return document.querySelector('#answer').dataset.code"))

    def test_what_is_tried_agrees_with_the_real_call_and_charges_nothing(self):
        login = [("endpoint", "login"), ("remote_address", "192.0.2.1")]
        written = ",".join("=".join(pair) for pair in login)
        # The third is over: the fourth login of an hour.
        for at, hits in enumerate([1, 1, 1, 1]):
            before = [self.tried([written], hits) for _ in range(3)]
            real = self.service.call(login, hits=hits)
            self.assertEqual(set(before), {real}, f"call {at}")
        self.assertEqual(real, "OVER_LIMIT")
        self.assertEqual(self.tried(["tenant=a"], 21), "OVER_LIMIT")
        self.assertEqual(self.service.call([("tenant", "a")], hits=21), "OVER_LIMIT")
        # Shadow mode lets pass, and so says the page; two descriptors are decided together.
        both = [[("endpoint", "search")], login]
        for descriptors in ([both[0]], both):
            lines = [",".join("=".join(pair) for pair in each) for each in descriptors]
            self.assertEqual(self.tried(lines, 31), self.service.call(*descriptors, hits=31))
        answer = self.browser.text("#answer")
        self.assertIn("nothing was charged", answer)
        self.assertIn("rule 2: edge.endpoint_login.remote_address", answer)
        self.assertEqual(self.tried(["nobody=knows"]), "OK")
        self.assertIn("no limit", self.browser.text("#answer"))

    def test_markup_in_what_callers_send_is_text(self):
        self.spend(("api_token", MARKUP))
        until("it is shown", lambda: f"api_token={MARKUP[:24]}" in self.limited())
        self.tried([f"api_token={MARKUP}"])
        self.assertIn(MARKUP, self.browser.text("#answer"))
        self.assertEqual(self.browser.run("return document.images.length"), 0)

    def test_the_policy_is_searched(self):
        self.assertIn("5 rules", until("it is listed", lambda: self.browser.text("#found")))
        self.assertIn("edge.yaml:3", self.browser.text("#listing"))
        self.browser.fill("#search", "LOGIN")
        until("one is left", lambda: self.browser.text("#found") == "1 of 5 rules")
        self.assertIn("edge.endpoint_login.remote_address", self.browser.text("#listing"))

    def details(self):
        return self.browser.text("#detail") if self.browser.run("return document.querySelector('#detail').checkVisibility()") else ""

    def focus(self):
        return self.browser.run("return document.activeElement.id || document.activeElement.textContent")

    def test_a_rule_and_a_key_are_opened_by_keyboard_and_closed_again(self):
        self.spend(("api_token", "ann"))
        until("it is shown", lambda: "api_token=ann" in self.limited())
        self.browser.run("document.querySelector('#groups h3 button').focus()")
        self.browser.press("enter")
        until("the rule is open", lambda: "Rule edge.api_token" in self.details())
        self.assertEqual(self.focus(), "detail-title")
        for fact in ("per-token: 5 per year", "edge.yaml:3", "Counter per", "api_token=ann"):
            until(fact, lambda: fact in self.details())
        self.browser.press("escape")
        self.assertEqual((self.details(), self.focus()), ("", "edge.api_token"))
        self.browser.run("document.querySelector('#groups .key button').focus()")
        self.browser.press("enter")
        until("the key is open", lambda: "Key api_token=ann" in self.details())
        until("its counter is read", lambda: "The next call is rejected\ncounted 5 of 5 (per-token); retry after" in self.details())
        self.assertIn("0 of 5 left, 5 per 1 year, reset in", self.details())
        self.assertEqual(self.browser.run("return document.querySelector('#descriptors').value"), "api_token=ann", "Try is filled in")

    def test_an_address_brings_back_the_view(self):
        while self.service.call([("endpoint", "login"), ("remote_address", "192.0.2.1")]) == "OK":
            pass
        self.browser.open("about:blank")
        self.browser.open(self.service.page(span="last_hour", sort="rule", filter="api", domain="edge",
                                            rule="edge.endpoint_login.remote_address", key="endpoint=login,remote_address=192.0.2.1"))
        until("the key is open", lambda: "counted 3 of 3 (login)" in self.details())
        self.assertTrue(self.browser.run("return document.querySelector('input[value=last_hour]').checked"))
        until("the filter is used", lambda: self.browser.text("#found") == "1 of 5 rules")
        self.assertEqual(self.browser.run("return document.querySelector('#rates-head th[aria-sort]').textContent"), "Rule")
        until("the list is that of the hour", lambda: "remote_address=192.0.2.1" in self.limited())
        self.browser.click("#close")
        self.browser.click("input[value=last_day]")
        self.browser.fill("#filter", "login")
        until("the address follows", lambda: self.browser.run("return location.hash") == "#span=last_day&sort=rule&filter=login")
        self.browser.run("history.back()")
        until("a step back opens the key again", lambda: "Key endpoint=login" in self.details())
        self.browser.open("about:blank")
        self.browser.open(self.service.page(by="nonsense", span="<b>", sort="?", domain=MARKUP, rule=MARKUP, key=MARKUP))
        until("the page lives", lambda: self.browser.text("#state") == "Live")
        self.assertIn(f"Key {MARKUP}", self.details())
        self.assertEqual(self.browser.run("return document.images.length"), 0)
        until("it says why there is no counter", lambda: "no rule with a limit matches" in self.details() or "has no `=`" in self.details())
        self.browser.console()

    def test_without_the_token_nothing_changes_and_with_it_a_customer_is_unblocked(self):
        self.spend(("api_token", "ann"))
        self.browser.open("about:blank")
        self.browser.open(self.service.page(domain="edge", rule="edge.api_token", key="api_token=ann"))
        until("the counter is read", lambda: "counted 5 of 5" in self.details())
        for token in ("", "wrong"):
            self.browser.fill("#token", token) if token else None
            self.browser.click("#reset")
            until("it is refused", lambda: "Not done: the token is missing or wrong." in self.browser.text("#acted"))
            self.assertEqual(self.service.call([("api_token", "ann")]), "OVER_LIMIT")
        self.browser.console()
        self.browser.fill("#token", "between-friends")
        self.browser.click("#reset")
        until("it is done", lambda: "Done: edge.api_token (per-token): 5 of 5 left" in self.browser.text("#acted"))
        self.assertEqual(self.service.call([("api_token", "ann")]), "OK")
        until("the new count is shown", lambda: "counted 1 of 5" in self.details())
        kept = self.browser.run("return JSON.stringify([location.href, document.cookie, localStorage.length, sessionStorage.length])")
        self.assertNotIn("between-friends", kept)
        self.assertIn(',"",0,0]', kept)

    def test_who_uses_most_and_who_is_near_a_limit_are_listed(self):
        for at in range(4):
            for _ in range(30 if at else 4):
                self.service.call([("remote_address" if at else "api_token", f"192.0.2.{at}")])
        self.browser.click("input[value=used]")
        until("who uses most", lambda: "Who uses most" in self.browser.text("#limited") and "remote_address=192.0.2.3" in self.limited())
        self.assertIn(" hits", self.limited())
        self.browser.click("input[value=near]")
        self.browser.click("input[value=last_hour]")
        def near():
            self.service.call([("api_token", "192.0.2.0")], hits=0)
            return "% of the limit" in self.limited()
        self.spend(("api_token", "ann"))
        until("who is near", near)
        self.browser.click("#groups .key button")
        until("a key opens from any list", lambda: "Key " in self.details())

    def test_rules_are_sorted_by_each_column(self):
        first = lambda: self.browser.run("return document.querySelector('#rates tr')?.cells[0].textContent.trim()")
        def calls():
            for _ in range(6):
                self.service.call([("remote_address", "192.0.2.7")])
            self.service.call([("api_token", "ann")])
            return first()
        until("the busiest comes first", lambda: calls() == "edge.remote_address")
        self.browser.click("button[data-sort=share]")
        until("the one that rejects comes first", lambda: calls() == "edge.api_token")
        self.assertEqual(self.browser.run("return document.querySelector('th[aria-sort=descending]').textContent"), "Share")
        self.browser.click("button[data-sort=rule]")
        self.browser.click("button[data-sort=rule]")
        until("the last by name comes first", lambda: calls() == "edge.remote_address")

    def test_it_is_used_by_keyboard_alone(self):
        self.browser.run("document.body.focus()")
        reached = []
        for _ in range(60):
            self.browser.press("tab")
            here = self.browser.run(
                "const e = document.activeElement; return e.id || e.value || e.textContent.trim().slice(0, 30)")
            if reached and here == reached[0]:
                break
            reached.append(here)
            if here == "domain":
                self.browser.press("tab", "tab")
                self.browser.ask("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": [
                    {"type": kind, "value": key} for key in "api_token=k" for kind in ("keyDown", "keyUp")]}]})
                self.browser.press("tab", "enter")
                until("an answer", lambda: "OK: admitted" in self.browser.text("#answer"))
        for target in ("Skip to rejected keys", "Policy", "pause", "now", "domain", "search"):
            self.assertIn(target, reached)
        focus = self.browser.run("""
            document.querySelector('#pause').focus({focusVisible: true});
            return getComputedStyle(document.querySelector('#pause')).outlineStyle""")
        self.assertEqual(focus, "solid", "who uses the keyboard sees where they are")
        self.browser.press("space")
        self.assertEqual(self.browser.text("#state"), "Paused")

    def test_a_screen_reader_finds_its_way(self):
        nodes = self.browser.devtools("Accessibility.getFullAXTree")["nodes"]
        named = [(node.get("role", {}).get("value"), node.get("name", {}).get("value", ""))
                 for node in nodes if not node.get("ignored")]
        roles = sorted({role for role, _ in named})
        for landmark in ("banner", "navigation", "main", "contentinfo"):
            self.assertIn(landmark, roles)
        regions = {name for role, name in named if role == "region"}
        for region in ("Overview", "Who is being limited", "Decisions by rule", "Try a request", "Counters", "Policy"):
            self.assertIn(region, regions)
        for role, name in named:
            if role in ("button", "textbox", "searchbox", "spinbutton", "combobox", "radio", "link", "table", "image", "img"):
                self.assertTrue(name.strip(), f"a {role} without a name")
        self.assertIn("status", roles)

    def test_nothing_is_cut_off_on_a_narrow_screen_in_either_scheme(self):
        self.spend(("api_token", "x" * 60))
        until("it is shown", lambda: "api_token=" in self.limited())
        grounds = set()
        for scheme in ("light", "dark"):
            self.browser.look(scheme, 360, 800)
            self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), 360)
            grounds.add(self.browser.run("return getComputedStyle(document.body).backgroundColor"))
        self.assertEqual(len(grounds), 2)

    def test_text_is_easy_to_read_in_either_scheme(self):
        self.spend(("api_token", "ann"))
        until("it is shown", lambda: "api_token=ann" in self.limited())
        for scheme in ("light", "dark"):
            self.browser.look(scheme, 1280, 900)
            faint = self.browser.run(CONTRAST)
            self.assertEqual(faint, [], f"{scheme}: below 4.5 to 1")


# Every text with its nearest ground; what is below the ratio that WCAG 2 asks of small text.
CONTRAST = """
    const parts = css => css.match(/[\\d.]+/g).map(Number);
    const light = css => parts(css).slice(0, 3).map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
    const faint = [];
    for (const node of document.querySelectorAll('body *')) {
        const own = [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
        if (!own || !node.checkVisibility() || node.closest('script, style, option, .unseen')) continue;
        let ground = node;
        while (ground && (parts(getComputedStyle(ground).backgroundColor)[3] ?? 1) === 0) ground = ground.parentElement;
        const [a, b] = [getComputedStyle(node).color, getComputedStyle(ground || document.body).backgroundColor].map(light);
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) faint.push(node.tagName + ' ' + node.textContent.trim().slice(0, 30) + ' ' + ratio.toFixed(2));
    }
    return faint;
"""


class Large(unittest.TestCase):
    def test_a_thousand_rules_fit_on_a_page_and_are_found(self):
        rules = "".join(f"  - {{key: k{n}, rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n" for n in range(1_200))
        service, browser = Service(policy="domain: big\ndescriptors:\n" + rules), Browser()
        self.addCleanup(browser.close)
        self.addCleanup(service.close)
        for n in range(0, 1_200, 10):
            for _ in range(3):
                service.call([(f"k{n}", "x")], domain="big")
        browser.look("light", 1280, 900)
        browser.open(service.page())
        until("the first thousand are listed", lambda: browser.text("#found") == "1,200 rules, the first 1,000 shown")
        until("the rejecting rules are listed", lambda: len(browser.run("return document.querySelectorAll('#groups > li')")) == 64)
        self.assertEqual(browser.run("return document.querySelectorAll('#listing tr').length"), 1_000)
        height = lambda: browser.run("return document.documentElement.scrollHeight")
        self.assertLess(height(), 3_000)
        browser.look("light", 390, 900)
        self.assertLess(height(), 5_000)
        self.assertLessEqual(browser.run("return document.documentElement.scrollWidth"), 390)
        browser.fill("#search", "big.k1199")
        until("one is left", lambda: browser.text("#found") == "1 of 1,200 rules")
        browser.click("#listing button")
        until("it is opened", lambda: "p.yaml:1202" in browser.text("#detail") or "edge.yaml:1202" in browser.text("#detail"))


class Fleet(unittest.TestCase):
    """Three replicas, of which one shows all."""

    def test_all_replicas_are_on_one_page_and_one_that_is_down_is_named(self):
        first, second = Service(), Service(policy="domain: edge\ndescriptors:\n  - key: api_token\n    rate_limit: {unit: year, requests_per_unit: 5}\n")
        third, browser = Service("--peers", f"{first.ports['debug']},{second.ports['debug']}"), Browser()
        for each in (browser, third, second, first):
            self.addCleanup(each.close)
        browser.look("light", 1280, 900)
        browser.open(third.page())
        until("all answer", lambda: browser.text("#of-whom") == "3 of 3 replicas")
        def rates():
            for service in (first, second):
                for _ in range(5):
                    service.call([("api_token", "ann")])
            rows = browser.run("return [...document.querySelectorAll('#fleet tr')].map(row => [...row.cells].map(cell => cell.textContent))")
            self.assertEqual([row[0] for row in rows][0], "this replica")
            return [row[3:] for row in rows]
        until("each has its own rates", lambda: [row[1] in ("0", "–") for row in rates()] == [True, False, False])
        until("they are added", lambda: rates() and browser.text("#rejected").split()[0] not in ("0", "–"))
        until("the rule is that of all", lambda: rates() and "edge.api_token" in (browser.text("#rates") or ""))
        self.assertIn("Replicas have different policies: see Replicas.", browser.text("#modes"))
        self.assertIn("ready; version", browser.text("#fleet"))
        browser.click("input[name=scope][value=replica]")
        until("this one alone has none", lambda: rates() and browser.text("#rejected").split()[0] == "0")
        self.assertEqual(browser.text("#of-whom"), "one of 3 replicas")
        browser.click("input[name=scope][value=all]")
        second.process.kill()
        until("it is missed", lambda: f"Replica {second.ports['debug']} does not answer, so its calls are missing here" in browser.text("#modes"))
        self.assertIn("no answer: ", browser.text("#fleet"))
        self.assertEqual(browser.text("#replicas-note"), "1 did not answer")


class Offline(unittest.TestCase):
    def test_the_page_asks_nobody_but_its_own_port(self):
        service, browser = Service(), Browser()
        self.addCleanup(browser.close)
        self.addCleanup(service.close)
        browser.open(service.page())
        until("the page is live", lambda: browser.text("#state") == "Live")
        asked = browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
        self.assertTrue(asked)
        for url in asked:
            self.assertTrue(url.startswith(service.page()), url)
        refused = browser.run("""
            document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.ran = 1' }));
            return window.ran === undefined""")
        self.assertTrue(refused, "a script that is not the page's does not run")
        service.process.kill()
        until("it says that nobody answers", lambda: browser.text("#state").startswith("No answer since"))
        self.assertIn("This replica does not answer. The numbers below are those of", browser.text("#stale"))
        self.assertEqual(browser.run("return document.title"), "(old) Tidegate")
        for scheme in ("light", "dark"):
            browser.look(scheme, 1280, 900)
            for number in ("#admitted", "#rejected", "#store-now"):
                self.assertNotEqual(browser.run(INK, number), browser.run(INK, "header h1"), f"{scheme}: {number}")
            self.assertEqual(browser.run(CONTRAST), [], f"{scheme}: below 4.5 to 1")


INK = "return getComputedStyle(document.querySelector(arguments[0])).color"


class Modes(unittest.TestCase):
    """What the page says of modes in which calls are decided otherwise than the policy says."""

    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def serve(self, *arguments, **more):
        service = Service(*arguments, **more)
        self.addCleanup(service.close)
        self.browser.look("light", 1280, 900)
        self.browser.open(service.page())
        until("the page is live", lambda: self.browser.text("#state") == "Live")
        return service

    def shown(self, selector, text, act=lambda: None):
        def look():
            act()
            return text in (self.browser.text(selector) or "")
        until(f"{selector} shows {text!r}", look)

    def spend(self, service, descriptor, calls=12):
        return [service.call([descriptor]) for _ in range(calls)]

    def test_without_a_mode_there_is_no_banner(self):
        self.serve()
        self.shown("#latency", "–")
        self.assertFalse(self.browser.run("return document.querySelector('#modes').checkVisibility()"))
        self.assertFalse(self.browser.run("return document.querySelector('#shadow-tile').checkVisibility()"))

    def test_global_shadow_mode_is_named_and_nothing_counts_as_rejected(self):
        service = self.serve("--shadow-mode")
        self.shown("#modes", "Global shadow mode (--shadow-mode): no call is rejected")
        spend = lambda: self.assertEqual(set(self.spend(service, ("api_token", "ann"))), {"OK"})
        self.shown("#groups", "would be rejected", spend)
        self.assertNotIn(" rejected\n", self.browser.text("#groups").replace("would be rejected", ""))
        until("a rate", lambda: spend() or self.browser.text("#would-be-rejected").split()[0] not in ("–", "0"))
        self.assertEqual(self.browser.text("#rejected").split()[0], "0")
        self.assertEqual(self.browser.text("#keys-now").split()[0], "none")
        self.shown("#rates", "would be rejected", spend)
        self.browser.fill("#descriptors", "api_token=ann")
        self.browser.click("#form button")
        self.shown("#answer", "would be rejected, but passes in global shadow mode")
        for scheme in ("light", "dark"):
            self.browser.look(scheme, 1280, 900)
            self.assertEqual(self.browser.run(CONTRAST), [], f"{scheme}: below 4.5 to 1")
        self.browser.look("light", 360, 800)
        self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), 360)

    def test_global_quota_mode_is_named(self):
        self.serve("--quota-mode")
        self.shown("#modes", "Global quota mode (--quota-mode)")

    def test_a_rule_in_shadow_mode_would_reject_and_another_rejects(self):
        service = self.serve()
        while service.call([("endpoint", "search")], hits=20) == "OK" and "would be rejected" not in (
                self.browser.text("#groups") or ""):
            pass
        self.spend(service, ("api_token", "ann"), 7)
        self.shown("#groups", "2 rejected")
        self.shown("#keys-now", "1 would be rejected")
        self.shown("#rates", "shadow", lambda: service.call([("endpoint", "search")]))
        self.browser.fill("#descriptors", "endpoint=search")
        self.browser.fill("#hits", "40")
        self.browser.click("#form button")
        self.shown("#answer", "would be rejected, but passes in the shadow mode of its rule")

    def test_each_override_is_shown_beside_the_numbers_of_its_rule_until_it_ends(self):
        service = self.serve()
        for target, change, word, effect in [
                ("edge.api_token", "mode=deny", "deny", "Every call is rejected"), ("edge", "mode=shadow", "shadow", "would be rejected"),
                ("edge.api_token", "mode=unlimited", "unlimited", "Every call passes"), ("edge.api_token", "scale=20%25", "scale 20%", "percentage")]:
            service.order(f"override?target={target}&{change}&for=600&by=ann&reason=T-42")
            shown_target = target if "." in target else "domain " + target
            self.shown("#modes", f"Override on {shown_target}: {word}, until ")
            for text in (effect, " by ann. Reason: T-42."):
                self.assertIn(text, self.browser.text("#modes"))
            self.shown("#listing", f"override: {word}")
            self.assertIn("per-token: 5 per year", self.browser.text("#listing"))
            self.shown("#rates", f"override: {word}", lambda: service.call([("api_token", "bob")]))
            self.shown("#overrides", f"{word.replace('%', '%')}, until ")
            self.assertIn("by ann. Reason: T-42.", self.browser.text("#overrides"))
            service.order(f"override/delete?target={target}")
            until("the banner is gone", lambda: not self.browser.text("#modes-on"))
            self.shown("#overrides", "No override is set")
        self.shown("#latest", "edge.api_token, scale 20%, by ann, until ")
        service.order("override?target=edge&mode=deny&permanent=true")
        self.shown("#modes", "without an end")

    def override(self, service, **key):
        """Overrides a rule, or a key of it, for an hour, as an operator does; not without the token."""
        self.browser.open("about:blank")
        self.browser.open(service.page(domain="edge", rule="edge.api_token", limit="per-token", **key))
        self.shown("#detail", "per-token: 5 per year")
        self.browser.click("#set")
        self.shown("#acted", "Not done: the token is missing or wrong.")
        self.browser.console()
        self.assertIn("No override is set", self.browser.text("#overrides"))
        self.browser.fill("#token", TOKEN)
        self.browser.fill("#by", MARKUP)
        self.browser.fill("#reason", f"T-42 {MARKUP}")
        self.browser.click("#set")
        self.shown("#acted", "Done: ")

    def test_an_operator_lifts_a_rule_for_an_hour_and_ends_that_again(self):
        service = self.serve()
        self.spend(service, ("api_token", "ann"))
        self.override(service)
        until("calls pass", lambda: service.call([("api_token", "ann")]) == "OK")
        for place in ("#overrides", "#detail-overrides", "#latest", "#modes"):
            self.shown(place, f"T-42 {MARKUP}")
            self.assertIn("edge.api_token", self.browser.text(place))
            self.assertIn(f"by {MARKUP}", self.browser.text(place))
        self.assertEqual(self.browser.run("return document.images.length"), 0)
        self.browser.click("#close")
        self.browser.click("#overrides button")
        self.shown("#detail-title", "Rule edge.api_token")
        self.browser.click("#detail-overrides button")
        self.shown("#acted", "Done: ")
        until("the limit is back", lambda: service.call([("api_token", "ann")]) == "OVER_LIMIT")
        self.shown("#overrides", "No override is set")
        self.browser.run("const change = document.querySelector('#change'); change.value = 'limit'; change.dispatchEvent(new Event('change'))")
        self.browser.fill("#number", "100")
        self.browser.click("#set")
        self.shown("#detail-overrides", "limit 100, until ")

    def test_a_customer_is_unblocked_for_an_hour_and_nobody_else(self):
        service = self.serve()
        for token in ("ann", "bob"):
            self.spend(service, ("api_token", token))
        self.override(service, key="api_token=ann")
        until("the customer passes", lambda: service.call([("api_token", "ann")]) == "OK")
        self.assertEqual(service.call([("api_token", "bob")]), "OVER_LIMIT")
        for place in ("#overrides", "#detail-overrides", "#latest"):
            self.shown(place, "api_token=ann")
            self.assertIn(f"T-42 {MARKUP}", self.browser.text(place))
        self.shown("#modes", "An override of a single key is in force: see Overrides.")
        self.browser.click("#close")
        self.browser.click("#overrides button")
        self.shown("#detail-title", "Key api_token=ann")
        self.browser.click("#detail-overrides button")
        self.shown("#acted", "Done: ")
        until("the limit is back", lambda: service.call([("api_token", "ann")]) == "OVER_LIMIT")
        self.shown("#overrides", "No override is set")

    def test_a_customer_whose_value_is_hashed_is_found_by_the_descriptor_that_is_typed(self):
        service = self.serve("--top-values", "hashed")
        self.spend(service, ("api_token", "ann"))
        self.shown("#limited-note", "Values are hashed.")
        self.browser.click("#groups .key button")
        self.shown("#key-note", "The list has only a part of this key. Complete its values, and look it up.")
        self.browser.fill("#key-text", "api_token=ann")
        self.browser.click("#lookup button")
        self.shown("#counter", "counted 5 of 5 (per-token)")
        self.shown("#detail-facts", "Key, last hour\n7 rejected")
        self.browser.fill("#token", TOKEN)
        self.browser.click("#reset")
        self.shown("#acted", "Done: ")
        self.assertEqual(service.call([("api_token", "ann")]), "OK")

    def test_a_limit_of_a_rule_with_several_is_chosen_by_its_name(self):
        service = self.serve()
        self.browser.open("about:blank")
        self.browser.open(service.page(domain="edge", rule="edge.tenant"))
        self.shown("#detail", "a-day: 5,000 per day")
        choose = "const node = document.querySelector(arguments[0]); node.value = arguments[1]; node.dispatchEvent(new Event('change'))"
        self.browser.run(choose, "#change", "limit")
        self.browser.run(choose, "#limit-name", "a-day")
        self.browser.fill("#number", "7")
        self.browser.fill("#token", TOKEN)
        self.browser.click("#set")
        self.shown("#detail-overrides", "edge.tenant: a-day: limit 7, until ")
        self.assertEqual([service.call([("tenant", "a")], hits=hits) for hits in (7, 1)], ["OK", "OVER_LIMIT"])

    def test_markup_in_a_domain_a_rule_and_a_limit_is_text(self):
        rule = f"{{key: '{MARKUP}', rate_limit: {{name: '{MARKUP}', unit: year, requests_per_unit: 1}}}}"
        service = self.serve(policy=f"domain: '{MARKUP}'\ndescriptors:\n  - {rule}\n")
        call = lambda: service.call([(MARKUP, MARKUP)], domain=MARKUP)
        for place in ("#groups", "#listing", "#rates"):
            self.shown(place, MARKUP, call)
        self.browser.click("#groups h3 button")
        self.shown("#detail-title", f"Rule {MARKUP}")
        self.shown("#rule-keys", MARKUP)
        self.browser.click("#rule-keys button")
        self.shown("#detail-title", f"Key {MARKUP}")
        self.assertEqual(self.browser.run("return [document.images.length, document.title]")[0], 0)

    def test_without_redis_counters_are_not_called_shared(self):
        self.serve("--redis-url", "127.0.0.1:1", "--redis-budget", "1s")
        self.shown("#modes", "A call that Redis does not decide follows its rule’s on_store_failure")
        self.assertIn("those are not shared", self.browser.text("#store-facts"))
        self.assertNotIn("shared by all replicas", self.browser.text("#store-facts"))

    def test_latency_is_that_of_the_last_minute(self):
        service = self.serve()
        self.shown("#latency", "p99 of the last minute", lambda: service.call([("tenant", "a")]))

    def test_a_paused_page_says_of_when_its_numbers_are(self):
        service = self.serve()
        self.shown("#rates", "edge.tenant", lambda: service.call([("tenant", "a")]))
        self.browser.click("#pause")
        self.assertIn("Paused. The numbers below are those of", self.browser.text("#stale"))
        self.browser.click("#pause")
        until("they are of now", lambda: not self.browser.text("#stale") and self.browser.text("#state") == "Live")
