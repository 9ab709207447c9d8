import os
import re
import subprocess
import sys
import unittest

import refold
from fixtures import LLAMA


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class ProgramTest(unittest.TestCase):
    def test_both_ways_to_start_it(self):
        script = os.path.join(os.path.dirname(sys.executable), "refold")
        for command in [(sys.executable, "-I", "-m", "refold"), (script,)]:
            self.assertEqual(run(*command, "--version").stdout.strip(), f"refold {refold.version()}")
            self.assertEqual(run(*command, "no-such-verb").returncode, 2)
            self.assertIn("llama", run(*command, "inspect", LLAMA).stdout)

    def test_it_uses_the_libraries_of_the_package(self):
        command = [sys.executable, "-I", "-m", "refold", "run", LLAMA, "-p", "The", "-n", "1", "-t", "1"]
        shown = subprocess.run(command, env={**os.environ, "LD_DEBUG": "files"}, capture_output=True)
        package = os.path.dirname(os.path.realpath(refold.__file__))
        loaded = re.findall(
            r"calling init: (\S*/lib(?:llama|ggml)[^/\s]*)", shown.stderr.decode(errors="replace")
        )
        self.assertTrue(any("libggml-cpu" in path for path in loaded), loaded)
        for path in loaded:
            self.assertTrue(os.path.realpath(path).startswith(package + os.sep), path)

    def test_version(self):
        self.assertEqual(refold.__version__, refold.version())


if __name__ == "__main__":
    unittest.main()
