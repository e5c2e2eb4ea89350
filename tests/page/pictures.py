"""Pictures of the page under a made-up load, light and dark."""

import itertools
import random
import time

import flood_history
from browser import Browser, until
from service import Service

SECONDS = 15
SIZE = (1100, 1040)
# Of a narrow screen, and of one with room for the whole page.
NARROW, WHOLE = (390, 5000), (1280, 2600)
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
        flood_history.inject(browser)
        calls(service, SECONDS)
        service.order("override?target=edge.api_token&descriptor=api_token=partner-feed&limit=500&for=3600&by=ann&reason=T-42")
        service.order("override?target=edge.tenant&mode=shadow&for=600&by=bob&reason=T-43:+release+of+the+crawler")
        browser.open(service.page())
        calls(service, 5)
        browser.fill("#descriptors", "endpoint=login,remote_address=203.0.113.10")
        browser.click("#form button")
        until("an answer", lambda: browser.run("return document.querySelector('#answer').dataset.code"))
        for scheme in ("light", "dark"):
            picture(service, browser, directory / f"page-{scheme}.png", scheme, SIZE, SCALE)
            picture(service, browser, directory / f"page-{scheme}-whole.png", scheme, WHOLE)
            picture(service, browser, directory / f"page-{scheme}-390.png", scheme, NARROW)
        browser.open("about:blank")
        browser.open(service.page(domain="edge", rule="edge.api_token", limit="per-token", key="api_token=crawler-eu-west-3"))
        calls(service, 3)
        picture(service, browser, directory / "key-light.png", "light", WHOLE)
        browser.open("about:blank")
        browser.open(service.page(domain="edge", rule="edge.api_token"))
        calls(service, 3)
        picture(service, browser, directory / "rule-dark.png", "dark", WHOLE)
    finally:
        browser.close()
        service.close()


def picture(service, browser, path, scheme, size, scale=1):
    browser.look(scheme, *size, scale)
    browser.run("window.scrollTo(0, 0); document.activeElement.blur()")
    calls(service, 2)
    path.write_bytes(browser.picture())
