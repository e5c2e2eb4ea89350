"""Pictures of the page under a made-up load, light and dark."""

import itertools
import random
import time

from browser import Browser, until
from service import Service

# Long enough for the chart to have a shape.
SECONDS = 50
SIZE = (1100, 1040)
# As wide as a README shows them.
SCALE = 0.8


def calls(service, seconds):
    """A flood by one token, some by others, and traffic that passes."""
    draw = random.Random(7)
    end = time.monotonic() + seconds
    for at in itertools.count():
        if time.monotonic() > end:
            return
        surge = 6 if at % 60 > 35 else 1
        for _ in range(surge):
            service.call([("api_token", "crawler-eu-west-3")])
            service.call([("tenant", draw.choice(["initech", "initech", "acme"]))])
        service.call([("api_token", draw.choice(["mobile-app", "partner-feed", "demo", "batch-export", "kiosk"]))])
        service.call([("remote_address", draw.choice(["203.0.113.10", "198.51.100.7", "2001:db8:51::7"]))])
        service.call([("endpoint", "login"), ("remote_address", draw.choice(["203.0.113.10", "192.0.2.44"]))])
        service.call([("endpoint", "search")])
        time.sleep(0.05)


def take(directory):
    directory.mkdir(parents=True, exist_ok=True)
    service, browser = Service(), Browser()
    try:
        browser.look("light", *SIZE)
        browser.open(service.page())
        calls(service, SECONDS)
        browser.fill("#descriptors", "endpoint=login,remote_address=203.0.113.10")
        browser.click("#form button")
        until("an answer", lambda: browser.run("return document.querySelector('#answer').dataset.code"))
        for scheme in ("light", "dark"):
            browser.look(scheme, *SIZE, SCALE)
            browser.run("window.scrollTo(0, 0); document.activeElement.blur()")
            calls(service, 2)
            (directory / f"page-{scheme}.png").write_bytes(browser.picture())
    finally:
        browser.close()
        service.close()
