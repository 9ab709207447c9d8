#!/usr/bin/env bash
# Installs a build into a temporary prefix, then configures, builds and runs a program and the examples against it.
#
# usage: tests/package/run.sh BUILD_DIR SOURCE_DIR LLAMA_PREFIX
set -euo pipefail

if (($# != 3)); then
    echo "usage: $0 BUILD_DIR SOURCE_DIR LLAMA_PREFIX" >&2
    exit 2
fi
build_dir=$1 source_dir=$2 llama_prefix=$3

work=$(mktemp -d "${TMPDIR:-/tmp}/refold-package.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

cmake --install "$build_dir" --prefix "$work/prefix"
for project in tests/package examples; do
    cmake -S "$source_dir/$project" -B "$work/$project" -G Ninja -DCMAKE_BUILD_TYPE=Release \
        "-DCMAKE_PREFIX_PATH=$work/prefix;$llama_prefix"
    cmake --build "$work/$project"
done

model=$source_dir/tests/fixtures/llama_gqa/model.gguf
encoder=$work/encoder
mkdir "$encoder"
cp "$source_dir"/tests/fixtures/hf/bert_encoder/{config.json,model.safetensors} \
    "$source_dir"/tests/fixtures/tokenizers/wordpiece_bert/{tokenizer,tokenizer_config,special_tokens_map}.json "$encoder"
text=$source_dir/bench/data/wikitext-2-test-excerpt.txt
calibration=$source_dir/bench/data/wikitext-2-valid-excerpt.txt

version=$("$work/tests/package/consumer" "$model" "$encoder" "$work")
[[ -n $version ]] || { echo "the consumer printed no version" >&2; exit 1; }

# expect REGEX EXAMPLE ARGUMENTS...: runs an example and looks at its output.
expect() {
    local pattern=$1 name=$2 output
    shift 2
    output=$("$work/examples/$name" "$@" 2>"$work/errors" | tr -d '\0') ||
        { echo "the example $name failed" >&2; cat "$work/errors" >&2; exit 1; }
    grep -Eq -- "$pattern" <<<"$output" ||
        { printf 'the example %s printed:\n%s\nexpected: %s\n' "$name" "$output" "$pattern" >&2; exit 1; }
}

expect . generate "$model" "The licence is"
[[ $("$work/examples/generate" "$model" "The licence" "A text" 2>/dev/null | wc -l) -ge 2 ]] ||
    { echo "the example generate answered fewer than two prompts" >&2; exit 1; }
expect . chat "$model" <<<"Hello"
expect '^-[0-9.]+\s.*a text$' score "$model" "The licence is" " a text"
expect '^[0-9.]+ \+- [0-9.]+ \([0-9]+ tokens, 2 windows\)$' perplexity "$model" "$text" 64 2
expect '^64 dimensions, cosine -?[01][0-9.e-]*$' embed "$encoder" "A cat sat." "A kitten sat."
expect '^llama, [0-9]+ layers' inspect "$model"
expect '^parameters [0-9]+ -> [0-9]+$' compress "$model" "$work/small.gguf" "$calibration"
expect '^wrote ' export "$work/small.gguf" "$work/stock.gguf"
expect '^wrote ' export "$source_dir/tests/fixtures/llama/model.gguf" "$work/hf"
[[ -f $work/hf/config.json ]] || { echo "the example export wrote no config.json" >&2; exit 1; }
# The installed program, moved to another folder, with the libraries of its own folder only.
mv "$work/prefix" "$work/moved"
program=$work/moved/bin/refold
loaded=$(LD_DEBUG=files "$program" eval ppl "$model" --text "$text" --context 64 --max-windows 1 --quiet 2>&1)
grep -q '^perplexity' <<<"$loaded" || { printf '%s\n' "$loaded" | tail -n 5 >&2; exit 1; }
for library in libllama libggml-base libggml-cpu; do
    grep -Eq "calling init: $work/moved/.*/$library" <<<"$loaded" ||
        { echo "the installed program does not use its own $library" >&2; exit 1; }
done
# Recipes and tables of the installation, in a folder without any.
(cd "$work/encoder" && grep -q '^/.*papers/000/table-3.yaml' <<<"$("$program" reproduce --list)" &&
    "$program" compress "$model" --recipe recipes/direct_share_30.yaml --dry-run >/dev/null) ||
    { echo "the installed program does not find its recipes and tables" >&2; exit 1; }
echo "the consumer and the examples run against refold $version"
