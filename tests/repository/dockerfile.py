"""Reads a Dockerfile as far as ours goes: one instruction per logical line, no heredocs and no parser directives."""

import json
import re


class Instruction:
    def __init__(self, name, text):
        self.name = name
        words = text.split()
        self.flags = dict(word[2:].split("=", 1) for word in words if re.match(r"--\w+=", word))
        self.text = text

    def words(self):
        """Arguments: of the JSON form, else those that are no flags."""
        if self.text.startswith("["):
            return json.loads(self.text)
        return [word for word in self.text.split() if not re.match(r"--\w+=", word)]


class Stage:
    def __init__(self, base, name):
        self.base, self.name, self.instructions = base, name, []

    def all(self, name):
        return [each for each in self.instructions if each.name == name]

    def environment(self):
        return dict(word.split("=", 1) for each in self.all("ENV") for word in each.words())


def read_dockerfile(text):
    """The stages of a Dockerfile."""
    stages = []
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip():
            continue
        name, rest = line.strip().split(None, 1)
        if name == "FROM":
            words = rest.split()
            stages.append(Stage(words[0], words[2] if len(words) == 3 else ""))
        else:
            stages[-1].instructions.append(Instruction(name, rest))
    return stages
