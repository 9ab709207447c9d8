import contextlib
import glob
import http.server
import os
import shutil
import signal
import socketserver
import stat
import subprocess
import tempfile
import threading
import unittest

from commands import ROOT


class Refusing(http.server.BaseHTTPRequestHandler):
    """A mirror that has nothing, and a proxy that lets nobody through."""

    def do_GET(self):
        self.send_error(404)

    def do_CONNECT(self):
        self.send_error(403, "Forbidden by policy")

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def refusing_server():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class SetupTest(unittest.TestCase):
    """scripts/setup on machines that lack something: one sentence that says what to do, and nothing half-written."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="set up ")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.cache = os.path.join(self.folder, "a cache")
        shutil.copytree(os.path.join(ROOT, "scripts"), os.path.join(self.folder, "scripts"))
        shutil.copytree(os.path.join(ROOT, "cmake"), os.path.join(self.folder, "cmake"))

    def program(self, name, text):
        path = os.path.join(self.folder, "programs", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o755)
        return path

    def environment(self, **variables):
        ours = os.path.join(self.folder, "programs")
        return {**os.environ, "TMPDIR": self.folder, "REFOLD_CACHE": self.cache, "PATH": ours + ":" + os.environ["PATH"], "PIP_RETRIES": "0",
                "PIP_FIND_LINKS": "", "PIP_NO_CACHE_DIR": "1", "PIP_CONFIG_FILE": os.devnull, **variables}

    def setup(self, *options, **variables):
        return subprocess.run([os.path.join(self.folder, "scripts/setup"), *options], env=self.environment(**variables),
                              capture_output=True, text=True)

    def expect_failure(self, done, *parts):
        self.assertEqual(done.returncode, 1, done.stderr)
        last = done.stderr.splitlines()[-1]
        self.assertTrue(last.startswith("scripts/setup: error: "), done.stderr)
        for part in parts:
            self.assertIn(part, last)
        self.assertEqual(glob.glob(glob.escape(self.cache) + "/tmp.*"), [])

    def test_no_network(self):
        done = self.setup(PIP_INDEX_URL="http://127.0.0.1:9/simple")
        self.expect_failure(done, "fetching xgrammar", "failed", "check the network and pip's settings")

    def test_a_proxy_that_refuses(self):
        with refusing_server() as address:
            done = self.setup(PIP_INDEX_URL="https://index.invalid/simple", PIP_PROXY=address)
        self.expect_failure(done, "fetching xgrammar", "check the network and pip's settings")

    def test_a_mirror_without_the_package(self):
        with refusing_server() as address:
            done = self.setup(PIP_INDEX_URL=address + "/simple")
        self.expect_failure(done, "fetching xgrammar", "check the network and pip's settings")
        self.assertIn("No matching distribution", done.stderr)

    def test_a_full_disk(self):
        self.program("python3", 'echo "ERROR: [Errno 28] No space left on device"; exit 1')
        self.expect_failure(self.setup(), self.cache + " is full", "set REFOLD_CACHE")

    def test_a_cache_that_cannot_be_written(self):
        with open(self.cache, "w"):
            pass
        done = self.setup()
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write to " + self.cache + "; set REFOLD_CACHE", done.stderr)

    def test_no_compiler(self):
        self.expect_failure(self.setup(CXX="no-such-compiler"), "no program no-such-compiler", "install it")

    def test_an_old_compiler(self):
        old = self.program("g++-11", 'case "$*" in *-dM*) echo "#define __GNUC__ 11" ;; *) echo "g++ (Debian) 11.3.0" ;; esac')
        self.expect_failure(self.setup(CXX=os.path.basename(old)), "is GCC 11", "CXX=g++-12")

    def test_python_without_pip(self):
        self.program("python3", 'echo "/usr/bin/python3: No module named pip"; exit 1')
        self.expect_failure(self.setup(), "install pip")

    @unittest.skipUnless(shutil.which("dpkg-query") and os.geteuid() == 0, "needs root")
    def test_a_package_that_apt_does_not_find(self):
        self.program("dpkg-query", "exit 1")
        self.program("apt-get", '[ "${3:-}" = update ] || { echo "E: Unable to locate package g++"; exit 100; }')
        done = self.setup()
        self.expect_failure(done, "installing packages failed", "check the network and APT's sources")
        self.assertIn("E: Unable to locate package g++", done.stderr)

    @unittest.skipUnless(shutil.which("dpkg-query") and os.geteuid() == 0, "needs root")
    def test_a_full_disk_for_packages(self):
        self.program("dpkg-query", "exit 1")
        self.program("apt-get", 'echo "E: Write error - write (28: No space left on device)"; exit 100')
        self.expect_failure(self.setup(), "apt-get update failed", "free 1 GB on the disk of /usr")

    @unittest.skipUnless(shutil.which("dpkg-query") and shutil.which("setpriv") and os.geteuid() == 0, "needs root")
    def test_missing_packages_without_root(self):
        self.program("dpkg-query", "exit 1")
        for path, folders, files in os.walk(self.folder):
            for name in [path, *(os.path.join(path, file) for file in folders + files)]:
                os.chmod(name, os.stat(name).st_mode | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                               os.path.join(self.folder, "scripts/setup")],
                              env=self.environment(), capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("these packages are missing: g++ cmake", done.stderr)
        self.assertIn("sudo apt-get update && sudo apt-get install", done.stderr)

    def test_interrupted_and_run_again(self):
        self.program("python3", "sleep 600")
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([os.path.join(self.folder, "scripts/setup")], env=self.environment(),
                                       stderr=subprocess.PIPE, text=True, start_new_session=True)
            for line in process.stderr:
                if "fetching xgrammar" in line:
                    break
            self.assertEqual(len(glob.glob(glob.escape(self.cache) + "/tmp.*")), 1)
            process.send_signal(signal_number)
            self.assertEqual(process.wait(60), 128 + signal_number)
            process.stderr.close()
            self.assertEqual(glob.glob(glob.escape(self.cache) + "/tmp.*"), [])
        # What a killed run left is in nobody's way.
        os.makedirs(os.path.join(self.cache, "tmp.left"))
        self.test_python_without_pip()

    def test_memory_bounds_the_compilers(self):
        self.program("nproc", "echo 16")
        for kib, jobs in ((1_000_000, 1), (3_500_000, 2), (6_500_000, 4), (100_000_000, 16)):
            self.program("sed", f"echo {kib}")  # what reads /proc/meminfo
            self.assertEqual(self.setup("--print-jobs").stdout, f"{jobs}\n")


if __name__ == "__main__":
    unittest.main()
