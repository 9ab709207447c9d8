#!/usr/bin/env python3
"""What lm-evaluation-harness asks a model on the samples in tests/fixtures/tasks, for tests/tasks/data/golden_test.cpp.

usage: make_task_goldens.py FIXTURES > FIXTURES/golden.json
Needs lm-eval 0.4.13 without a model: pip install lm-eval==0.4.13 (torch is not needed). The samples are brought into
the form of the hub's data sets by the functions here, and then taken by the program's own task classes.
"""
import bz2
import csv
import io
import json
import pathlib
import re
import sys
import zipfile

import datasets

ROOT = pathlib.Path(sys.argv[1])


def jsonl(name):
    return [json.loads(line) for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]


def hellaswag_text():
    text = bz2.open(ROOT / "hellaswag/hellaswag_val_full.txt.bz2", "rt", encoding="utf-8").read().splitlines()
    items = []
    for i in range(0, len(text), 6):
        activity, context = text[i].split(": ", 1)
        begun = re.fullmatch(r"(.*[.?!]) ([^.?!]*)", context)
        items.append({"activity_label": activity, "ctx_a": begun[1] if begun else context,
                      "ctx_b": begun[2] if begun else "", "label": text[i + 1], "endings": text[i + 2: i + 6]})
    return items


def hellaswag_train():
    keys = ("activity_label", "ctx_a", "ctx_b", "endings")
    return [{**{key: item[key] for key in keys}, "label": str(item["label"])} for item in jsonl("hellaswag/hellaswag_train.jsonl")]


def piqa(split):
    labels = (ROOT / f"piqa/{split}-labels.lst").read_text().split()
    return [{**item, "label": int(label)} for item, label in zip(jsonl(f"piqa/{split}.jsonl"), labels)]


def winogrande_prompts(split):
    items = []
    for item in json.load(open(ROOT / f"llm-adapters/winogrande/{split}.json")):
        found = re.fullmatch(r".*?sentence: (.*)\n\nOption1: (.*) Option2: (.*) Answer format: .*", item["instruction"], re.S)
        items.append({"sentence": found[1], "option1": found[2], "option2": found[3], "answer": item["answer"][-1]})
    return items


def openbookqa_prompts(split):
    items = []
    for item in json.load(open(ROOT / f"llm-adapters/openbookqa/{split}.json")):
        found = re.fullmatch(r".*?question: (.*)\n\nAnswer1: (.*) Answer2: (.*) Answer3: (.*) Answer4: (.*)\n\nAnswer format.*",
                             item["instruction"], re.S)
        items.append({"question_stem": found[1], "choices": {"text": list(found.groups()[1:]), "label": list("ABCD")},
                      "answerKey": "ABCD"[int(item["answer"][-1]) - 1]})
    return items


def questions(name, field):
    return [{field: item["question"]["stem"], "answerKey": item["answerKey"],
             "choices": {"text": [c["text"] for c in item["question"]["choices"]],
                         "label": [c["label"] for c in item["question"]["choices"]]}} for item in jsonl(name)]


def rte(split):
    return [{"sentence1": i["premise"], "sentence2": i["hypothesis"], "label": int(i["label"] == "not_entailment")}
            for i in jsonl(f"superglue/RTE/{split}.jsonl")]


def race():
    return [{"article": item["article"], "problems": str([
        {"question": q, "answer": a, "options": o}
        for q, a, o in zip(item["questions"], item["answers"], item["options"])])} for item in jsonl("race/test_high.jsonl")]


def siqa():
    return [{"context": i["context"], "question": i["question"], "answerA": i["options"][0], "answerB": i["options"][1],
             "answerC": i["options"][2], "label": str(i["options"].index(i["answer"]) + 1)} for i in jsonl("socialiqa/dev.jsonl")]


def members(archive, name, header=True):
    with zipfile.ZipFile(ROOT / archive) as opened:
        rows = list(csv.reader(io.StringIO(opened.read(name).decode())))
    return [dict(zip(rows[0], row)) for row in rows[1:]] if header else rows


def mmlu(subject, split):
    return [{"question": r[0], "choices": r[1:5], "answer": "ABCD".index(r[5])}
            for r in members("mmlu/mmlu.zip", f"data/{split}/{subject}_{split}.csv", False)]


def pubmedqa():
    items, test = (json.load(open(ROOT / f"pubmedqa/{n}.json")) for n in ("ori_pqal", "test_ground_truth"))
    return [{key: items[pmid][key] for key in ("QUESTION", "CONTEXTS", "final_decision")} for pmid in test]


def medmcqa():
    return [{**{k: i[k] for k in ("question", "opa", "opb", "opc", "opd")}, "cop": i["cop"] - 1} for i in jsonl("medmcqa/dev.json")]


def medqa():
    return [{"sent1": i["question"], **{f"ending{n}": i["options"][c] for n, c in enumerate("ABCD")},
             "label": "ABCD".index(i["answer_idx"])} for i in jsonl("medqa/phrases_no_exclude_test.jsonl")]


# (our name, below which folder, lm-eval's name, splits in the hub's form, numbers of examples)
def cases():
    yield "lambada_openai", ".", "lambada_openai", {"test": jsonl("lambada/lambada_test.jsonl")}, [0, 2]
    yield "hellaswag", ".", "hellaswag", {"validation": hellaswag_text(), "train": hellaswag_train()}, [0, 2]
    yield "piqa", ".", "piqa", {"validation": piqa("valid"), "train": piqa("train")}, [0, 3]
    dev = [{k: v for k, v in i.items() if k != "qID"} for i in jsonl("winogrande/dev.jsonl")]
    yield "winogrande", ".", "winogrande", {"validation": dev, "train": dev}, [0]
    yield ("winogrande", "llm-adapters", "winogrande",
           {"validation": winogrande_prompts("test"), "train": winogrande_prompts("train")}, [0, 4])
    for name in ("Easy", "Challenge"):
        yield (f"arc_{name.lower()}", ".", f"arc_{name.lower()}",
               {s.lower(): questions(f"arc/ARC-{name}-{s}.jsonl", "question") for s in ("Test", "Train")}
               | {"validation": questions(f"arc/ARC-{name}-Test.jsonl", "question")}, [0, 3])
    book = questions("openbookqa/test.jsonl", "question_stem")
    yield "openbookqa", ".", "openbookqa", {"test": book, "train": book, "validation": book}, [0]
    yield ("openbookqa", "llm-adapters", "openbookqa",
           {"test": openbookqa_prompts("test"), "train": openbookqa_prompts("train"), "validation": book}, [0, 5])
    yield ("boolq", ".", "boolq", {s: [{k: (int(v) if k == "label" else v) for k, v in i.items()} for i in jsonl(f"superglue/BoolQ/{n}.jsonl")]
                                   for s, n in (("validation", "val"), ("train", "train"))}, [0, 3])
    yield "rte", ".", "rte", {"validation": rte("val"), "train": rte("train")}, [0, 2]
    yield ("commonsenseqa", ".", "commonsense_qa",
           {"validation": questions("commonsenseqa/dev_rand_split.jsonl", "question"),
            "train": questions("commonsenseqa/train_rand_split.jsonl", "question")}, [0, 2])
    yield "race_high", ".", "race", {"test": race()}, [0, 1]
    yield "siqa", ".", "social_iqa", {"validation": siqa(), "train": siqa()}, [0]
    for subject in ("abstract_algebra", "anatomy"):
        yield (f"mmlu_{subject}", ".", f"mmlu_{subject}", {s: mmlu(subject, s) for s in ("dev", "test")}, [0, 5])
    yield ("ceval-valid_law", ".", "ceval-valid_law",
           {"val": members("ceval/ceval.zip", "val/law_val.csv"), "dev": members("ceval/ceval.zip", "dev/law_dev.csv")}, [0, 5])
    yield ("cmmlu_anatomy", ".", "cmmlu_anatomy", {s: members("cmmlu/cmmlu.zip", f"{s}/anatomy.csv") for s in ("test", "dev")}, [0, 5])
    yield "pubmedqa", ".", "pubmedqa", {s: pubmedqa() for s in ("test", "train", "validation")}, [0]
    yield "medmcqa", ".", "medmcqa", {s: medmcqa() for s in ("train", "validation")}, [0]
    yield "medqa", ".", "medqa_4options", {s: medqa() for s in ("test", "train", "validation")}, [0]
    for a, b in (("en", "fr"), ("fr", "en")):
        yield (f"wmt14_{a}_{b}", ".", f"wmt14-{a}-{b}",
               {s: jsonl(f"wmt14/fr-en/{n}.jsonl") for s, n in (("test", "test"), ("validation", "validation"), ("train", "test"))}, [0, 2])


def run(manager, name, splits, shots):
    from lm_eval.tasks import get_task_dict

    datasets.load_dataset = lambda *args, **kwargs: datasets.DatasetDict(
        {split: datasets.Dataset.from_list(items) for split, items in splits.items()})
    task = get_task_dict([name], manager)[name]
    task.set_config("num_fewshot", shots)
    task.set_fewshot_seed(1234)
    task.build_all_requests(limit=3 if shots else 20)
    items = {}
    for request in task.instances:
        item = items.setdefault(request.doc_id, {"contexts": [], "continuations": []})
        if request.args[0] not in item["contexts"]:
            item["contexts"].append(request.args[0])
        if isinstance(request.args[1], str):
            item["continuations"].append(request.args[1])
    for (doc_id, doc), item in zip(task.doc_iterator(limit=3 if shots else 20), items.values()):
        if task.OUTPUT_TYPE == "multiple_choice":
            gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
            item["gold"] = task.doc_to_choice(doc).index(gold) if isinstance(gold, str) else gold
            if task.multiple_input:
                item["continuations"] = item["continuations"][:1]
        elif task.OUTPUT_TYPE == "generate_until":
            item["reference"] = task.doc_to_target(doc)
    return list(items.values())


def main():
    from lm_eval.tasks import TaskManager

    manager = TaskManager()
    out = [{"task": ours, "data": folder, "shots": shots, "items": run(manager, theirs, splits, shots)}
           for ours, folder, theirs, splits, counts in cases() for shots in counts]
    json.dump(out, sys.stdout, indent=0, ensure_ascii=False)
    print()


main()
