"""The notebooks of examples/notebooks, run to their end on a tiny model. tests/repository checks them as files."""

import ast
import glob
import os
import unittest
from unittest import mock

from fixtures import LLAMA, REPOSITORY, FolderTest, needs

LIBRARIES = ("nbclient", "ipykernel", "matplotlib")
NOTEBOOKS = os.path.join(REPOSITORY, "examples", "notebooks")
MEASURED = {"CALIBRATION_TOKENS": 2048, "WINDOWS": 2, "CONTEXT": 64}
SETTINGS = {
    "compare-methods": {"MODEL": LLAMA, **MEASURED},
    "write-a-method": {"MODEL": LLAMA, "RANK": 32, **MEASURED},
    "serve-and-query": {"MODEL": LLAMA, "MAX_TOKENS": 8},
}


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
            notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": NOTEBOOKS}}
        )
        # Not the settings of whoever runs the tests.
        inline = "module://matplotlib_inline.backend_inline"
        with mock.patch.dict(os.environ, IPYTHONDIR=self.folder, MPLBACKEND=inline):
            return client.execute()

    def test_they_run_to_their_end(self):
        files = glob.glob(os.path.join(NOTEBOOKS, "*.ipynb"))
        self.assertEqual({os.path.basename(file)[: -len(".ipynb")] for file in files}, set(SETTINGS))
        for name, settings in SETTINGS.items():
            with self.subTest(name):
                cells = [c for c in self.run_notebook(name, settings).cells if c.cell_type == "code"]
                outputs = [output for cell in cells for output in cell.outputs]
                images = sum("image/png" in output.get("data", {}) for output in outputs)
                self.assertEqual(images, sum(cell.source.count("plt.show()") for cell in cells))
                warnings = [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"]
                self.assertEqual(warnings, [])


if __name__ == "__main__":
    unittest.main()
