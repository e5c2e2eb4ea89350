"""Records the series that an alert looks at, minute by minute, from the real program: a scrape stands for
a minute. Not here: the faults (faults), what must be seen in a recording (test_recordings)."""

import http.client
import json
import re
import time
from contextlib import ExitStack

import yaml

import chart

SCRAPED = re.compile(r"(?P<name>[a-z_]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
# Calls of a quiet minute, to each replica, each of a client of its own.
CALLS = 10
# Hits that a client has. A year, so that no window ends in the middle of a recording.
LIMIT = 20
POLICY = f"""domain: edge
descriptors:
  - key: client
    rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}
"""
RULE = {"domain": "edge", "rule": "edge.client"}
# Metrics whose values are times. Recordings begin at the epoch, as promtool's time does.
TIMES = {"tidegate_certificate_expiry_timestamp_seconds"}


def embedded(more=None):
    """Values of an installation that counts in memory."""
    base = {"prometheusRule": {"enabled": True, "decisionP99Seconds": 0.2}, "policy": {"files": {"edge.yaml": POLICY}}}
    return chart.merged(chart.merged(chart.cases()["embedded"], base), more or {})


def counting_in(redis, more=None):
    """Values of an installation that counts in these servers, without a password. Redis has a second
    and not six milliseconds, because a test's machine may be busy and that is not the fault."""
    base = {
        "redis": {**redis, "auth": {"existingSecret": ""}, "budget": "1s"},
        "keySecret": {"existingSecret": ""},
        "prometheusRule": {"redisP99Seconds": 0.1, "decisionP99Seconds": 0.2},
        "extraEnv": [{"name": "TIDEGATE_TEST_INFO_POLL", "value": "1s"}],
        "policy": {"files": {"edge.yaml": POLICY}},
    }
    return chart.merged(chart.merged(chart.cases()["redis"], base), more or {})


def client(name):
    """A descriptor."""
    return {"entries": [{"key": "client", "value": name}]}


class Replica(chart.Running):
    """A pod, and one that calls it."""

    def __init__(self, pod, objects, more=None):
        super().__init__(objects, more)
        self.pod = pod

    def __enter__(self):
        super().__enter__()
        self.caller = self.connection()
        return self

    def __exit__(self, *_):
        self.caller.close()
        super().__exit__()

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.http, timeout=chart.PATIENCE_SECONDS)

    def send(self, *descriptors, over=None):
        """A call that nobody waits for yet, over a connection of its own; what does wait for it."""
        connection = over or self.connection()
        body = json.dumps({"domain": "edge", "descriptors": descriptors})
        connection.request("POST", "/json", body, {"Content-Type": "application/json"})

        def decided():
            reply = connection.getresponse()
            said = reply.read()
            assert reply.status in (200, 429), said
            if connection is not over:
                connection.close()

        return decided

    def ask(self, *descriptors):
        """A call, and its decision."""
        try:
            self.send(*descriptors, over=self.caller)()
        except http.client.RemoteDisconnected:
            # It was idle for so long that it was closed; of this call nothing was read.
            self.caller.close()
            self.send(*descriptors, over=self.caller)()

    def samples(self):
        """What a scrape finds: names, labels as text, values. None: it found nobody."""
        page = self.get("/metrics") if self.process.poll() is None else None
        if page is None:
            return None
        lines = [line for line in page.splitlines() if not line.startswith("#")]
        return [SCRAPED.fullmatch(line).group("name", "labels", "value") for line in lines]

    def figure(self, name, **labels):
        """A sample's value; None if there is none with these labels."""
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        for found, text, value in self.samples() or []:
            if found == name and wanted <= set((text or "").split(",")):
                return float(value)
        return None


class Recording:
    """An installation, and what Prometheus would know of it. Starts its replicas in the with-block and
    waits until they are connected to what they count in."""

    def __init__(self, values, pods="a", more=None):
        self.objects = chart.manifests(values)
        self.rules = chart.one(self.objects, "PrometheusRule")["spec"]
        self.wanted = set(chart.METRIC.findall(yaml.safe_dump(self.rules)))
        redis = values.get("redis", {})
        # Servers in which it counts: those of a cluster, one, or none.
        self.nodes = len(redis.get("cluster", {}).get("addresses", [])) or (1 if redis else 0)
        self.connections = chart.defaults()["redis"]["connections"]
        self.replicas = [Replica(pod, self.objects, more) for pod in pods]
        # Each series: its values, by minute.
        self.series = {}
        self.minutes, self.clients = 0, 0
        # The first minute with the fault, the first without it again, and spans in which all is well.
        self.broken, self.mended, self.well = None, None, []

    def __enter__(self):
        with ExitStack() as stack:
            for replica in self.replicas:
                stack.enter_context(replica)
                self.until_connected(replica)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def until_connected(self, replica):
        """Every connection to every server is open, and each server has told its own figures."""

        def is_connected():
            samples = replica.samples() or []
            connections = [int(value) for name, _, value in samples if name == "tidegate_redis_connections"]
            told = [name for name, _, _ in samples if name == "tidegate_redis_keys"]
            return connections == [self.connections] * self.nodes and len(told) == self.nodes

        chart.until("Redis is connected", is_connected)

    def newcomer(self):
        """A client who has not called yet, and so is far from its limit."""
        self.clients += 1
        return client(f"new-{self.clients}")

    def quiet(self):
        """A minute's calls, each of a new client."""
        for replica in self.replicas:
            for _ in range(CALLS):
                replica.ask(self.newcomer())

    def scrape(self):
        """Writes down a minute."""
        for replica in self.replicas:
            samples = replica.samples()
            self.note("up", None, replica.pod, "0" if samples is None else "1")
            for name, labels, value in samples or []:
                if name in TIMES:
                    value = str(float(value) - time.time() + 60 * self.minutes)
                if name in self.wanted:
                    self.note(name, labels, replica.pod, value)
        self.minutes += 1

    def note(self, name, labels, pod, value):
        added = f'namespace="{chart.NAMESPACE}",job="{chart.RELEASE}",pod="{pod}"'
        text = ",".join(filter(None, (added, labels)))
        self.series.setdefault(f"{name}{{{text}}}", {})[self.minutes] = value

    def pass_minutes(self, many, load=None):
        """So many minutes with this load in each."""
        for _ in range(many):
            (load or self.quiet)()
            self.scrape()

    def healthy(self, minutes, load=None):
        """A span in which no alert may fire."""
        began = self.minutes
        self.pass_minutes(minutes, load)
        self.well.append((began, self.minutes - 1))

    def breaks(self):
        """What comes now is the fault."""
        self.broken = self.minutes

    def mends(self):
        """The fault is over."""
        self.mended = self.minutes

    def until(self, what, look, load=None):
        """Goes on, with this load, until it holds."""

        def looks():
            if load:
                load()
            return look()

        chart.until(what, looks)

    def input_series(self):
        """As promtool takes it: a value for each minute, and the mark that Prometheus sets where a series
        is gone."""
        found = []
        for series, values in self.series.items():
            words, was_there = [], False
            for minute in range(self.minutes):
                value = values.get(minute)
                words.append(value or ("stale" if was_there else "_"))
                was_there = value is not None
            found.append({"series": series, "values": " ".join(words)})
        return found
