import os
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

    def test_version(self):
        self.assertEqual(refold.__version__, refold.version())


if __name__ == "__main__":
    unittest.main()
