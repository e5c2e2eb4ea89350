"""Runs the tests of what surrounds the program, and ends with one line that says how many passed."""

import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
tests = unittest.defaultTestLoader.discover(str(HERE))
result = unittest.TextTestRunner(verbosity=2).run(tests)
failed = len({test.id().split(" ")[0] for test, _ in result.failures + result.errors})
print(f"packaging: {result.testsRun - failed} passed, {failed} failed")
sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)
