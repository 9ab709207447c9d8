#include "serve/conversation/call_reader.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/json_text.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool opens(char c) { return c == '{' || c == '['; }
bool closes(char c) { return c == '}' || c == ']'; }

}  // namespace

CallReader CallReader::of_arguments() {
    CallReader out;
    out.alone_ = true;
    out.key_ = "arguments";
    out.expect_ = Expect::value;
    return out;
}

size_t CallReader::push(std::string_view text) {
    size_t taken = 0;
    while (state_ == State::reading && taken < text.size() && take(text[taken])) ++taken;
    return taken;
}

std::string CallReader::take_arguments() { return std::exchange(arguments_, {}); }

void CallReader::finish() {
    state_ = name_.empty() && !alone_ ? State::broken : State::done;
    if (state_ == State::done && !std::exchange(any_, true)) arguments_ = "{}";
}

bool CallReader::take(char c) {
    if (expect_ != Expect::in_value && expect_ != Expect::in_key && is_space(c)) return true;
    switch (expect_) {
        case Expect::object:
            if (c != '{') state_ = State::broken;
            expect_ = Expect::key;
            return state_ == State::reading;
        case Expect::key:
            if (c == '}') {
                finish();
                return state_ == State::done;
            }
            if (c != '"') {
                finish();
                return false;
            }
            key_ = "\"";
            expect_ = Expect::in_key;
            return true;
        case Expect::in_key:
            key_ += c;
            if (escaped_) {
                escaped_ = false;
            } else if (c == '\\') {
                escaped_ = true;
            } else if (c == '"') {
                const Json parsed = try_parse_json<Json>(key_);
                key_ = parsed.is_string() ? parsed.get<std::string>() : "";
                if (key_ == "parameters") key_ = "arguments";
                expect_ = Expect::colon;
            }
            return true;
        case Expect::colon:
            expect_ = Expect::value;
            if (c == ':') return true;
            finish();
            return false;
        case Expect::value: begin_value(c); return true;
        case Expect::in_value: return continue_value(c);
        case Expect::comma: break;
    }
    if (c == ',') {
        expect_ = Expect::key;
        return true;
    }
    finish();
    return c == '}' && state_ == State::done;
}

void CallReader::begin_value(char c) {
    value_.clear();
    streamed_ = key_ == "arguments" && opens(c) && !any_;
    text_ = c == '"';
    depth_ = opens(c) ? 1 : 0;
    expect_ = Expect::in_value;
    add(c);
}

// A number or a literal ends where something else begins, which is not part of it.
bool CallReader::continue_value(char c) {
    if (!text_ && depth_ == 0 && (is_space(c) || c == ',' || closes(c))) {
        end_value();
        return state_ == State::reading && take(c);
    }
    add(c);
    if (text_) {
        if (escaped_) {
            escaped_ = false;
        } else if (c == '\\') {
            escaped_ = true;
        } else if (c == '"') {
            text_ = false;
            if (depth_ == 0) end_value();
        }
    } else if (c == '"') {
        text_ = true;
    } else if (opens(c)) {
        ++depth_;
    } else if (closes(c) && --depth_ == 0) {
        end_value();
    }
    return true;
}

void CallReader::add(char c) {
    std::string& to = streamed_ ? arguments_ : value_;
    any_ = any_ || streamed_;
    if (text_ && static_cast<unsigned char>(c) < 0x20) {
        to += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
        to += c;
    }
}

void CallReader::end_value() {
    expect_ = Expect::comma;
    const bool was_streamed = std::exchange(streamed_, false);
    if (key_ == "name" && name_.empty()) {  // the first one counts: it may have been told already
        const Json parsed = try_parse_json<Json>(value_);
        if (parsed.is_string()) name_ = parsed.get<std::string>();
        if (name_.empty()) state_ = State::broken;
    } else if (key_ == "arguments" && !was_streamed && !any_) {
        // Some models write the arguments as a text that is JSON.
        const Json parsed = try_parse_json<Json>(value_);
        if (parsed.is_string()) arguments_ = parsed.get<std::string>();
        any_ = !arguments_.empty();
    }
    if (alone_ && state_ == State::reading) finish();
}

}  // namespace refold
