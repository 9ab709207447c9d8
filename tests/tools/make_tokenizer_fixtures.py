#!/usr/bin/env python3
"""Makes fixtures of tests/fixtures/tokenizers: the unigram_*, tiktoken_* and bpe_o200k folders, and pre_tokenizers.json.

usage: make_tokenizer_fixtures.py TEXT tests/fixtures/tokenizers

TEXT is what the vocabularies are learnt from. Needs transformers 4.57.6, tokenizers 0.22.2, sentencepiece 0.2.3 and
tiktoken 0.14.0. The texts of the goldens are those of bpe_gpt2/golden.json and MORE.
"""

import base64
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path

import sentencepiece
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AlbertTokenizerFast, AutoTokenizer, MBartTokenizerFast, T5TokenizerFast, XLMRobertaTokenizerFast

MORE = [
    "HTMLParser iPhoneXL McDonald's ÉCOLE École ΣΊΣΥΦΟΣ Σίσυφος ǅungla",
    "it'S IT'LL he'd've '\u017ftrange 'tis rock'n'roll",
    "1 12 123 1234 12345678901 ٣٤٥٦ ⅫⅢ 1٢3 x1y22z333",
    "a/b//c/\n/d\n\n//e ==\n== \r\n\r\n!?\n",
    "e\u0301 n\u0303 क्षि நி กำ \u0301alone a\u0308\u0301\u0327b",
    "ﬁne ﬀ ﬃ Ｆｕｌｌ　ｗｉｄｔｈ １２３ ㎏ ㌔ … ﷺ",
    "``quoted'' \"and\" 'that' 7, 8,9, 10,000",
    "  leading   and   inner   and trailing    ",
    "\u3000\u00a0\u2003mixed\u2003\u2003 spaces \u200b",
    "<extra_id_0> <extra_id_9> <mask> x<mask> y  <mask>z [MASK] en_XX de_DE",
    "\U0001f469\U0001f3fd\u200d\U0001f4bb \U0001f1e9\U0001f1ea\U0001f1eb \u2764\ufe0f 1\ufe0f\u20e3",
    "#!/usr/bin/env python3\n\tif x:\n\t\treturn {\"k\": [1,2,3]}  # ok\n\n\n",
    "漢字かな交じり文、한글과 ไทย 123 mixed。！？",
]
PAIRS = [("What is this?", "It is a test."), ("a", ""), ("Überraschung", "你好 world"), ("one  two ", " three")]

O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK3 = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
             " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
SEED = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|"
        "\\s+(?!\\S)|\\s+")


def byte_level(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert)


def sequence(*parts):
    return pre_tokenizers.Sequence(list(parts))


PRE_TOKENIZERS = {
    "o200k": sequence(split(O200K), byte_level()),
    "llama3": sequence(split(LLAMA3), byte_level()),
    "qwen2": sequence(split(QWEN2), byte_level()),
    "qwen35": sequence(split(QWEN35), byte_level()),
    "tekken": sequence(split(TEKKEN), byte_level()),
    "bailing": sequence(split(BAILING), byte_level()),
    "seed-coder": sequence(split(SEED), byte_level()),
    "deepseek-v3": sequence(split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK3), byte_level()),
    "falcon": sequence(pre_tokenizers.Punctuation("contiguous"), byte_level(regex=True), pre_tokenizers.Digits(False),
                       split("[0-9][0-9][0-9]")),
    "starcoder": sequence(pre_tokenizers.Digits(True), byte_level(regex=True)),
    "gpt2 with a space": byte_level(True, True),
    "clip": sequence(split(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "removed", True), byte_level()),
    "with previous": split(r"[\s,.]", "merged_with_previous"),
    "with next": split(r"\p{Lu}", "merged_with_next"),
    "contiguous": split(r"[a-c ]", "contiguous"),
    "text": pre_tokenizers.Split(" ", "merged_with_previous"),
    "whitespace": pre_tokenizers.Whitespace(),
    "metaspace": pre_tokenizers.Metaspace(),
    "metaspace first": pre_tokenizers.Metaspace(prepend_scheme="first"),
    "metaspace whole": pre_tokenizers.Metaspace(prepend_scheme="never", split=False),
    "t5": sequence(pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()),
    "deberta": sequence(pre_tokenizers.Punctuation(), pre_tokenizers.Metaspace()),
    "bert": pre_tokenizers.BertPreTokenizer(),
}


def dump(path, value, **how):
    path.write_text(json.dumps(value, **how), encoding="utf-8")


def golden(folder, raw, texts, pairs):
    encodings = []
    for text in texts:
        ids = raw.encode(text, add_special_tokens=False).ids
        special = raw.encode(text).ids
        encodings.append({"text": text, "ids": ids, "ids_with_special": special,
                          "decoded": raw.decode(ids, skip_special_tokens=False),
                          "decoded_skip_special": raw.decode(special, skip_special_tokens=True)})
    out = {"vocab_size": raw.get_vocab_size(), "encodings": encodings}
    if pairs:
        out["pairs"] = [{"a": a, "b": b, "ids": raw.encode(a, b).ids, "type_ids": raw.encode(a, b).type_ids}
                        for a, b in PAIRS]
    dump(folder / "golden.json", out, indent=0)


# A few of NFKC's rules, which make a map of characters that stays small.
def char_rules(path):
    rules = {"\u00a0": " ", "\u3000": " ", "\u2003": " ", "\t": " ", "\n": " ", "\r": " ", "\u200b": " ", "…": "...",
             "ﬁ": "fi", "ﬂ": "fl", "ﬀ": "ff", "²": "2", "½": "1\u20442", "Ⅳ": "IV", "㎏": "kg", "e\u0301": "é",
             "n\u0303": "ñ", "A\u030a": "Å", "\u0007": "", "\u007f": "", "ß": "ss"}
    rules.update({chr(0xFEE0 + c): chr(c) for c in range(0x21, 0x7F)})
    lines = ["%s\t%s" % (" ".join("%X" % ord(c) for c in a), " ".join("%X" % ord(c) for c in b)) for a, b in rules.items()]
    path.write_text("\n".join(lines) + "\n")


# SentencePiece notes the names of the files that it reads in the model.
def train_unigram(text, file, size, **options):
    model, lines = io.BytesIO(), Path(text).read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        char_rules(Path("rules.tsv"))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, model_type="unigram", vocab_size=size,
            character_coverage=0.99, normalization_rule_tsv="rules.tsv", num_threads=1, minloglevel=2, **options)
    file.write_bytes(model.getvalue())


def unigram(out, text, texts, name, file, make, size, **options):
    folder = out / name
    folder.mkdir(exist_ok=True)
    train_unigram(text, folder / file, size, **options)
    make(str(folder / file)).save_pretrained(folder)
    again = AutoTokenizer.from_pretrained(folder)
    golden(folder, again.backend_tokenizer, texts, True)


def bpe_o200k(out, text, texts):
    folder = out / "bpe_o200k"
    folder.mkdir(exist_ok=True)
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = PRE_TOKENIZERS["o200k"]
    special = ["<|startoftext|>", "<|endoftext|>", "<|return|>"]
    raw.train([text], trainers.BpeTrainer(vocab_size=480, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                          show_progress=False))
    raw.add_special_tokens([AddedToken(token, special=True) for token in special])
    raw.decoder = decoders.ByteLevel()
    raw.post_processor = processors.ByteLevel(trim_offsets=False)
    raw.save(str(folder / "tokenizer.json"))
    dump(folder / "tokenizer_config.json", {"bos_token": special[0], "eos_token": special[2],
                                            "clean_up_tokenization_spaces": False,
                                            "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2)
    golden(folder, raw, texts, False)


def ranks_of(text, pattern, size):
    """Ranks like tiktoken's: bytes in OpenAI's order, then the tokens in the order of their merges."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = sequence(split(pattern), byte_level())
    raw.train([text], trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                          show_progress=False))
    order = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order += [byte for byte in range(256) if byte not in order]
    alphabet, added = {}, 0
    for byte in range(256):
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        alphabet[chr(byte if printable else 256 + added)] = byte
        added += not printable
    ranks = {bytes([byte]): rank for rank, byte in enumerate(order)}
    for token, _ in sorted(raw.get_vocab().items(), key=lambda item: item[1]):
        ranks.setdefault(bytes(alphabet[c] for c in token), len(ranks))
    return ranks


def tiktoken_golden(out, name, file, ranks, pattern, special, config, texts, begin, normalize):
    folder = out / name
    folder.mkdir(exist_ok=True)
    lines = ["%s %d\n" % (base64.b64encode(token).decode(), rank) for token, rank in ranks.items()]
    (folder / file).write_text("".join(lines))
    dump(folder / "tokenizer_config.json", config, indent=2)
    ids_of = {token: len(ranks) + i for i, token in enumerate(special)}
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=ids_of)
    encodings = []
    for text in texts:
        ids = encoding.encode(normalize(text), allowed_special="all")
        plain = [i for i in ids if i < len(ranks)]
        encodings.append({"text": text, "ids": ids, "ids_with_special": begin + ids, "decoded": encoding.decode(ids),
                          "decoded_skip_special": encoding.decode(plain)})
    dump(folder / "golden.json", {"vocab_size": len(ranks) + len(special), "encodings": encodings}, indent=0)


def main():
    text, out = sys.argv[1], Path(sys.argv[2])
    basic = [e["text"] for e in json.loads((out / "bpe_gpt2/golden.json").read_text())["encodings"]]
    texts = basic + MORE
    t5_ids = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    unigram(out, text, texts, "unigram_t5", "spiece.model", lambda f: T5TokenizerFast(vocab_file=f, extra_ids=10, add_prefix_space=True), 400, **t5_ids)
    unigram(out, text, texts, "unigram_xlm_roberta", "sentencepiece.bpe.model", lambda f: XLMRobertaTokenizerFast(vocab_file=f), 420)
    unigram(out, text, texts, "unigram_mbart", "sentencepiece.bpe.model",
            lambda f: MBartTokenizerFast(vocab_file=f, src_lang="de_DE"), 380)
    unigram(out, text, texts, "unigram_albert", "spiece.model", lambda f: AlbertTokenizerFast(vocab_file=f), 420, pad_id=0, unk_id=1,
            bos_id=-1, eos_id=-1, control_symbols="[CLS],[SEP],[MASK]")
    bpe_o200k(out, text, texts)

    reserved = ["<|reserved_special_token_%d|>" % i for i in range(251)]
    llama = ["<|begin_of_text|>", "<|end_of_text|>", *reserved[:4], "<|start_header_id|>", "<|end_header_id|>",
             reserved[4], "<|eot_id|>", *reserved[5:]][:40]
    ranks = ranks_of(text, LLAMA3, 448)
    ranks[b"unreachable"] = len(ranks)  # a token that no merges make, as Llama 3 has some
    tiktoken_golden(out, "tiktoken_llama3", "tokenizer.model", ranks, LLAMA3, llama, {},
                    texts + ["unreachable unreachable<|eot_id|>unreachable", "<|begin_of_text|><|start_header_id|>user"],
                    [len(ranks)], str)
    qwen = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *["<|extra_%d|>" % i for i in range(205)]][:20]
    nfc = normalizers.NFC().normalize_str
    tiktoken_golden(out, "tiktoken_qwen", "qwen.tiktoken", ranks_of(text, QWEN2, 420), QWEN2, qwen,
                    {"tokenizer_class": "QWenTokenizer"}, texts + ["<|im_start|>user\nhi<|im_end|>\n"], [], nfc)

    splits = {}
    for name, pre in PRE_TOKENIZERS.items():
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer = pre
        description = json.loads(raw.to_str())["pre_tokenizer"]
        parts = [[part for part, _ in pre.pre_tokenize_str(text)] if text else [] for text in texts]
        splits[name] = {"pre_tokenizer": description, "parts": parts}
    dump(out / "pre_tokenizers.json", {"texts": texts, "splits": splits})


main()
