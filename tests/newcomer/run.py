"""Follows the README as a new user, and then the three pages that docs/README.md lists next for somebody who tries Tidegate:
runs every block of the committed pages, in order, from the clone to an Envoy that limits and to policies of one's own, and
reports how long each command took.

- `sh newcomer`, `sh run`: each line is typed; a server is waited for until it is ready.
- `text output`: what the command before it printed last, except for numbers.
- `yaml policy`: passes `tidegate check --strict`. `yaml test`: passes `tidegate test` next to config/first.yaml.
- `yaml envoy`: each item is in config/envoy.yaml.
- `text`: a drawing. Indented blocks are not run; they must not begin with a command, except for kubectl and helm, which
  every reader knows to need a cluster.

The build time is reported separately: it depends on the machine, and the build reuses target/. Needs the README's ports.
--debug uses the debug build, to work on the pages. Not here: the blocks of the other pages (tests/it/docs/code_blocks.rs)."""

import argparse
import filecmp
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
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
PORTS = (8081, 8080, 6070, 8000, 10000, 9901)
# Everything but the build takes at most ten minutes.
WAITS_SECONDS_MAX = 600
# Only a broken step takes longer, or a build on a very busy machine.
STEP_SECONDS_MAX = 600
BUILD_SECONDS_MAX = 3600
# make prints this, after the directory, when the build is finished.
BUILT = "/tidegate serve"
# Servers, and what they print when they are ready.
SERVERS = {"make run": "ready", "python3 -m http.server": "Serving HTTP", "make envoy": "starting main dispatch loop"}
# How many pages follow the README.
PAGES = 3
COMMANDS = ("cargo", "curl", "docker", "git", "make", "python3", "redis-cli", "tidegate")
# Printed after a command that may change the directory or the environment.
SHELL_STATE = r""" && printf '\001%s\001%s' "$PWD" "$PATH" """


def committed(path):
    return subprocess.run(["git", "show", f"HEAD:{path}"], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def blocks(page):
    """The kind and the text of every fenced block."""
    return re.findall(r"^```([^\n]*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def indented(page):
    """The first line of every block that is indented instead of fenced."""
    outside = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^\n {4}(\S.*)$", outside, re.MULTILINE)


def pages():
    """The README, and the pages after it that docs/README.md lists for somebody who tries Tidegate."""
    section = committed("docs/README.md").split("\n## Try it\n")[1].split("\n## ")[0]
    links = re.findall(r"^\d+\. \[[^]]+\]\(([^)#]+)", section, re.MULTILINE)
    readme, *others = (os.path.normpath(f"docs/{link}") for link in links)
    assert readme == "README.md" and len(others) >= PAGES, f"docs/README.md begins with {readme} and {others}"
    return [readme, *others[:PAGES]]


def without_numbers(text):
    return re.sub(r"\d+", "#", text)


def keep_times(clone):
    """Gives what is as in this checkout its time, because cargo builds again what is newer than its build."""
    for path in (clone, *clone.rglob("*")):
        here = ROOT / path.relative_to(clone)
        if here.is_dir() and path.is_dir() or here.is_file() and path.is_file() and filecmp.cmp(here, path, shallow=False):
            times = here.stat()
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


class Newcomer:
    def __init__(self, home, profile):
        self.directory = pathlib.Path(home)
        self.profile = profile
        self.started, self.waits, self.build_seconds, self.printed = [], [], 0.0, ""
        # Output is read from files: no buffering, no colours.
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1", "CARGO_TERM_COLOR": "never"}
        # The README puts target/ on the PATH.
        self.environment.pop("CARGO_TARGET_DIR", None)
        if profile == "debug":
            self.environment["PROFILE"] = "dev"

    def type(self, line):
        """Runs a command, and returns its output when it has finished or, if it is a server, is ready."""
        command = re.sub(r"^git clone \S+", f"git clone {ROOT}", line).replace("target/release", f"target/{self.profile}")
        changes_shell = "cd " in line or line.startswith("export ")
        began = time.monotonic()
        log = tempfile.NamedTemporaryFile(mode="r")
        shell = subprocess.Popen(["bash", "-c", command + (SHELL_STATE if changes_shell else "")], cwd=self.directory,
                                 env=self.environment, stdin=subprocess.DEVNULL, stdout=log.file.fileno(),
                                 stderr=subprocess.STDOUT, start_new_session=True)
        self.started.append((shell, log))
        ready = next((ready for start, ready in SERVERS.items() if line.startswith(start)), None)
        if line.startswith("make run"):
            self.until(f"{line}: the build", shell, log, BUILT, BUILD_SECONDS_MAX)
            self.build_seconds = time.monotonic() - began
            began = time.monotonic()
        self.printed = self.until(line, shell, log, ready, STEP_SECONDS_MAX)
        self.waits.append((time.monotonic() - began, line))
        if changes_shell:
            self.printed, directory, self.environment["PATH"] = self.printed.split("\001")
            self.directory = pathlib.Path(directory)
            self.reuse_build()
        return self.printed

    def reuse_build(self):
        if (self.directory / "Cargo.toml").exists() and TARGET.exists() and not (self.directory / "target").exists():
            keep_times(self.directory)
            (self.directory / "target").symlink_to(TARGET)

    @staticmethod
    def until(what, shell, log, ready, seconds):
        """The output at the moment when it contains `ready` or, without that, when the command has succeeded."""
        deadline = time.monotonic() + seconds
        while True:
            code = shell.poll()
            text = pathlib.Path(log.name).read_text(errors="replace")
            if ready is not None and ready in text or ready is None and code == 0:
                return text
            assert code is None, f"{what}: exited with {code}:\n{text[-4000:]}"
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s:\n{text[-4000:]}"
            time.sleep(0.05)

    def try_file(self, command, text):
        """Runs a command on a file that is next to config/first.yaml."""
        with tempfile.NamedTemporaryFile(mode="w", suffix=".yaml", dir=self.directory / "config") as file:
            file.write(text)
            file.flush()
            self.type(f"{command} {file.name}")
            self.waits.pop()

    def leave(self):
        for shell, log in reversed(self.started):
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
            log.close()


def ask_until_rejected(newcomer, lines):
    """Types the requests through Envoy, and returns their status codes once one is 429.

    Envoy lets a request pass if no answer arrives within 20 ms, as on a busy machine: then they are sent again."""
    deadline = time.monotonic() + STEP_SECONDS_MAX
    while True:
        codes, rejected = (newcomer.type(line).lower() for line in lines)
        assert set(codes.split()) <= {"200", "429"}, codes
        if "200" in codes and " 429 " in rejected and "retry-after: " in rejected:
            return codes.split()
        assert time.monotonic() < deadline, f"no rejection: {codes}\n{rejected}"


def check_envoy_lines(text):
    """Each item of the block is in the configuration that `make envoy` starts."""
    def joined(yaml):
        lines = (line.strip() for line in yaml.splitlines())
        return "\n".join(line for line in lines if line and not line.startswith("#"))
    for item in re.split(r"^(?=- )", text, flags=re.MULTILINE)[1:]:
        assert joined(item) in joined(committed("config/envoy.yaml")), f"not in config/envoy.yaml:\n{item}"


def follow(newcomer, page):
    """Runs every block of a page; returns the status codes of the requests through Envoy, if it sends some."""
    codes = None
    text_of_page = committed(page)
    for line in indented(text_of_page):
        assert line.split()[0] not in COMMANDS, f"{page}: a command that is not run: {line}"
    for kind, text in blocks(text_of_page):
        if kind in ("sh newcomer", "sh run") and "curl" in text:
            codes = ask_until_rejected(newcomer, text.splitlines())
        elif kind in ("sh newcomer", "sh run"):
            for line in text.splitlines():
                newcomer.type(line)
        elif kind == "text output":
            assert without_numbers(newcomer.printed).endswith(without_numbers(text)), newcomer.printed
        elif kind == "yaml policy":
            newcomer.try_file("tidegate check --strict", text)
        elif kind == "yaml test":
            newcomer.try_file("tidegate test", text)
        elif kind == "yaml envoy":
            check_envoy_lines(text)
        else:
            assert kind == "text", f"{page}: a block that is not followed: {kind!r}"
    return codes


def free(port):
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return listener.connect_ex(("127.0.0.1", port)) != 0


def machine():
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    return (f"machine: {os.cpu_count()} cores, {model.group(1) if model else 'unknown'}; load {os.getloadavg()[0]:.1f}; "
            f"commit {commit.stdout.strip()}")


def report(newcomer, codes, where):
    lines = [f"Every command of {', '.join(pages())}, typed as a new user (make newcomer); waits in seconds.", where,
             "Downloads depend on the network and on the caches of cargo and pip on this machine."]
    lines += [f"{seconds:7.1f}  {line}" for seconds, line in newcomer.waits]
    total = sum(seconds for seconds, _ in newcomer.waits)
    lines.append(f"{total:7.1f}  in total, without {newcomer.build_seconds:.0f} s of building with the existing target/")
    lines.append(f"responses through Envoy: {' '.join(codes)}")
    return total, "\n".join(lines)


parser = argparse.ArgumentParser(description="Follow the README and the first pages as a new user.")
parser.add_argument("--record", metavar="FILE", help="write the report to this file")
parser.add_argument("--debug", action="store_true", help="use the debug build")
given = parser.parse_args()
taken = [port for port in PORTS if not free(port)]
if taken:
    sys.exit(f"newcomer: ports of the README are in use: {taken}")
for program in ("git", "make", "bash", "curl"):
    if not shutil.which(program):
        sys.exit(f"newcomer: {program} is missing (Debian: apt-get install {program})")
# Before the clone: the commit that is followed.
where = machine()
with tempfile.TemporaryDirectory() as home:
    user = Newcomer(home, "debug" if given.debug else "release")
    try:
        codes, *_ = [follow(user, page) for page in pages()]
        assert codes is not None, "the README sends no request through Envoy"
        waited, text = report(user, codes, where)
    finally:
        user.leave()
print(text)
if given.record:
    pathlib.Path(given.record).write_text(text + "\n")
if waited > WAITS_SECONDS_MAX:
    sys.exit(f"newcomer: {waited:.0f} s of waiting, more than {WAITS_SECONDS_MAX}")
print("newcomer: an Envoy that limits, and every block of the first pages, within ten minutes of waiting")
