// A small vocabulary of every kind that libllama knows, as llama.cpp's converter writes it.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "io/gguf.h"
#include "vocab/decoder.h"
#include "vocab/gguf_arrays.h"
#include "vocab/unicode.h"

namespace refold {

inline const std::vector<std::string>& vocabulary_kinds() {
    static const std::vector<std::string> kinds{"llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "gemma4"};
    return kinds;
}

inline std::vector<std::string> byte_tokens() {
    std::vector<std::string> out;
    for (int byte = 0; byte < 256; ++byte) out.push_back(fmt::format("<0x{:02X}>", byte));
    return out;
}

// Token types: 1 normal, 2 unknown, 3 control, 6 byte.
inline GgufMetadata small_vocabulary(const std::string& kind) {
    const std::string mark = "\u2581";
    std::vector<std::string> tokens, merges;
    std::vector<int32_t> types;
    const auto add = [&](const std::string& token, int32_t type) {
        tokens.push_back(token);
        types.push_back(type);
    };
    if (kind == "bert") {
        for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) add(token, 3);
        for (char c = 'a'; c <= 'z'; ++c) {
            add(mark + c, 1);
            add(std::string(1, c), 1);
        }
        add(mark + "the", 1);
    } else if (kind == "rwkv") {
        add("<s>", 3);
        for (int byte = 0; byte < 256; ++byte) add(fmt::format("\\x{:02x}", byte), 1);
        add("the", 1);
        add(" \\n", 1);
    } else {
        add("<unk>", 2);
        add("<s>", 3);
        add("</s>", 3);
        add("<pad>", 3);
        if (kind == "gpt2") {
            for (unsigned byte = 0; byte < 256; ++byte) {
                std::string token;
                append_utf8(token, byte_level_character(static_cast<unsigned char>(byte)));
                add(token, 1);
            }
        } else {
            for (const std::string& token : byte_tokens()) add(token, 6);
            for (char c = 'a'; c <= 'z'; ++c) add(std::string(1, c), 1);
            add(mark, 1);
        }
        for (const char* token : {"th", "the", "he"}) add(token, 1);
        merges = {"t h", "h e", "th e"};
    }
    GgufMetadata out;
    out.set("general.architecture", GgufValue::string("llama"));
    out.set("tokenizer.ggml.model", GgufValue::string(kind));
    if (kind == "gpt2") out.set("tokenizer.ggml.pre", GgufValue::string("gpt-2"));
    std::vector<float> scores;
    for (size_t i = 0; i < tokens.size(); ++i) scores.push_back(-0.01F * static_cast<float>(i));
    out.set("tokenizer.ggml.scores", float_array(scores));
    out.set("tokenizer.ggml.token_type", int_array(types));
    out.set("tokenizer.ggml.tokens", string_array(std::move(tokens)));
    if (kind == "gpt2" || kind == "gemma4") out.set("tokenizer.ggml.merges", string_array(std::move(merges)));
    const auto id = [&](const char* name, uint32_t token) {
        out.set(fmt::format("tokenizer.ggml.{}_token_id", name), GgufValue::u32(token));
    };
    if (kind == "bert") {
        for (const auto& [name, token] :
             {std::pair{"padding", 0}, {"unknown", 1}, {"bos", 2}, {"cls", 2}, {"seperator", 3}, {"mask", 4}})
            id(name, static_cast<uint32_t>(token));
    } else if (kind != "rwkv") {
        id("unknown", 0);
        id("bos", 1);
        id("eos", 2);
    }
    return out;
}

}  // namespace refold
