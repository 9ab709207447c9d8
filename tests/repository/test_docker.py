import glob
import os
import re
import unittest

from commands import ROOT, problems_of, read
from dockerfile import read_dockerfile


def ignored(path):
    """Whether .dockerignore leaves out a path of the repository: the last pattern that matches it or a parent decides."""
    parts = path.split("/")
    parents = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    out = False
    for line in read(".dockerignore").splitlines():
        pattern = line.strip().lstrip("!")
        if not pattern or pattern.startswith("#"):
            continue
        # ** is any folders, * stops at a slash.
        expression = re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if any(re.fullmatch(expression, each) for each in parents):
            out = not line.startswith("!")
    return out


class DockerTest(unittest.TestCase):
    def setUp(self):
        self.stages = read_dockerfile(read("Dockerfile"))
        self.build, self.image = self.stages

    def test_copied_files_are_there(self):
        names = [stage.name for stage in self.stages]
        for stage in self.stages:
            for copy in stage.all("COPY"):
                *sources, _ = copy.words()
                if "from" in copy.flags:
                    self.assertIn(copy.flags["from"], names)
                    continue
                for source in sources:
                    self.assertTrue(glob.glob(os.path.join(ROOT, source)), source)
                    self.assertFalse(source != "." and ignored(source), source)

    def test_scripts_and_options_are_there(self):
        for stage in self.stages:
            for run in stage.all("RUN"):
                self.assertEqual(problems_of(run.text), [])
        # The first set-up has only what was copied before it.
        copied = [word for copy in self.build.all("COPY")[:2] for word in copy.words()[:-1]]
        self.assertEqual(copied, ["scripts/setup", "cmake"])

    def test_sources_of_the_build_are_not_ignored(self):
        """Every folder and file that CMake's files name."""
        for path in [
            "CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "cmake/RefoldPackage.cmake", "packaging/copyright",
            "docs/howto-add-method.md", "src/core/error.h", "cli/main.cpp", "include/refold/refold.h", "papers/000/table-3.yaml",
            "recipes/direct_share_30.yaml", "tasks/piqa.yaml", "tests/CMakeLists.txt", "tests/core/core_test.cpp", "bench/CMakeLists.txt",
            "scripts/package-deb",
        ]:
            self.assertTrue(os.path.exists(os.path.join(ROOT, path)), path)
            self.assertFalse(ignored(path), path)
        for path in [".git/config", "build/release/bin/refold", "docs/cli.md", "CHANGELOG.md", "python/tests/__pycache__/x.pyc", "tests/fixtures/eval"]:
            self.assertTrue(ignored(path), path)

    def test_packages_come_from_where_the_build_puts_them(self):
        (copy,) = self.image.all("COPY")
        (source, _) = copy.words()
        (folder,) = [each.words()[0] for each in self.build.all("WORKDIR")]
        self.assertEqual(os.path.dirname(source), folder + "/build/release/packages")
        self.assertIn("build/release/packages/*.deb", read("scripts/package-deb"))
        self.assertEqual([stage.base for stage in self.stages], ["debian:bookworm-slim"] * 2)

    def test_runs_without_rights_and_keeps_models_in_a_volume(self):
        (user,) = self.image.all("USER")
        self.assertNotIn(user.text, ("root", "0"))
        (run,) = self.image.all("RUN")
        self.assertIn("useradd --uid 10001", run.text)
        (volume,) = self.image.all("VOLUME")
        for name in ("REFOLD_CACHE", "HF_HOME"):
            self.assertTrue(self.image.environment()[name].startswith(volume.text + "/"))
        order = [each.name for each in self.image.instructions]
        self.assertGreater(order.index("USER"), order.index("RUN"))

    def test_health_check_asks_what_the_command_serves(self):
        (check,) = self.image.all("HEALTHCHECK")
        port, path = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", check.text).groups()
        (command,) = self.image.all("CMD")
        words = command.words()
        self.assertEqual(self.image.all("ENTRYPOINT")[0].words(), ["refold"])
        self.assertEqual(words[words.index("--port") + 1], port)
        self.assertEqual(self.image.all("EXPOSE")[0].text, port)
        self.assertRegex(read(f"src/serve/endpoints{path}.cpp"), rf'\.path = "{path}",[^;]*\.open = true')
        for word in words:
            if word.startswith("--"):
                self.assertIn(f"  {word} ", read("docs/cli.md").split("\n## serve\n")[1].split("\n## ")[0])
        (run,) = self.image.all("RUN")
        self.assertRegex(run.text, r"install .*\bcurl\b")


if __name__ == "__main__":
    unittest.main()
