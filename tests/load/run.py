"""The load tools against a Tidegate, a moment each: every ghz profile gets only decisions, k6's scenarios
see both answers, the generator reports all that it promises and finds no hit beyond the limit. Rates and
times are not judged."""

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from processes import DEBUG, PATIENCE_SECONDS, PROGRAM, ROOT, free_port  # noqa: E402

K6 = pathlib.Path(sys.executable).parent / "k6"


class Load(unittest.TestCase):
    def setUp(self):
        ports = {name: free_port() for name in ("GRPC_PORT", "HTTP_PORT", "DEBUG_PORT")}
        given = {f"TIDEGATE_{name}": str(port) for name, port in ports.items()}
        log = tempfile.TemporaryFile()
        self.tidegate = subprocess.Popen([PROGRAM, "serve", "--policy", str(ROOT / "load/ghz/policy.yaml")],
                                         env=given, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for clean in (log.close, self.tidegate.wait, self.tidegate.kill):
            self.addCleanup(clean)
        self.target = f"127.0.0.1:{ports['GRPC_PORT']}"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{ports['HTTP_PORT']}/readyz", timeout=5).close()
                return
            self.assertLess(time.monotonic(), deadline, "still waiting until it is ready")
            time.sleep(0.02)

    def ran(self, *command):
        ran = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True,
                             stdin=subprocess.DEVNULL, timeout=PATIENCE_SECONDS)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        return ran.stdout

    def test_every_ghz_profile_is_answered_with_decisions_only(self):
        said = self.ran("load/ghz/run", "--target", self.target, "--seconds", "1", "--strict")
        profiles = {path.stem for path in (ROOT / "load/ghz").glob("*.json")}
        self.assertEqual({line.split()[0] for line in said.splitlines()}, profiles)

    def test_the_scenarios_of_k6_pass_their_thresholds(self):
        with tempfile.NamedTemporaryFile(suffix=".json") as summary:
            self.ran(K6, "run", "--quiet", "--no-usage-report", "--summary-export", summary.name,
                     "-e", f"TARGET={self.target}", "-e", "SECONDS=2", "load/k6/limits.js")
            metrics = json.load(summary)["metrics"]
        self.assertGreater(metrics["admitted"]["count"], 0)
        self.assertGreater(metrics["refused"]["count"], 0)

    def test_the_generator_reports_what_it_promises_and_no_hit_beyond_the_limit(self):
        # Of 4 values 100 calls a second are asked for, and 5 a second and 10 at once are granted.
        said = self.ran(DEBUG / "examples" / "generator", "--target", self.target, "--rate", "400", "--seconds", "2",
                        "--keys", "4", "--limit", "5", "--burst", "10", "--pid", self.tidegate.pid, "--json")
        report = json.loads(said)
        self.assertEqual((report["decisions"], report["failed"], report["not_sent"]), (800, 0, 0))
        self.assertGreater(report["refused"], 600)
        self.assertTrue(report["p50_us"] <= report["p99_us"] <= report["p999_us"] <= report["max_us"])
        self.assertGreater(report["cpu_us_per_decision"], 0)
        # The last answers come a little after the last call is due: less than one hit's time a value.
        self.assertLessEqual(report["admitted_beyond_limit"], 4)


result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Load))
failed = len(result.failures) + len(result.errors)
print(f"load: {result.testsRun - failed} passed, {failed} failed")
sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)
