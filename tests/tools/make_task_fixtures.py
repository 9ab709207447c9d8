#!/usr/bin/env python3
"""Writes tests/fixtures/tasks: small samples of data sets in the form in which they are published.

usage: make_task_fixtures.py DATA OUT
DATA holds the original data sets (docs/tasks.md names the files). Samples are taken where the licence permits it; the
others are items written for the purpose in the same form, with what is easily got wrong: several blanks, brackets,
white space that is not ASCII, commas and line ends in quotes.
"""
import bz2
import csv
import io
import itertools
import json
import pathlib
import sys
import zipfile


def lines(path, count, start=0):
    with open(path, encoding="utf-8") as file:
        return "".join(itertools.islice(file, start, start + count))


def jsonl(items):
    return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)


def zip_of(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def table(rows):
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def samples(data):
    """Where the licence permits."""
    text = bz2.open(data / "hellaswag/hellaswag_val_full.txt.bz2", "rt", encoding="utf-8").read().split("\n")
    yield "hellaswag/hellaswag_val_full.txt.bz2", bz2.compress("\n".join(text[: 6 * 20] + [""]).encode())
    yield "piqa/valid.jsonl", lines(data / "piqa/valid.jsonl", 20)
    yield "piqa/valid-labels.lst", lines(data / "piqa/valid-labels.lst", 20)
    # Further items of the validation split stand for the training split.
    yield "piqa/train.jsonl", lines(data / "piqa/valid.jsonl", 30, 20)
    yield "piqa/train-labels.lst", lines(data / "piqa/valid-labels.lst", 30, 20)
    for name, split, other in (("winogrande", "test", "train"), ("openbookqa", "test", "train")):
        items = json.load(open(data / f"llm-adapters/{name}/{split}.json", encoding="utf-8"))
        yield f"llm-adapters/{name}/{split}.json", json.dumps(items[:20], indent=1, ensure_ascii=False)
        yield f"llm-adapters/{name}/{other}.json", json.dumps(items[20:30], indent=1, ensure_ascii=False)
    members = {}
    with zipfile.ZipFile(data / "mmlu/mmlu.zip") as archive:
        for subject in ("abstract_algebra", "anatomy"):
            for split, count in (("dev", 5), ("test", 10)):
                name = f"data/{split}/{subject}_{split}.csv"
                rows = list(csv.reader(io.StringIO(archive.read(name).decode())))
                members[name] = table(rows[:count])
    yield "mmlu/mmlu.zip", zip_of(members)
    items = json.load(open(data / "pubmedqa/ori_pqal.json", encoding="utf-8"))
    test = json.load(open(data / "pubmedqa/test_ground_truth.json", encoding="utf-8"))
    wanted = list(test)[:12]
    # In the order of the data, which is not the order of the ids of the test.
    kept = {pmid: item for pmid, item in items.items() if pmid in wanted}
    for item in kept.values():
        item.pop("LONG_ANSWER")
        item.pop("MESHES")
    yield "pubmedqa/ori_pqal.json", json.dumps(kept, indent=1, ensure_ascii=False)
    yield "pubmedqa/test_ground_truth.json", json.dumps({pmid: test[pmid] for pmid in wanted}, indent=1)
    kept = [json.loads(line) for line in lines(data / "medmcqa/dev.json", 20).splitlines()]
    for item in kept:
        item["exp"] = None
    yield "medmcqa/dev.json", jsonl(kept)


def question(stem, answers):
    return {"stem": stem, "choices": [{"text": text, "label": "ABCDE"[i]} for i, text in enumerate(answers)]}


def written():
    """Items of our own."""
    yield "lambada/lambada_test.jsonl", jsonl([
        {"text": "The lamp had gone out, and she felt along the wall for the switch. \"Who turned off the\nlight?\" she "
                 "asked. Nobody answered, so she went down to the cellar to look for a new lamp"},
        {"text": "He had two  blanks in a row and a comma, as some passages do , before the last word"},
        {"text": "“Où est la clé?” demanda-t-elle. “Sous la pierre,” dit-il, et il souleva la pierre"},
    ])
    yield "hellaswag/hellaswag_train.jsonl", jsonl([
        {"ind": 1, "activity_label": "Baking bread", "ctx_a": "A woman kneads dough on a table.", "ctx_b": "the WOMAN",
         "ctx": "A woman kneads dough on a table. the WOMAN", "label": 2,
         "endings": ["throws it out of the window.", "sings a  song to it.", "puts it into the oven.", "paints it."]},
        {"ind": 2, "activity_label": "Home and Garden", "ctx_a": "[header] How to water plants [title] Look at the soil. "
         "[step] Put a finger into it.  [substeps] Dry soil crumbles.", "ctx_b": "", "ctx": "", "label": 0,
         "endings": ["[title] Fill the can. [step] Use rain.", "Eat the soil.", "[ not closed", "Wait   a year."]},
        {"ind": 3, "activity_label": "Skiing", "ctx_a": "Two people stand on a hill.", "ctx_b": "élodie",
         "ctx": "", "label": 1, "endings": ["flies.", "goes down the hill.", "sleeps.", "melts."]},
        {"ind": 4, "activity_label": "Fishing", "ctx_a": "A man sits by a lake.", "ctx_b": "he", "ctx": "", "label": 3,
         "endings": ["swims up.", "reads the water.", "cuts it.", "pulls out a fish."]},
    ])
    yield "winogrande/dev.jsonl", jsonl([
        {"qID": "1", "sentence": "The cup did not fit on the shelf because the _ was too tall.", "option1": "cup",
         "option2": "shelf", "answer": "1"},
        {"qID": "2", "sentence": "Ana lent Eva a book since _ had read it twice.", "option1": "Ana", "option2": "Eva",
         "answer": "1"}])
    science = [
        {"id": "a", "question": question("Which of these is a mammal?", ["trout", "whale", "frog", "eagle"]), "answerKey": "B"},
        {"id": "b", "question": {"stem": "What do plants take from the air?", "choices": [
            {"text": "carbon dioxide", "label": "1"}, {"text": "gold", "label": "2"}, {"text": "salt", "label": "3"}]},
         "answerKey": "1"},
        {"id": "c", "question": question("Ice is", ["liquid", "solid", "gas", "light", "sound"]), "answerKey": "B"}]
    for name in ("Easy", "Challenge"):
        yield f"arc/ARC-{name}-Test.jsonl", jsonl(science)
        yield f"arc/ARC-{name}-Train.jsonl", jsonl(
            [{**item, "id": f"t{i}", "question": {**item["question"], "stem": item["question"]["stem"] + f" ({i})"}}
             for i, item in enumerate(science * 2)])
    yield "openbookqa/test.jsonl", jsonl([
        {"id": "1", "question": question("A stone falls because of", ["gravity", "rain", "music", "paint"]),
         "answerKey": " A"}])
    common = [
        {"answerKey": "C", "id": "1", "question": {"question_concept": "bread", **question(
            " Where would you buy bread? ", ["forest", "moon", "bakery", "river", "attic"])}},
        {"answerKey": "A", "id": "2", "question": {"question_concept": "key", **question(
            "What opens a door?\u3000", ["key", "cloud", "spoon", "song", "leaf"])}}]
    yield "commonsenseqa/dev_rand_split.jsonl", jsonl(common)
    yield "commonsenseqa/train_rand_split.jsonl", jsonl(
        [{**item, "id": f"{i}", "answerKey": "ABCDE"[i]} for i, item in enumerate(common * 2)])
    yield "superglue/BoolQ/val.jsonl", jsonl([
        {"question": "is a tomato a fruit", "passage": "Tomato -- A tomato is, to a botanist, a berry.", "idx": 0, "label": True},
        {"question": "do owls hunt by day", "passage": "Owl -- Most owls hunt at night. ", "idx": 1, "label": False}])
    yield "superglue/BoolQ/train.jsonl", jsonl([
        {"question": f"is number {i} even", "passage": f"Number -- The number is {i}.", "idx": i, "label": i % 2 == 0}
        for i in range(5)])
    entail = [
        {"premise": "The ship left the harbour at noon.", "hypothesis": "A ship left.", "label": "entailment", "idx": 0},
        {"premise": "Nobody came to the feast.", "hypothesis": "The hall was full.", "label": "not_entailment", "idx": 1}]
    yield "superglue/RTE/val.jsonl", jsonl(entail)
    yield "superglue/RTE/train.jsonl", jsonl([{**entail[i % 2], "idx": 10 + i, "premise": f"It is {i} o'clock."} for i in range(4)])
    yield "superglue/AX-b/AX-b.jsonl", jsonl([
        {"idx": str(i), "label": e["label"], "sentence1": e["premise"], "sentence2": e["hypothesis"], "logic": "Negation"}
        for i, e in enumerate(entail)])
    yield "superglue/AX-g/AX-g.jsonl", jsonl([
        {"hypothesis": e["hypothesis"], "idx": i, "label": e["label"], "pair_id": i, "premise": e["premise"]}
        for i, e in enumerate(entail)])
    race = [
        {"answers": ["B", "A", "D"], "options": [["red", "blue", "green", "black"], ["a dog", "a cat", "a cow", "a hen"],
                                                ["one", "two", "three", "four"]],
         "questions": ["The boat in the story is  _  .", "What does Tom see?", "How many  _  ?"],
         "article": "Tom has a blue boat.\nHe sees a dog on it.", "id": "high1.txt"},
        {"answers": ["C"], "options": [["in May", "in June", "in July", "never"]], "questions": ["When did it rain?"],
         "article": "It rained in July.", "id": "high2.txt"}]
    yield "race/test_high.jsonl", jsonl(race)
    yield "race/test_middle.jsonl", jsonl(race)
    yield "race/dev_middle.jsonl", jsonl(race[::-1])
    yield "socialiqa/dev.jsonl", jsonl([
        {"context": "Kim carried the boxes for Lee.", "question": "How would you describe Kim?",
         "options": ["helpful", "asleep", "angry"], "answer": "helpful", "metadata": {"task": "socialiqa"}},
        {"context": "Ravi forgot the milk.", "question": "What will Ravi do next?",
         "options": ["paint the shop", "go back to the shop", "sell the cow"], "answer": "go back to the shop",
         "metadata": {"task": "socialiqa"}}])
    nli = [{"sentence1": "船在中午离开了港口", "sentence2": "一艘船离开了", "label": "entailment"},
           {"sentence1": "没有人来", "sentence2": "来了很多人", "label": "contradiction"},
           {"sentence1": "他在看书", "sentence2": "他不高兴", "label": "-"},
           {"sentence1": "她买了面包", "sentence2": "她饿了", "label": "neutral"}]
    for name in ("cmnli", "ocnli"):
        yield f"{name}/dev.json", jsonl(nli)
    yield "fewclue/csl/test_public.json", jsonl([
        {"id": 1, "abst": "本文研究小船的漂移。", "keyword": ["小船", "漂移"], "label": "1"},
        {"id": 2, "abst": "本文介绍一种面包。", "keyword": ["月亮", "石头"], "label": "0"}])
    yield "fewclue/tnews/test_public.json", jsonl([
        {"label": 103, "label_desc": "news_sports", "sentence": "主队昨天赢了两球", "keywords": "主队,球", "id": 0},
        {"label": 114, "label_desc": "news_stock", "sentence": "股票今天没有变化", "keywords": "股票", "id": 1}])
    header = ["id", "question", "A", "B", "C", "D", "answer"]
    yield "ceval/ceval.zip", zip_of({
        "val/law_val.csv": table([header, [0, "\u3000下列哪一个是\"颜色\"，请选择 ", "红", "石头", "水,火", "第一行\n第二行", "A"],
                                  [1, "一年有几个月", "10", "11", "12", "13", "C"]]),
        "dev/law_dev.csv": table([header + ["explanation"]] + [
            [i, f"第{i}题", "甲", "乙", "丙", "丁", "ABCDA"[i], "因为"] for i in range(5)])})
    columns = ["", "Question", "A", "B", "C", "D", "Answer"]
    yield "cmmlu/cmmlu.zip", zip_of({
        "test/anatomy.csv": table([columns, [0, "人有几只手", "一", "二", "三", "四", "B"], [1, "心脏在", "胸", "脚", "手", "头", "A"]]),
        "dev/anatomy.csv": table([columns] + [[i, f"第{i}题", "甲", "乙", "丙", "丁", "BCDAB"[i]] for i in range(5)])})
    yield "medqa/phrases_no_exclude_test.jsonl", jsonl([
        {"question": "A man of 40 years has a red eye. What helps?", "answer": "Drops", "options": {
            "A": "Paint", "B": "Drops", "C": "Salt", "D": "Noise"}, "meta_info": "step1", "answer_idx": "B"}])
    yield "bigbench/qa_wikidata.task.json", json.dumps({"name": "qa_wikidata", "examples": [
        {"input": "The capital of Norway is ", "target": "Oslo"},
        {"input": "The colors of the flag are", "target": ["red", "white"]},
        {"input": "The language of the song is", "target": "Latin"}]}, indent=1)
    yield "bigbench/fact_checker_fever.task.json", json.dumps({"name": "fever", "examples": [
        {"id": 1, "input": "On June 2017, the following claim was made: The moon is a star.\nQ: Was this claim true or false?",
         "target_scores": {"true": 0, "false": 1}}]}, indent=1)
    yield "fever/paper_dev.jsonl", jsonl([
        {"id": 1, "verifiable": "VERIFIABLE", "label": "SUPPORTS", "claim": "Water is wet.", "evidence": []},
        {"id": 2, "verifiable": "NOT VERIFIABLE", "label": "NOT ENOUGH INFO", "claim": "He liked it.", "evidence": []},
        {"id": 3, "verifiable": "VERIFIABLE", "label": "REFUTES", "claim": "Is snow black?", "evidence": []},
        {"id": 4, "verifiable": "VERIFIABLE", "label": "REFUTES", "claim": "Iron floats ", "evidence": []}])
    yield "hotpotqa/hotpot_dev_v1_simplified.json", json.dumps([
        {"question": "Who built the bridge that the king crossed?", "answer": "A mason", "type": "bridge"},
        {"question": "name of the larger lake", "answer": "yes", "type": "comparison"}])
    yield "bias_in_bios/dev.jsonl", jsonl([
        {"hard_text": "She writes verses and lives by the sea", "profession": 20, "gender": 1},
        {"hard_text": "He fixes teeth.", "profession": 6, "gender": 0},
        {"hard_text": "He plans houses and bridges.", "profession": 1, "gender": 0}])
    for split, count in (("test", 2), ("validation", 3)):
        yield f"wmt14/fr-en/{split}.jsonl", jsonl([
            {"translation": {"fr": f"La maison {i} est bleue.", "en": f"House {i} is blue."}} for i in range(count)])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    data, out = (pathlib.Path(argument) for argument in sys.argv[1:])
    total = 0
    for name, content in itertools.chain(samples(data), written()):
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(raw)
        total += len(raw)
    print(f"{total} bytes")


main()
