// The output of a response: items that grow with the parts of the answer, and the events that tell of it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "serve/conversation/answer_parser.h"

namespace refold {

class OutputItems {
public:
    // Call ids of nine letters and digits, as some templates need them.
    explicit OutputItems(bool short_ids) : short_ids_(short_ids) {}

    // Adds a part; returns the events of a stream.
    std::string add(const AnswerPart& part);
    // Ends the latest item, which is incomplete where the answer broke off.
    std::string end(bool complete);
    // An event with the next number.
    std::string event(const char* type, const nlohmann::ordered_json& data);

    // Those that have ended.
    const nlohmann::ordered_json& items() const { return items_; }
    const std::string& reasoning() const { return reasoning_; }

private:
    std::string begin(const AnswerPart& part);
    // An event about the latest item, whose text is in `content_index` 0.
    std::string item_event(const char* type, const nlohmann::ordered_json& data);
    nlohmann::ordered_json content_part() const;

    const bool short_ids_;
    nlohmann::ordered_json items_ = nlohmann::ordered_json::array();
    nlohmann::ordered_json item_;           // that grows
    std::optional<AnswerPart::Kind> open_;  // its kind
    std::string text_, reasoning_;
    int64_t number_ = 0;
};

}  // namespace refold
