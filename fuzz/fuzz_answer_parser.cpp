// Fuzzes what takes answers of models apart: for any text, the parts are the same wherever it is cut, and no
// call is without a name. The first two bytes of an input say the form of its calls and whether it may
// begin with reasoning.
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "serve/conversation/forms.h"
#include "target.h"

namespace {

using refold::AnswerPart;
using Reasoning = refold::AnswerParts::Reasoning;
using Parts = std::vector<AnswerPart>;

constexpr const char* kForms[] = {refold::kHermes,  refold::kNemo,  refold::kMistral7, refold::kDevstral,
                                  refold::kSmall32, refold::kLlama, refold::kQwen3,    ""};

const std::string kSeeds[] = {
    "0nb <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [\"}\"]}}\n</tool_call>\n"
    "<tool_call>{\"arguments\": \"{}\", \"name\": \"g\"}</tool_call>",
    "1nb [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\"}]",
    "2n[TOOL_CALLS] [{\"name\": \"f\", \"id\": \"123456789\"}] c",
    "3n[TOOL_CALLS]f[ARGS]{\"a\": 1} [TOOL_CALLS]g{}",
    "4n[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"a\": 1}[TOOL_CALLS]g{}",
    "5n<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\"}",
    "6m<think>a</think> b <tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>",
    "6ba </think> b",
    "7nNo call."};

constexpr std::string_view kWords[] = {"<tool_call>",
                                       "</tool_call>",
                                       "<think>",
                                       "</think>",
                                       "[TOOL_CALLS]",
                                       "[CALL_ID]",
                                       "[ARGS]",
                                       "<|python_tag|>",
                                       "\"name\": ",
                                       "\"f\"",
                                       "\"arguments\": ",
                                       "\"parameters\": ",
                                       "{",
                                       "}",
                                       "[",
                                       "]",
                                       ", ",
                                       "; ",
                                       "\\\"",
                                       " \n"};

void add(Parts& to, Parts from) {
    for (AnswerPart& part : from) {
        const bool goes_on =
            !to.empty() && to.back().kind == part.kind && part.kind != AnswerPart::Kind::call;
        if (goes_on) {
            to.back().text += part.text;
        } else {
            to.push_back(std::move(part));
        }
    }
}

// Of a text that comes in pieces of so many bytes.
Parts cut_parts(const refold::AnswerParts& form, std::string_view text, size_t bytes) {
    refold::AnswerParser parser(form);
    Parts parts;
    for (size_t at = 0; at < text.size(); at += bytes) add(parts, parser.push(text.substr(at, bytes)));
    add(parts, parser.finish());
    return parts;
}

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    if (input.size() < 2) return false;
    const Reasoning reasoning = input[1] == 'm'   ? Reasoning::may_begin
                                : input[1] == 'b' ? Reasoning::begun
                                                  : Reasoning::none;
    const AnswerParts form =
        parts_of(kForms[static_cast<unsigned char>(input[0]) % std::size(kForms)], reasoning);
    if (reasoning != Reasoning::none && form.marks.end.empty()) return false;  // such a model has no marks
    const std::string_view text = input.substr(2);
    const Parts whole = cut_parts(form, text, std::max<size_t>(text.size(), 1));
    for (const size_t bytes : {1, 7})
        if (cut_parts(form, text, bytes) != whole) abort();
    for (const AnswerPart& part : whole)
        if (part.text.empty()) abort();
    return true;
}

std::vector<std::string> refold::fuzz_seeds() { return {std::begin(kSeeds), std::end(kSeeds)}; }
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
