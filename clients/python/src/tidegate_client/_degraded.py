"""Says in the log when requests pass (or are denied) without a decision, why, and when that ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ._decision import Failure
from ._diagnosis import Endpoint

_LOG = logging.getLogger("tidegate_client")
PASSING = "degraded: requests pass without a decision"
DENYING = "degraded: requests are denied without a decision"
END = "no longer degraded: the rate limit service decides again"
# Failures that begin within this time after those that were logged are not logged: where single calls fail among
# others, the log has two lines a minute.
_QUIET_SECONDS = 60.0


class Outage:
    """Which failures are logged: of each kind the first. `now` is in seconds, from any start."""

    def __init__(self) -> None:
        self.failed_calls = 0
        self.since: float | None = None
        self._kinds = set()
        self._logged_at: float | None = None

    def fail(self, kind, now: float) -> bool:
        """Counts a failed call; returns whether to log it."""
        self.failed_calls += 1
        if self.since is None:
            self.since = now
        if kind in self._kinds:
            return False
        if not self._kinds:
            if self._logged_at is not None and now - self._logged_at < _QUIET_SECONDS:
                return False
            self._logged_at = now
        self._kinds.add(kind)
        return True

    def end(self, now: float) -> tuple[int, float] | None:
        """There is a decision again. Returns the failed calls and the seconds since the first, if they were logged;
        others are counted with the next."""
        since, self.since = self.since, None
        if since is None or not self._kinds:
            return None
        failed_calls, self.failed_calls = self.failed_calls, 0
        self._kinds.clear()
        return failed_calls, now - since


class Degraded:
    """Logs failures and their end. The diagnosis of a failure runs in a thread, because it takes up to six seconds; the
    process ends after it."""

    def __init__(self, endpoint: Endpoint, domain: str, fails_open: bool) -> None:
        self._endpoint = endpoint
        self._domain = domain
        self._phrase = PASSING if fails_open else DENYING
        # A handler of the log may use the client itself.
        self._lock = threading.RLock()
        self._outage = Outage()
        # What is being diagnosed, each with a function for the reason that is known without.
        self._pending: dict[object, Callable[[], str]] = {}
        # Reasons in the log since the outage began: two kinds of failures can have the same.
        self._logged: set[str] = set()
        self.active = False

    def fail(self, failure: Failure, method: str) -> None:
        kind = (failure.kind, failure.code)
        with self._lock:
            self.active = True
            if not self._outage.fail(kind, time.monotonic()):
                return
            token = object()
            self._pending[token] = lambda: self._endpoint.reason(failure, method)
        try:
            threading.Thread(target=self._diagnose, args=(token, failure, method), name="tidegate-diagnosis").start()
        except RuntimeError:
            self.flush()  # no thread can be started, for example because the process ends

    def end(self) -> None:
        """There is a decision again."""
        with self._lock:
            self.active = False
            self.flush()
            self._logged.clear()
            if ended := self._outage.end(time.monotonic()):
                _LOG.warning('%s failed_calls=%d seconds=%.1f address=%s domain=%s', END, *ended,
                             self._endpoint.address, self._domain)

    def flush(self) -> None:
        """Logs what is still being diagnosed, without its diagnosis."""
        with self._lock:
            for token in list(self._pending):
                self._log(token, None)

    def _diagnose(self, token: object, failure: Failure, method: str) -> None:
        reason = None
        try:
            reason = self._endpoint.diagnose(failure, method)
        finally:
            with self._lock:
                self._log(token, reason)

    def _log(self, token: object, reason: str | None) -> None:
        known = self._pending.pop(token, None)
        if known is None:
            return
        reason = reason or known()
        if reason not in self._logged:
            self._logged.add(reason)
            _LOG.warning('%s reason="%s" address=%s domain=%s', self._phrase, reason, self._endpoint.address,
                         self._domain)
