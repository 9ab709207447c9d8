#include "vocab/post_processor.h"

#include <limits>

#include "core/error.h"

namespace refold {
namespace {

using Item = PostProcessor::Item;

std::vector<Item> read_items(const JsonView& list, const JsonView& processor) {
    std::vector<Item> items;
    for (size_t i = 0; i < list.array().size(); ++i) {
        const JsonView item = list.at(i);
        const auto special = item.find("SpecialToken");
        const JsonView what = special ? *special : item.at("Sequence");
        const std::string name = what.at("id").string();
        const auto type = static_cast<int32_t>(what.at("type_id").integer(0, 1 << 20));
        if (!special) {
            if (name != "A" && name != "B") what.expected("the sequence A or B");
            items.push_back({name == "A" ? PostProcessor::kFirst : PostProcessor::kSecond, type});
            continue;
        }
        const JsonView ids = processor.at("special_tokens").at(name).at("ids");
        for (size_t k = 0; k < ids.array().size(); ++k) {
            const int64_t id = ids.at(k).integer(0, std::numeric_limits<int32_t>::max());
            items.push_back({static_cast<int32_t>(id), type});
        }
    }
    constexpr size_t kMost = 64;  // a text is repeated as often as it is named
    if (items.size() > kMost) list.expected("at most 64 tokens and texts");
    return items;
}

void append(std::span<const Item> items, std::span<const int32_t> first, std::span<const int32_t> second,
            PairEncoding& out) {
    for (const Item& item : items) {
        const int32_t id[] = {item.id};
        const std::span<const int32_t> ids = item.id == PostProcessor::kFirst ? first
                                             : item.id == PostProcessor::kSecond
                                                 ? second
                                                 : std::span<const int32_t>(id);
        out.ids.insert(out.ids.end(), ids.begin(), ids.end());
        out.token_types.insert(out.token_types.end(), ids.size(), item.type);
    }
}

}  // namespace

PostProcessor::PostProcessor(const JsonView& json) { read(json, 0); }

void PostProcessor::read(const JsonView& json, int depth) {
    const std::string type = json.at("type").string();
    if (type == "Sequence" && depth < 8) {
        const JsonView parts = json.at("processors");
        for (size_t i = 0; i < parts.array().size(); ++i) read(parts.at(i), depth + 1);
    } else if (type == "TemplateProcessing") {
        read_template(json);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
        read_bert(json, type == "RobertaProcessing");
    } else if (type != "ByteLevel") {  // "ByteLevel" only moves offsets
        fail(ErrorCode::unsupported, "tokenizer", "{}: the post-processor {} is not known", json.where(),
             json.json().dump());
    }
}

void PostProcessor::read_template(const JsonView& json) {
    single_ = read_items(json.at("single"), json);
    pair_ = read_items(json.at("pair"), json);
}

void PostProcessor::read_bert(const JsonView& json, bool roberta) {
    const auto id = [&](const char* key) {
        return static_cast<int32_t>(json.at(key).at(1).integer(0, std::numeric_limits<int32_t>::max()));
    };
    for (const char* key : {"cls", "sep"}) {
        if (json.at(key).array().size() != 2) json.at(key).expected("a token and its id");
    }
    const int32_t cls = id("cls"), sep = id("sep");
    single_ = {{cls, 0}, {kFirst, 0}, {sep, 0}};
    pair_ = single_;
    if (roberta) pair_.push_back({sep, 0});
    pair_.push_back({kSecond, roberta ? 0 : 1});
    pair_.push_back({sep, roberta ? 0 : 1});
}

std::vector<int32_t> PostProcessor::apply(std::span<const int32_t> text) const {
    PairEncoding out;
    append(single_, text, {}, out);
    return out.ids;
}

PairEncoding PostProcessor::apply(std::span<const int32_t> first, std::span<const int32_t> second) const {
    PairEncoding out;
    append(pair_, first, second, out);
    return out;
}

}  // namespace refold
