"""Acts as a new user who follows nothing but the README: types its commands, from the clone to an Envoy
that limits, each terminal of the page in a shell of its own, and tells how long each wait was.

What is followed is what is committed, since that is what a clone gets. The build is told apart: it depends
on the machine, and takes over what target/ holds. Needs the README's ports (8081, 8080, 6070, 8000, 10000,
9901). Not here: whether the other blocks of the pages work (tests/it/docs/code_blocks.rs)."""

import argparse
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PORTS = (8081, 8080, 6070, 8000, 10000, 9901)
# What the page promises: everything but the build.
WAITS_SECONDS_MAX = 600
# Only something broken takes longer for one step, or a build on a very busy machine.
STEP_SECONDS_MAX = 600
BUILD_SECONDS_MAX = 3600
# What make prints once the build is over: the command that it runs then.
BUILT = "target/release/tidegate serve"
# Commands that keep their terminal, and what they say once they can be used.
STAY = {"make run": "ready", "python3 -m http.server": "Serving HTTP", "make envoy": "starting main dispatch loop"}


def committed(path):
    return subprocess.run(["git", "show", f"HEAD:{path}"], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def terminals(page):
    """The commands of each shell block up to the last one for newcomers."""
    blocks = re.findall(r"^```sh (newcomer|run)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    last = max(at for at, (kind, _) in enumerate(blocks) if kind == "newcomer")
    return [text.splitlines() for _, text in blocks[:last + 1]]


class Newcomer:
    def __init__(self, home):
        self.directory = pathlib.Path(home)
        self.started, self.waits, self.build_seconds = [], [], 0.0
        # A page's commands may print what is read here: no buffering, no colours of a terminal.
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1", "CARGO_TERM_COLOR": "never"}

    def type(self, line):
        """Types a command, and returns what it printed once it ended or can be used."""
        if line.startswith("cd "):
            self.directory /= line[3:]
            self.take_over_the_build()
            return ""
        line = line.replace("REPOSITORY", str(ROOT))
        began = time.monotonic()
        log = tempfile.NamedTemporaryFile(mode="r")
        shell = subprocess.Popen(["bash", "-c", line], cwd=self.directory, env=self.environment,
                                 stdin=subprocess.DEVNULL, stdout=log.file.fileno(), stderr=subprocess.STDOUT,
                                 start_new_session=True)
        self.started.append((shell, log))
        said = next((said for start, said in STAY.items() if line.startswith(start)), None)
        if line.startswith("make run"):
            self.until(f"{line}: the build", shell, log, BUILT, BUILD_SECONDS_MAX)
            self.build_seconds = time.monotonic() - began
            began = time.monotonic()
        text = self.until(line, shell, log, said, STEP_SECONDS_MAX)
        self.waits.append((time.monotonic() - began, line.replace(str(ROOT), "REPOSITORY")))
        return text

    def take_over_the_build(self):
        if (ROOT / "target").exists() and not (self.directory / "target").exists():
            (self.directory / "target").symlink_to(ROOT / "target")

    @staticmethod
    def until(what, shell, log, said, seconds):
        """What it printed by the time when it said this or, if nothing is given, when it ended well."""
        deadline = time.monotonic() + seconds
        while True:
            code = shell.poll()
            text = pathlib.Path(log.name).read_text(errors="replace")
            if said is not None and said in text or said is None and code == 0:
                return text
            assert code is None, f"{what}: ended with {code}:\n{text[-4000:]}"
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s:\n{text[-4000:]}"
            time.sleep(0.05)

    def leave(self):
        for shell, log in reversed(self.started):
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
            log.close()


def follow(newcomer):
    pages = terminals(committed("README.md"))
    for commands in pages[:-1]:
        for line in commands:
            newcomer.type(line)
    # Envoy lets pass what it gets no answer for in 20 ms, as from a busy machine: then one asks again.
    deadline = time.monotonic() + STEP_SECONDS_MAX
    while True:
        codes, refused = (newcomer.type(line).lower() for line in pages[-1])
        assert set(codes.split()) <= {"200", "429"}, codes
        if "200" in codes and " 429 " in refused and "retry-after: " in refused:
            return codes.split()
        assert time.monotonic() < deadline, f"no refusal: {codes}\n{refused}"


def free(port):
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return listener.connect_ex(("127.0.0.1", port)) != 0


def machine():
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    return (f"machine: {os.cpu_count()} cores, {model.group(1) if model else 'unknown'}; load {os.getloadavg()[0]:.1f}; "
            f"commit {commit.stdout.strip()}")


def report(newcomer, codes):
    lines = ["As a new user, by the README's commands alone (make newcomer); waits in seconds.", machine(),
             "Downloads took what the network and the caches of cargo and pip on this machine made of them."]
    lines += [f"{seconds:7.1f}  {line}" for seconds, line in newcomer.waits]
    total = sum(seconds for seconds, _ in newcomer.waits)
    lines.append(f"{total:7.1f}  in all, beside {newcomer.build_seconds:.0f} of building with what target/ held")
    lines.append(f"answers through Envoy: {' '.join(codes)}")
    return total, "\n".join(lines)


parser = argparse.ArgumentParser(description="Follow the README as a new user.")
parser.add_argument("--record", metavar="FILE", help="keep what is printed")
given = parser.parse_args()
taken = [port for port in PORTS if not free(port)]
if taken:
    sys.exit(f"newcomer: the README's ports are taken: {taken}")
for program in ("git", "make", "bash", "curl"):
    if not shutil.which(program):
        sys.exit(f"newcomer: {program} is missing (Debian: apt-get install {program})")
with tempfile.TemporaryDirectory() as home:
    user = Newcomer(home)
    try:
        waited, text = report(user, follow(user))
    finally:
        user.leave()
print(text)
if given.record:
    pathlib.Path(given.record).write_text(text + "\n")
if waited > WAITS_SECONDS_MAX:
    sys.exit(f"newcomer: {waited:.0f} s of waiting, more than {WAITS_SECONDS_MAX}")
print("newcomer: an Envoy that limits, within ten minutes of waiting")
