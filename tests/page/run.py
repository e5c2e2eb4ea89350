"""Runs the live page's tests in a headless Chromium; with --pictures DIRECTORY also takes its pictures.
Ends with one line that says how many passed."""

import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

if "--pictures" in sys.argv:
    import pictures
    pictures.take(pathlib.Path(sys.argv[sys.argv.index("--pictures") + 1]))

tests = unittest.defaultTestLoader.discover(str(HERE))
result = unittest.TextTestRunner(verbosity=2).run(tests)
failed = len({test.id().split(" ")[0] for test, _ in result.failures + result.errors})
print(f"page: {result.testsRun - failed} passed, {failed} failed")
sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)
