"""Tries what `make release` built, as those who get it would: with a registry, Skopeo, umoci, Helm, and QEMU.

    python tests/release/run.py DIR

Needs root, for chroot and for a name server on port 53 of a loopback address. Lists the artefacts at the end, and
its last line says how many tests passed."""

import os
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import release  # noqa: E402

assert os.geteuid() == 0, "chroot needs root: sudo make release-test"
release.ARTEFACTS = pathlib.Path(sys.argv[1]).resolve()
tests = unittest.defaultTestLoader.discover(str(HERE))
result = unittest.TextTestRunner(verbosity=2).run(tests)
failed = len({test.id().split(" ")[0] for test, _ in result.failures + result.errors})
print(release.listing())
print(f"release: {result.testsRun - failed} passed, {failed} failed")
sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)
