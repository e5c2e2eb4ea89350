"""A made-up hour of /history, with a flood that began ten minutes ago."""

# Runs in the page before its own script: a test cannot wait for an hour to pass.
SCRIPT = """
(() => {
  const real = window.fetch;
  window.fetch = async (path, options) => {
    const response = await real(path, options);
    if (!String(path).startsWith('history') || !response.ok) return response;
    const body = await response.json(), count = 360, last = Math.floor(Date.now() / 10000) * 10000;
    const fill = value => Array.from({ length: count }, (_, at) => Math.round(value(at, at >= 300) * 10) / 10);
    const wave = (at, base) => base * (1 + 0.15 * Math.sin(at / 9) + 0.06 * Math.sin(at * 1.7));
    const rejected = fill((at, isFlood) => isFlood ? wave(at, 110) : 0);
    body.at_ms = fill(at => last - (count - 1 - at) * 10000);
    body.admitted_per_second = fill(at => wave(at, 40));
    body.rejected_per_second = rejected;
    body.would_be_rejected_per_second = fill(at => at > 200 ? 3 : 0);
    body.errors_per_second = fill(() => 0);
    body.without_limit_per_second = fill(() => 0);
    body.p50_ms = fill(() => 0.1);
    body.p99_ms = fill((at, isFlood) => isFlood ? 2.5 : 1);
    body.without_redis_share = body.at_ms.map(() => null);
    body.rules = [{ domain: 'edge', rule: 'edge.api_token', calls_per_second: fill((at, isFlood) => wave(at, isFlood ? 130 : 20)),
      rejected_per_second: rejected, would_be_rejected_per_second: fill(() => 0) }];
    return new Response(JSON.stringify(body), { headers: { 'content-type': 'application/json' } });
  };
})();
"""


def began_at(browser):
    """When the page must say that it began, as it writes times."""
    return browser.run("""
        const last = Math.floor(Date.now() / 10000) * 10000 - 60 * 10000;
        return [0, -10000].map(later => new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' }).format(last + later))""")


def inject(browser):
    """Returns what `remove` needs."""
    return browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=SCRIPT)["identifier"]


def remove(browser, identifier):
    browser.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=identifier)
