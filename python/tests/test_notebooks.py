"""The notebooks of examples/notebooks, run to their end on a tiny model. tests/repository checks them as files."""

import ast
import glob
import os
import unittest
from unittest import mock

from fixtures import LLAMA, REPOSITORY, FolderTest, needs

LIBRARIES = ("nbclient", "ipykernel", "matplotlib")
NOTEBOOKS = os.path.join(REPOSITORY, "examples", "notebooks")
MEASURED = {"MODEL": LLAMA, "CALIBRATION_TOKENS": 2048, "WINDOWS": 2, "CONTEXT": 64}


@unittest.skipUnless(all(needs(name) for name in LIBRARIES), f"one of {', '.join(LIBRARIES)} is not installed")
class NotebooksTest(FolderTest):
    def run_notebook(self, name, settings):
        """The notebook with its outputs. The settings replace those of its cell with the tag 'parameters'."""
        import nbformat
        from nbclient import NotebookClient

        notebook = nbformat.read(os.path.join(NOTEBOOKS, name + ".ipynb"), as_version=4)
        nbformat.validate(notebook)
        (cell,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
        known = {target.id for line in ast.parse(cell.source).body for target in line.targets}
        self.assertLessEqual(set(settings), known)
        cell.source += "".join(f"\n{key} = {value!r}" for key, value in settings.items())
        client = NotebookClient(
            notebook,
            timeout=600,
            startup_timeout=600,
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": NOTEBOOKS}},
        )
        # Not the settings of whoever runs the tests.
        inline = "module://matplotlib_inline.backend_inline"
        with mock.patch.dict(os.environ, IPYTHONDIR=self.folder, MPLBACKEND=inline):
            return client.execute()  # raises what a cell raises

    def check(self, name, **settings):
        cells = [cell for cell in self.run_notebook(name, settings).cells if cell.cell_type == "code"]
        outputs = [output for cell in cells for output in cell.outputs]
        images = sum("image/png" in output.get("data", {}) for output in outputs)
        self.assertEqual(images, sum(cell.source.count("plt.show()") for cell in cells))
        streams = [output for output in outputs if output.output_type == "stream"]
        self.assertEqual([output.text for output in streams if output.name == "stderr"], [])
        return "".join(output.text for output in streams)

    def test_compare_methods(self):
        printed = self.check("compare-methods", **MEASURED)
        self.assertNotIn("nan", printed)

    def test_write_a_method(self):
        printed = self.check("write-a-method", RANK=32, **MEASURED)
        self.assertIn("unexpected keyword argument 'rnak'", printed)

    def test_serve_and_query(self):
        printed = self.check("serve-and-query", MODEL=LLAMA, MAX_TOKENS=8)
        self.assertIn("the server ended with 0", printed)

    def test_all_are_run(self):
        for path in glob.glob(os.path.join(NOTEBOOKS, "*.ipynb")):
            name = os.path.basename(path)[: -len(".ipynb")]
            self.assertTrue(hasattr(self, "test_" + name.replace("-", "_")), name)


if __name__ == "__main__":
    unittest.main()
