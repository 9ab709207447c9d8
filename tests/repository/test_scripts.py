import os
import re
import subprocess
import unittest

from commands import ROOT, read


class ScriptsTest(unittest.TestCase):
    def test_say_what_they_do_and_do_nothing_else(self):
        """--help of every script in bash, from another folder than the repository's root."""
        folder = os.path.join(ROOT, "scripts")
        for name in sorted(os.listdir(folder)):
            text = read("scripts", name)
            if not text.startswith("#!/usr/bin/env bash"):
                continue
            with self.subTest(name):
                asked = subprocess.run([f"./{name}", "--help"], cwd=folder, capture_output=True, text=True, timeout=10)
                self.assertEqual((asked.returncode, asked.stderr), (0, ""))
                self.assertIn(f"usage: scripts/{name}", asked.stdout)
                self.assertFalse(re.search(r"^(set -|cd )", asked.stdout, re.MULTILINE), "code, not what it does")


if __name__ == "__main__":
    unittest.main()
