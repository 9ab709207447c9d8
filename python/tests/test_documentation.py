import contextlib
import io
import os
import re
import unittest

from fixtures import CALIBRATION, LLAMA, REPOSITORY, FolderTest


class DocumentationTest(FolderTest):
    def test_the_first_example_runs(self):
        with open(os.path.join(REPOSITORY, "docs", "python.md"), encoding="utf-8") as file:
            code = re.search(r"```python\n(.*?)```", file.read(), re.DOTALL).group(1)
        self.assertLessEqual(len(code.strip().splitlines()), 12)
        for name, path in {
            "smollm2-135m-instruct": LLAMA,
            "small.gguf": self.path("small.gguf"),
            "wiki.txt": CALIBRATION,
        }.items():
            self.assertIn(name, code)
            code = code.replace(name, path)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(code, "docs/python.md", "exec"), {})
        self.assertRegex(printed.getvalue(), r"-[0-9.]+ \([0-9]+, 448\)\n[0-9]+ -> [0-9]+\n$")
        self.assertTrue(os.path.exists(self.path("small.gguf")))


if __name__ == "__main__":
    unittest.main()
