"""What the Dockerfile and the workflows call: whether the scripts that they name, and the options of these, are there."""

import os
import re
import shlex

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PRESETS = ("release", "debug", "asan", "arm64")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def simple_commands(text):
    """The commands of a piece of shell as lists of words, redirections and variables as they stand."""
    lexer = shlex.shlex(re.sub(r"\\\n", " ", text), posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t\r"
    commands, words = [], []
    for word in lexer:
        if set(word) <= set("();|&\n"):
            commands.append(words)
            words = []
        else:
            words.append(word)
    return [words for words in [*commands, words] if words]


def problems_of_command(words, has_script=lambda path: os.access(os.path.join(ROOT, path), os.X_OK)):
    """What is wrong with one command that names a script of the repository."""
    found = []
    for i, word in enumerate(words):
        path = word[2:] if word.startswith("./") else word
        if not re.fullmatch(r"(scripts|bench|\.ci)/[\w.-]+", path):
            continue
        if not has_script(path):
            found.append(f"{path}: there is no such program")
            continue
        text = read(path)
        for option in words[i + 1 :]:
            name = option.split("=")[0]
            known = name in text
            if path == "scripts/build":  # passes options on to cmake --build
                known = name in ("--portable", "--vulkan", "--cuda", "--target", "--clean-first", "--verbose")
                if i + 1 < len(words) and not words[i + 1].startswith("-") and words[i + 1] not in PRESETS:
                    found.append(f"scripts/build: {words[i + 1]} is no preset")
            if name.startswith("--") and not known:
                found.append(f"{path}: has no option {name}")
    return found


def problems_of(text, **options):
    return [problem for words in simple_commands(text) for problem in problems_of_command(words, **options)]
