import os
import signal
import threading
import time
import unittest

import refold
from fixtures import CALIBRATION, FIXTURES, LLAMA, TEXT, FolderTest, program

DATA = os.path.join(FIXTURES, "tasks")
ONE = {"threads": 1}


class VerbsTest(FolderTest):
    def test_fit(self):
        output = self.path("fitted.gguf")
        reports = []
        found = refold.fit(
            LLAMA,
            output,
            calibration=CALIBRATION,
            size="200KiB",
            calib_tokens=4096,
            progress=reports.append,
            **ONE,
        )
        stored = refold.inspect(output)["stored"]["bytes"]
        self.assertLessEqual(stored, 200 * 1024)
        self.assertLessEqual(found["predicted_bytes"], 200 * 1024)
        self.assertIn("attn.q", found["types"])
        parts = {report.part for report in reports}
        self.assertIn("measuring matrices", parts)
        self.assertTrue(all(0 <= r.done <= r.total == 100 and r.unit == "%" for r in reports))
        with self.assertRaisesRegex(refold.UsageError, "exists"):
            refold.fit(LLAMA, output, calibration=CALIBRATION, size="200KiB", **ONE)
        with self.assertRaisesRegex(refold.UsageError, "size"):
            refold.fit(LLAMA, output, calibration=CALIBRATION, overwrite=True, **ONE)

    def test_evaluate(self):
        found = refold.evaluate(LLAMA, ["piqa", "boolq"], data=DATA, limit=5, f32=True, **ONE)
        printed = program("eval", "tasks", LLAMA, "--tasks", "piqa,boolq", "--data", DATA, "--limit", "5", "--f32", "-t", "1")  # fmt: skip
        self.assertEqual(found["results"], printed["results"])
        self.assertEqual(set(found["results"]), {"piqa", "boolq"})
        with self.assertRaisesRegex(refold.UsageError, "no_such"):
            refold.evaluate(LLAMA, "no_such", data=DATA)
        with self.assertRaises(refold.UsageError):
            refold.evaluate(LLAMA, "piqa", data=DATA, no_such_option=3)

    def test_compare(self):
        small = self.path("small.gguf")
        refold.quantize(LLAMA, "q4_0", small, threads=1)
        found = refold.compare(LLAMA, small, text=TEXT, max_windows=2, context=64, **ONE)
        printed = program(
            "compare", LLAMA, small, "--text", TEXT, "--max-windows", "2", "--context", "64", "-t", "1"
        )
        self.assertEqual(set(found), set(printed))
        with self.assertRaisesRegex(refold.Error, "nowhere"):
            refold.compare(LLAMA, "/nowhere.gguf", text=TEXT)

    def test_ctrl_c_ends_the_program(self):
        self.addCleanup(
            signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)
        )
        begun = threading.Event()

        def interrupt():
            begun.wait(60)
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        begun.set()
        with self.assertRaises(KeyboardInterrupt):
            # Hours of work.
            refold.compare(LLAMA, LLAMA, text=TEXT, context=200, stride=1, **ONE)
        thread.join()
        with open("/proc/thread-self/children") as file:
            self.assertEqual(file.read(), "")

    def test_what_a_callback_raises_ends_the_program(self):
        def stop(_):
            raise KeyError("mine")

        output = self.path("fitted.gguf")
        with self.assertRaisesRegex(KeyError, "mine"):
            refold.fit(LLAMA, output, calibration=CALIBRATION, size="200KiB", progress=stop, **ONE)
        self.assertFalse(os.path.exists(output))


if __name__ == "__main__":
    unittest.main()
