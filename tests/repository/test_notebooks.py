import ast
import glob
import json
import os
import unittest

from commands import ROOT, read

NOTEBOOKS = sorted(glob.glob(os.path.join(ROOT, "examples", "notebooks", "*")))


def problems_of(name, text):
    """What is wrong with a notebook as a file: it runs elsewhere (python/tests/test_notebooks.py)."""
    try:
        notebook = json.loads(text)
        cells = [(cell, "".join(cell["source"])) for cell in notebook["cells"]]
    except (ValueError, KeyError, TypeError) as error:
        return [f"{name}: no notebook: {error!r}"]
    found = []
    if notebook.get("nbformat") != 4 or notebook.get("metadata", {}).get("kernelspec", {}).get("name") != "python3":
        found.append(f"{name}: not of format 4 for the kernel python3")
    if text != json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n":
        found.append(f"{name}: not written as Jupyter writes it")
    ids = [cell.get("id") for cell, _ in cells]
    if None in ids or len(set(ids)) != len(ids):
        found.append(f"{name}: cells need ids of their own")
    code = [(cell, source) for cell, source in cells if cell["cell_type"] == "code"]
    for cell, source in code:
        if cell.get("outputs") != [] or cell.get("execution_count") is not None:
            found.append(f"{name}: cell {cell.get('id')} has outputs or a count: clear them before you commit")
        try:
            ast.parse(source)
        except SyntaxError as error:
            found.append(f"{name}: cell {cell.get('id')}: {error}")
    settings = [number for number, (cell, _) in enumerate(code) if "parameters" in cell["metadata"].get("tags", [])]
    if settings != [0]:
        found.append(f"{name}: the first cell of code, and no other, has the tag 'parameters'")
    return found


class NotebooksTest(unittest.TestCase):
    def test_they_are_as_they_should_be_committed(self):
        self.assertTrue(NOTEBOOKS)
        guide = read("docs", "python.md")
        for path in NOTEBOOKS:
            name = os.path.basename(path)
            with self.subTest(name):
                self.assertEqual(problems_of(name, read(path)), [])
                self.assertLess(os.path.getsize(path), 30000)
                self.assertTrue(f"(../examples/notebooks/{name})" in guide, f"docs/python.md does not name {name}")

    def test_problems_are_found(self):
        good = read(NOTEBOOKS[0])
        code = next(i for i, cell in enumerate(json.loads(good)["cells"]) if cell["cell_type"] == "code")

        def changed(change):
            notebook = json.loads(good)
            change(notebook["cells"][code])
            return " ".join(problems_of("x", json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"))

        self.assertEqual(changed(lambda cell: None), "")
        output = {"output_type": "stream", "name": "stdout", "text": ["1\n"]}
        self.assertIn("clear them", changed(lambda cell: cell.update(outputs=[output])))
        self.assertIn("clear them", changed(lambda cell: cell.update(execution_count=1)))
        self.assertIn("cell settings", changed(lambda cell: cell.update(source=["x = (\n"])))
        self.assertIn("'parameters'", changed(lambda cell: cell.update(metadata={})))
        self.assertIn("no notebook", " ".join(problems_of("x", good[:-3])))
        self.assertIn("as Jupyter writes", " ".join(problems_of("x", good + "\n")))


if __name__ == "__main__":
    unittest.main()
