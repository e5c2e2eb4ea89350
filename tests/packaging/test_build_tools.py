"""The Makefile, the workflows, and the scripts around the program keep what they promise."""

import json
import os
import pathlib
import re
import subprocess
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A step of a workflow: one target with its variables, or one tool.
STEP = re.compile(r"make ([a-z-]+)( [A-Z_]+=\S+)*|\.ci/tools [a-z]+")


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns], cwd=ROOT,
                            check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.split("\n")[:-1] if (ROOT / name).exists()]


def targets():
    return re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)


def workflows():
    """The parsed workflows by name."""
    return {path.name: yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github/workflows").glob("*.yml"))}


def steps():
    """Every command of every workflow, with the values of its matrix filled in."""
    for name, workflow in workflows().items():
        for job in workflow["jobs"].values():
            matrix = job.get("strategy", {}).get("matrix", {})
            for step in job["steps"]:
                command = step.get("run")
                for key, values in matrix.items():
                    if command and f"matrix.{key}" in command:
                        yield from ((name, command.replace(f"${{{{ matrix.{key} }}}}", value)) for value in values)
                        command = None
                if command:
                    yield name, command


class Makefile(unittest.TestCase):
    def dry_run(self, target, *variables):
        inherited = {name: value for name, value in os.environ.items() if name not in ("CARGO_TARGET_DIR", "MAKEFLAGS")}
        done = subprocess.run(["make", "--dry-run", "--always-make", target, *variables], cwd=ROOT, env=inherited,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_every_target_uses_the_directory_of_cargo_target_dir(self):
        self.assertIn("target/release/tidegate serve", self.dry_run("run"))
        self.assertIn("/elsewhere/release/tidegate serve", self.dry_run("run", "CARGO_TARGET_DIR=/elsewhere"))
        for target in targets():
            with self.subTest(target):
                self.assertNotRegex(self.dry_run(target, "CARGO_TARGET_DIR=/elsewhere"), r"(?<![\w/.-])target/")

    def test_no_script_assumes_the_directory(self):
        # This file searches for it, and the README's reader has no CARGO_TARGET_DIR.
        exempt = {"tests/packaging/test_build_tools.py", "tests/newcomer/run.py"}
        for name in set(tracked("Makefile", ".ci/*", "tests/*.py", "load/*")) - exempt:
            if name.endswith((".txt", ".md", ".svg")):
                continue
            for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
                code = line.split("##")[0]
                if code.lstrip().startswith(("#", '"""')) or "CARGO_TARGET_DIR" in code:
                    continue
                with self.subTest(f"{name}:{number}: {line.strip()}"):
                    self.assertNotRegex(code, r'ROOT / "target"|(?<![\w/.$-])target/(debug|release)\b')

    def test_requirements_come_from_the_index_with_hashes(self):
        files = tracked("*requirements*.txt")
        self.assertGreater(len(files), 3)
        for name in files:
            lines = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
            for line in filter(lambda line: line.strip() and not line.startswith("#"), lines):
                with self.subTest(f"{name}: {line[:60]}"):
                    self.assertRegex(line, r"^[A-Za-z0-9._-]+==\S+ .*--hash=sha256:[0-9a-f]{64}")

    def test_npm_packages_come_from_the_registry_of_the_machine_with_hashes(self):
        lock = json.loads((ROOT / "tests/clients/node/package-lock.json").read_text())
        packages = {name: package for name, package in lock["packages"].items() if name}
        self.assertGreater(len(packages), 2)
        for name, package in packages.items():
            with self.subTest(name):
                self.assertNotIn("resolved", package)
                self.assertRegex(package["integrity"], r"^sha512-")


class Workflows(unittest.TestCase):
    def test_a_step_is_a_target_of_the_makefile_and_nothing_else(self):
        found = list(steps())
        self.assertTrue(found)
        for name, command in found:
            with self.subTest(f"{name}: {command}"):
                step = STEP.fullmatch(command)
                self.assertTrue(step)
                if step[1]:
                    self.assertIn(step[1], targets())

    def test_they_run_every_check_of_ci_run(self):
        # In the background, `ci-` targets only install.
        step = r"^(?:(?:background \w+ )?make --no-print-directory (?!ci-)|(?=\.ci/tools))(.+)$"
        local = re.findall(step, (ROOT / ".ci/run").read_text(), re.MULTILINE)
        self.assertGreater(len(local), 9)
        remote = {command.removeprefix("make ") for _, command in steps()}
        self.assertEqual(set(local) - remote, set())

    def test_actions_are_official_and_pinned(self):
        for name, workflow in workflows().items():
            self.assertEqual(workflow["permissions"], {"contents": "read"}, name)
            for job in workflow["jobs"].values():
                self.assertIn("timeout-minutes", job, name)
                for step in job["steps"]:
                    if "uses" in step:
                        self.assertRegex(step["uses"], r"^actions/[a-z-]+@v\d+$", name)
