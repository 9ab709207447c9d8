import os
import shutil
import subprocess
import tempfile
import unittest

from commands import ROOT

# A program that writes its arguments into calls.txt and every output that it is asked for.
REFOLD = """#!/usr/bin/env bash
echo "$*" >>calls.txt
case $1 in
    pull) echo "$PWD/model.gguf" ;;
    quantize | imatrix | fit | compress) while (($# > 1)); do [[ $1 != -o ]] || echo x >"$2"; shift; done ;;
    *) echo '{}' ;;
esac
"""
REQUANTIZE = '#!/usr/bin/env bash\necho x >"$2"\n'
BUILD = """#!/usr/bin/env bash
echo "[setup   0s] llama.cpp: ready" >&2
for ((i = 1; i <= 50; ++i)); do echo "[$i/50] Building CXX object number $i"; done
[[ -z ${BROKEN:-} ]] || { echo "error: broken"; exit 1; }
"""


class DemoTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        for name in ("scripts/demo", "bench/demo"):
            os.makedirs(self.path(os.path.dirname(name)), exist_ok=True)
            shutil.copy(os.path.join(ROOT, name), self.path(name))
        self.program("scripts/build", BUILD)
        open(self.path("model.gguf"), "w").close()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def program(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w") as file:
            file.write(text)
        os.chmod(self.path(name), 0o755)

    def install(self):
        self.program("build/release/bin/refold", REFOLD)
        self.program("build/release/bin/refold_requantize", REQUANTIZE)

    def demo(self, **variables):
        environment = {**os.environ, "REFOLD_CACHE": self.path("cache"), **variables}
        return subprocess.run([self.path("scripts/demo")], env=environment, capture_output=True, text=True)

    def rounds(self):
        with open(self.path("calls.txt")) as file:
            return [line.split(" --rounds ")[1].split()[0] for line in file if line.startswith("bench ")]

    def test_says_first_how_long_it_takes(self):
        first = self.demo().stderr.splitlines()[0]
        for part in ("llama.cpp", "compiling", "making", "measuring"):
            self.assertIn(part, first)
        os.makedirs(self.path("cache/llama.cpp-1"))
        self.install()
        first = self.demo().stderr.splitlines()[0]
        self.assertNotIn("compiling", first)
        self.assertIn("making", first)
        self.assertIn("the models are made", self.demo().stderr.splitlines()[0])

    def made(self):
        """The files that the calls since the last time made."""
        with open(self.path("calls.txt")) as file:
            words = [line.split() for line in file if line.split()[0] in ("quantize", "fit", "compress")]
        os.remove(self.path("calls.txt"))
        return [os.path.basename(line[line.index("-o") + 1]) for line in words]

    def test_keeps_what_is_made(self):
        self.install()
        every = ["dense.gguf", "fit.gguf", "shared.gguf", "shared-refit.gguf"]
        self.demo()
        self.assertEqual(self.made(), every)
        again = self.demo()
        self.assertEqual(self.made(), [])
        self.assertIn("shared-refit ", again.stdout)
        os.remove(self.path("build/demo/shared.gguf"))  # as if interrupted there
        self.demo()
        self.assertEqual(self.made(), ["shared.gguf"])
        self.demo(TOKENS="4096")
        self.assertEqual(self.made(), every[1:])
        self.program("build/release/bin/refold", REFOLD + "# another program\n")
        self.demo(TOKENS="4096")
        self.assertEqual(self.made(), every[1:])
        with open(self.path("model.gguf"), "w") as file:
            file.write("another model")
        self.demo(TOKENS="4096")
        self.assertEqual(self.made(), every)

    def test_takes_a_folder_or_a_name_as_well(self):
        self.install()
        os.makedirs(self.path("folder"))
        for model in ("folder", "a-name"):
            done = subprocess.run([self.path("bench/demo"), model], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.made(), ["dense.gguf", "fit.gguf", "shared.gguf", "shared-refit.gguf"])

    def test_compiling_is_little_output(self):
        self.install()
        done = self.demo(SLOW="1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sum(line.startswith("compiling: ") for line in done.stderr.splitlines()), 10)
        self.assertIn("[setup", done.stderr)
        self.assertNotIn("Building", done.stderr + done.stdout)

    def test_shows_each_model_in_80_columns(self):
        self.install()
        lines = self.demo(SLOW="1000").stdout.splitlines()
        for name in ("dense", "llama.cpp-q3_k_m", "fit", "shared", "shared-refit"):
            self.assertEqual(sum(line.startswith(name + " ") for line in lines), 1, name)
        self.assertIn("What to do next:", lines)
        self.assertEqual([line for line in lines if len(line) > 80], [])

    def test_a_broken_build_shows_why(self):
        done = self.demo(BROKEN="1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: broken", done.stderr)

    def test_slow_rounds_are_fewer(self):
        self.install()
        self.demo(SLOW="1000")  # no round is slow
        self.assertEqual(self.rounds(), ["3"] * 5)
        os.remove(self.path("calls.txt"))
        self.demo(SLOW="0")  # every round is
        self.assertEqual(self.rounds(), ["1"] * 5)
        os.remove(self.path("calls.txt"))
        self.demo(ROUNDS="7")
        self.assertEqual(self.rounds(), ["7"] * 5)


if __name__ == "__main__":
    unittest.main()
