import importlib.machinery
import importlib.util
import os
import unittest

from commands import ROOT

loader = importlib.machinery.SourceFileLoader("lint", os.path.join(ROOT, "scripts", "lint"))
lint = importlib.util.module_from_spec(importlib.util.spec_from_loader("lint", loader))
loader.exec_module(lint)


class WordsTest(unittest.TestCase):
    def problems(self, text):
        return [(line, problem.split(",")[0].split(":")[0]) for line, problem in lint.problems_of_words(text)]

    def test_long_sentences(self):
        words = " ".join(["w"] * 18)
        self.assertEqual(self.problems(f"# Title\n\n- {words}\n  {words}.\n"), [(3, "a sentence of 36 words")])
        # Full stops and colons end a sentence, also before a lower-case name; items, headings and paragraphs do, too.
        for text in (f"{words}. llama.cpp\n{words}", f"{words}: {words}", f"- {words}\n- {words}", f"## {words}\n{words}", f"{words}\n\n{words}"):
            self.assertEqual(self.problems(text), [], text)
        # Code and tables are not prose; what a link leads to is not a word.
        self.assertEqual(self.problems(f"```\n{words} {words}\n```\n| {words} {words} |\n[{words}](a.md) `{words} {words}` {words[:-5]}"), [])

    def test_beginnings(self):
        self.assertEqual(self.problems("It ends. Of a file it\nknows.\n\n**Of** models"), [(1, "a sentence begins with 'Of'"), (4, "a sentence begins with 'Of'")])
        self.assertEqual(self.problems("Often it does. The name of it."), [])

    def test_columns(self):
        long = "x" * 121
        self.assertEqual(self.problems(f"a\n{long}\n| {long} |\n```\n{long}\n```\n[{long}](b.md)"), [(2, "121 columns")])

    def test_what_programs_write(self):
        long = "x" * 121
        self.assertEqual(self.problems(f"<!-- a b -->\n{long}\n<!-- /a b -->\n{long}"), [(4, "121 columns")])
        self.assertEqual(self.problems(f"<!-- a b -->\n{long}"), [(2, "121 columns")])


if __name__ == "__main__":
    unittest.main()
