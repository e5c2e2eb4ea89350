"""`make install` and `cargo install`, with the debug build."""

import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
INSTALLED = {
    "bin/tidegate", "share/bash-completion/completions/tidegate", "share/fish/vendor_completions.d/tidegate.fish",
    "share/zsh/site-functions/_tidegate",
}


def run(*command, **environment):
    done = subprocess.run([str(word) for word in command], cwd=ROOT, env={**os.environ, **environment},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


class Install(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def files(self, prefix):
        return {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()}

    def test_make_install_puts_program_pages_and_completions_below_destdir_and_prefix(self):
        for _ in range(2):  # a second run replaces the first
            run("make", "install", "PROFILE=dev", f"DESTDIR={self.directory}", "PREFIX=/opt/tide gate")
        prefix = self.directory / "opt" / "tide gate"
        files = self.files(prefix)
        self.assertLessEqual(INSTALLED, files)
        self.assertIn("tidegate ", run(prefix / "bin/tidegate", "--version"))
        commands = {path for path in files - INSTALLED if path.startswith("share/man/man1/tidegate")}
        self.assertEqual(files - INSTALLED, commands)
        self.assertIn("share/man/man1/tidegate-serve.1", commands)
        run("bash", "-n", prefix / "share/bash-completion/completions/tidegate")

    def test_cargo_install_works_in_the_repository(self):
        run("cargo", "install", "--path", ".", "--locked", "--debug", "--quiet", "--root", self.directory,
            "--target-dir", os.environ.get("CARGO_TARGET_DIR", "target"))
        self.assertIn("tidegate ", run(self.directory / "bin/tidegate", "--version"))
