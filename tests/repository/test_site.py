import importlib.machinery
import importlib.util
import os
import pathlib
import tempfile
import unittest

import yaml
from commands import ROOT, read

loader = importlib.machinery.SourceFileLoader("build_site", os.path.join(ROOT, "scripts", "build-site"))
site = importlib.util.module_from_spec(importlib.util.spec_from_loader("build_site", loader))
loader.exec_module(site)


def pages_of(nav):
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from pages_of(value) if isinstance(value, list) else [value]


class SiteTest(unittest.TestCase):
    def test_the_navigation_has_every_page_once(self):
        nav = list(pages_of(yaml.safe_load(read("mkdocs.yml"))["nav"]))
        generated = sorted(page for page in nav if page.startswith("GENERATED "))
        self.assertEqual(generated, ["GENERATED headers", "GENERATED methods"])
        docs = [name for name in os.listdir(os.path.join(ROOT, "docs")) if name.endswith(".md")]
        expected = [*docs, *site.OF_THE_ROOT.values(), "python-api.md"]
        self.assertEqual(sorted(set(nav) - set(generated)), sorted(expected))
        self.assertEqual(len(nav), len(set(nav)))

    def test_links_lead_to_files_and_become_links_to_pages(self):
        with tempfile.TemporaryDirectory() as folder:
            site.PAGES = pathlib.Path(folder)
            pages = site.Site()
            for source in [*site.OF_THE_ROOT, *(f"docs/{name}" for name in os.listdir(os.path.join(ROOT, "docs")))]:
                if source.endswith(".md"):
                    pages.page(source, pages.place(source))  # ends for a link that leads nowhere
            pages.file_pages()
            index = (site.PAGES / "index.md").read_text()
            self.assertIn("(quality.md)", index)
            self.assertIn("(contributing.md)", index)
            self.assertIn("../index.md", index + pages.links("[x](../README.md)", "examples/a.md", "files/a.md"))
            self.assertTrue((site.PAGES / "files/examples/score.cpp.md").exists())
            notebook = (site.PAGES / "files/examples/notebooks/serve-and-query.ipynb.md").read_text()
            self.assertRegex(notebook, r"(?s)# Serve a model.*\n```python\nMODEL = .*\n```\n.*\]\(\S*/serving.md\)")
            with self.assertRaises(SystemExit):
                pages.links("[x](nothing.md)", "README.md", "index.md")

    def test_lists_are_as_github_reads_them(self):
        text = ["word", "- one", "  more", "- two", "", "  | a |", "  |---|", "  `x \\| y`", "- three", "", "| `a \\| b` |"]
        expected = ["word", "", "- one", "    more", "- two", "", "    | a |", "    |---|", "    `x \\| y`", "", "- three", "", "| `a | b` |"]
        self.assertEqual(site.commonmark(text), expected)


if __name__ == "__main__":
    unittest.main()
