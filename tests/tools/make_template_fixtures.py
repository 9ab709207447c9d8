#!/usr/bin/env python3
"""Writes tests/fixtures/templates: Jinja templates, their variables and what Python's Jinja 3.1.6 makes of them.

usage: tests/tools/make_template_fixtures.py [FOLDER]

generated.jsonl has 500 random templates (random_templates.py), written.jsonl those of template_cases.py, in the style of
models' chat templates. "text" is null where Jinja raises an error. Needs jinja2 only.
"""
import json
import pathlib
import sys

import jinja2
import random_templates
import template_cases

SEEDS = range(500)


def write(path, cases):
    with open(path, "w", encoding="utf-8") as out:
        for case in cases:
            out.write(json.dumps(case | {"text": random_templates.render(case)}, ensure_ascii=False) + "\n")


def main():
    assert jinja2.__version__ == "3.1.6", jinja2.__version__
    root = pathlib.Path(__file__).resolve().parent.parent
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else root / "fixtures/templates")
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "generated.jsonl", [random_templates.random_case(seed) for seed in SEEDS])
    write(folder / "written.jsonl", template_cases.cases())


if __name__ == "__main__":
    main()
