#!/usr/bin/env bash
# Installs a build into a temporary prefix, then configures, builds and runs a program against it.
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
cmake -S "$source_dir/tests/package" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    "-DCMAKE_PREFIX_PATH=$work/prefix;$llama_prefix"
cmake --build "$work/build"

version=$("$work/build/consumer")
[[ -n $version ]] || { echo "the consumer printed no version" >&2; exit 1; }
echo "the consumer runs against refold $version"
