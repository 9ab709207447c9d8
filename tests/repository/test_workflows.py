import importlib.machinery
import importlib.util
import os
import re
import unittest

import yaml
from commands import ROOT, problems_of, read

WORKFLOWS = sorted(os.listdir(os.path.join(ROOT, ".github", "workflows")))

loader = importlib.machinery.SourceFileLoader("release_notes", os.path.join(ROOT, "scripts", "release-notes"))
notes = importlib.util.module_from_spec(importlib.util.spec_from_loader("release_notes", loader))
loader.exec_module(notes)


def workflow(name):
    return yaml.safe_load(read(".github", "workflows", name))


class WorkflowTest(unittest.TestCase):
    def steps(self):
        for name in WORKFLOWS:
            for key, job in workflow(name)["jobs"].items():
                for step in job["steps"]:
                    yield f"{name}: {key}", job, step

    def test_form(self):
        self.assertEqual(WORKFLOWS, ["ci.yml", "release.yml"])
        for name in WORKFLOWS:
            text = workflow(name)
            self.assertEqual(set(text) - {"name", True, "permissions", "concurrency", "defaults", "jobs"}, set(), name)
            self.assertEqual(text["permissions"], {"contents": "read"})
            for key, job in text["jobs"].items():
                self.assertIn("runs-on", job)
                for needed in [job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", []):
                    self.assertIn(needed, text["jobs"], key)
        for where, _, step in self.steps():
            self.assertEqual(("run" in step) + ("uses" in step), 1, where)
            if "uses" in step:
                self.assertRegex(step["uses"], r"^actions/[\w-]+@v\d+$", where)

    def test_scripts_and_options_are_there(self):
        called = set()
        for where, job, step in self.steps():
            commands = [step.get("run", "")]
            if "${{ matrix.command }}" in commands[0]:
                commands = [each["command"] for each in job["strategy"]["matrix"]["include"]]
            for command in commands:
                # An expression is one word, whatever is in it.
                command = re.sub(r"\$\{\{.*?\}\}", "expression", command)
                self.assertEqual(problems_of(command), [], where)
                called |= set(re.findall(r"scripts/[\w-]+", command))
        self.assertGreaterEqual(called, {"scripts/test", "scripts/test-arm64", "scripts/lint", "scripts/package-deb", "scripts/build-site"})

    def test_artifacts_that_are_downloaded_were_uploaded(self):
        """What the release publishes is what jobs that it needs leave."""
        jobs = workflow("release.yml")["jobs"]
        uploads = {
            step["with"]["name"]: step["with"]["path"]
            for job in jobs.values()
            for step in job["steps"]
            if step.get("uses", "").startswith("actions/upload-artifact")
        }
        self.assertEqual(uploads, {"notes": "notes.md", "dist": "dist"})
        publish = jobs["release"]["steps"][-1]["run"]
        for kind in ("*.deb", "*.whl", "*.tar.gz", "SHA256SUMS", "notes.md"):
            self.assertIn(kind, publish)
        gathered = next(step["run"] for step in jobs["packages"]["steps"] if "SHA256SUMS" in step.get("run", ""))
        for folder, script in [("build/release/packages", "package-deb"), ("build/sdist", "package-source")]:
            self.assertIn(folder, gathered)
            self.assertIn(folder, read("scripts", script))
        self.assertEqual(jobs["release"]["if"], "github.ref_type == 'tag'")
        self.assertEqual(set(jobs["release"]["needs"]), {"test", "packages"})


class VersionTest(unittest.TestCase):
    def test_one_place_says_it(self):
        self.assertRegex(notes.version(), r"^\d+\.\d+\.\d+$")
        self.assertIn('input = "CMakeLists.txt"', read("pyproject.toml"))
        for name in ["pyproject.toml", "Dockerfile", "python/refold/__init__.py", "cli/CMakeLists.txt", "cmake/RefoldPackage.cmake"]:
            self.assertNotIn(notes.version(), read(name), name)

    def test_the_changelog_has_a_section_for_the_text_of_a_release(self):
        self.assertIn("### Added", notes.section(read("CHANGELOG.md"), "Unreleased"))
        text = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027-01-01\n\n- new\n\n### Fixed\n\n- old\n\n## [0.1.0]\n\n- first\n"
        self.assertEqual(notes.section(text, "0.2.0"), "- new\n\n### Fixed\n\n- old")
        self.assertEqual(notes.section(text, "0.1.0"), "- first")
        self.assertEqual(notes.section(text, "Unreleased"), "")
        self.assertIsNone(notes.section(text, "0.3.0"))

    def test_every_released_version_has_files_to_read(self):
        released = re.findall(r"^## \[(\d[^\]]*)\]", read("CHANGELOG.md"), re.MULTILINE)
        there = os.listdir(os.path.join(ROOT, "tests", "fixtures", "versions"))
        for version in {*released, notes.version()}:
            self.assertIn(version, there, "run tests/tools/make-version-fixtures")


if __name__ == "__main__":
    unittest.main()
