#include "serve/conversation/answer_parser.h"

#include <algorithm>
#include <utility>

namespace refold {
namespace {

using Kind = AnswerPart::Kind;
using Shape = ToolForm::Shape;

constexpr std::string_view kSpace = " \n\r\t";

// Length of the longest end of `text` that `mark` begins with, short of all of it.
size_t begun(std::string_view text, std::string_view mark) {
    size_t length = std::min(text.size(), mark.size() - 1);
    while (length > 0 && !text.ends_with(mark.substr(0, length))) --length;
    return length;
}

// Bytes of white space at the end of the first `size` of `text`.
size_t space_before(std::string_view text, size_t size) {
    const size_t last = text.substr(0, size).find_last_not_of(kSpace);
    return last == std::string_view::npos ? size : size - last - 1;
}

}  // namespace

AnswerParser::AnswerParser(const AnswerParts& parts) : of_(parts) {
    using Reasoning = AnswerParts::Reasoning;
    may_reason_ = parts.reasoning == Reasoning::may_begin;
    const bool whole = parts.calls != nullptr && parts.calls->shape == Shape::whole;
    if (parts.reasoning == Reasoning::begun) {
        state_ = State::reasoning;
        drop_space_ = true;
    } else if (!may_reason_ && !whole) {
        state_ = State::content;
    }
}

std::vector<AnswerPart> AnswerParser::push(std::string_view text) {
    held_ += text;
    while (step()) {
    }
    return std::exchange(out_, {});
}

std::vector<AnswerPart> AnswerParser::finish(std::optional<std::string_view> cut) {
    last_ = true;
    next_ = cut;
    while (step()) {
    }
    return std::exchange(out_, {});
}

std::vector<AnswerPart> AnswerParser::parts(const GenerationEvent& event) {
    std::vector<AnswerPart> out = push(event.text);
    if (!event.finished) return out;
    std::optional<std::string_view> cut;
    if (*event.finished != FinishReason::stop) cut = "";
    if (!event.stop_text.empty()) cut = event.stop_text;
    for (AnswerPart& part : finish(cut)) out.push_back(std::move(part));
    return out;
}

void AnswerParser::add(Kind kind, std::string text, std::string id) {
    if (text.empty()) return;
    if (!out_.empty() && out_.back().kind == kind && kind != Kind::call) {
        out_.back().text += text;
    } else {
        out_.push_back({kind, std::move(text), std::move(id)});
    }
}

bool AnswerParser::may_become(size_t at, std::string_view mark) const {
    const std::string_view rest = std::string_view(held_).substr(at);
    return !last_ && rest.size() < mark.size() && mark.starts_with(rest);
}

size_t AnswerParser::cut_mark(size_t size, std::string_view mark) const {
    if (!last_ || !next_ || mark.empty()) return 0;
    const std::string_view text = std::string_view(held_).substr(0, size);
    for (size_t length = std::min(text.size(), mark.size() - 1); length > 0; --length) {
        const std::string_view rest = mark.substr(length);
        if (text.ends_with(mark.substr(0, length)) &&
            (rest.starts_with(*next_) || std::string_view(*next_).starts_with(rest)))
            return length;
    }
    return 0;
}

size_t AnswerParser::skip_space() const { return std::min(held_.find_first_not_of(kSpace), held_.size()); }

void AnswerParser::take(size_t bytes) {
    if (!said_) raw_ += held_.substr(0, bytes);
    held_.erase(0, bytes);
}

// Each step returns whether another one is to follow.
bool AnswerParser::step() {
    switch (state_) {
        case State::start: return step_start();
        case State::reasoning: return step_reasoning();
        case State::content: return step_content();
        case State::name: return step_name();
        case State::list: return step_list();
        case State::call: return step_call();
        case State::after: return step_after();
    }
    return false;
}

bool AnswerParser::step_start() {
    const size_t at = skip_space();
    if (at == held_.size() && !last_) return false;
    const std::string_view rest = std::string_view(held_).substr(at);
    const auto is_cut = [&](std::string_view mark) {
        return !rest.empty() && cut_mark(held_.size(), mark) == rest.size();
    };
    const bool call_cut = of_.calls != nullptr && is_cut(of_.calls->begin);
    if (call_cut || (may_reason_ && is_cut(of_.marks.begin))) {
        cut_ = call_cut;
        held_.clear();
        return true;
    }
    if (may_reason_) {
        if (may_become(at, of_.marks.begin)) return false;
        if (rest.starts_with(of_.marks.begin)) {
            held_.erase(0, at + of_.marks.begin.size());
            may_reason_ = false;
            drop_space_ = true;
            state_ = State::reasoning;
            return true;
        }
    }
    if (of_.calls != nullptr && of_.calls->shape == Shape::whole) {
        if (may_become(at, of_.calls->begin)) return false;
        const bool marked = rest.starts_with(of_.calls->begin);
        if (marked || rest.starts_with('{')) {
            begin_calls(marked || !of_.json);
            take(at + (marked ? of_.calls->begin.size() : 0));
            return true;
        }
    }
    may_reason_ = false;
    state_ = State::content;
    return true;
}

bool AnswerParser::step_reasoning() {
    if (drop_space_) {
        held_.erase(0, skip_space());
        drop_space_ = held_.empty();
    }
    const std::string_view mark = of_.marks.end;
    const size_t found = held_.find(mark);
    const bool ends = found != std::string::npos;
    size_t size = ends ? found : held_.size() - (last_ ? cut_mark(held_.size(), mark) : begun(held_, mark));
    const size_t space = space_before(held_, size);
    add(Kind::reasoning, held_.substr(0, size - space));
    held_.erase(0, ends ? found + mark.size() : last_ ? held_.size() : size - space);
    if (!ends) return false;
    drop_space_ = true;
    state_ = State::start;
    return true;
}

bool AnswerParser::step_content() {
    if (drop_space_) {
        held_.erase(0, skip_space());
        drop_space_ = held_.empty();
    }
    const bool marked = of_.calls != nullptr && of_.calls->shape != Shape::whole;
    if (!marked) {
        add(Kind::content, std::exchange(held_, {}));
        return false;
    }
    const std::string_view mark = of_.calls->begin;
    const size_t found = held_.find(mark);
    if (found == std::string::npos) {
        const size_t mark_begun = last_ ? cut_mark(held_.size(), mark) : begun(held_, mark);
        size_t size = held_.size() - mark_begun;
        if (!last_ || mark_begun > 0) size -= space_before(held_, size);
        cut_ = cut_ || (last_ && mark_begun > 0);
        add(Kind::content, held_.substr(0, size));
        held_.erase(0, last_ ? held_.size() : size);
        return false;
    }
    const size_t space = space_before(held_, found);
    add(Kind::content, held_.substr(0, found - space));
    held_.erase(0, found - space);
    begin_calls(true);
    take(space + mark.size());
    return true;
}

void AnswerParser::begin_calls(bool marked) {
    marked_ = marked;
    raw_.clear();
    said_ = false;
    switch (of_.calls->shape) {
        case Shape::named: state_ = State::name; break;
        case Shape::list: state_ = State::list; break;
        default: begin_call();
    }
}

void AnswerParser::begin_call() {
    reader_ = CallReader();
    name_.clear();
    id_.clear();
    said_ = false;
    state_ = State::call;
}

// It was no call. The beginning of one that the answer's end cuts is no text: nobody wants to read its marks.
void AnswerParser::take_back(bool cut) {
    if (cut && marked_) {
        cut_ = true;
        raw_.clear();
        held_.clear();
    }
    add(Kind::content, std::exchange(raw_, {}));
    drop_space_ = false;
    state_ = State::content;
}

// NAME, an id where the form has one, and what the arguments begin with.
bool AnswerParser::step_name() {
    constexpr size_t kLongest = 256;
    const ToolForm& form = *of_.calls;
    const std::string_view seen = std::string_view(held_).substr(0, kLongest);  // however much is there
    const size_t brace = seen.find('{');
    size_t end = seen.find(form.arguments_mark);
    size_t skip = form.arguments_mark.size();
    if (brace < end) {  // some models leave the mark out
        end = brace;
        skip = 0;
    }
    if (end == std::string::npos) {
        if (!last_ && seen.size() < kLongest) return false;
        const bool cut = last_ && seen.size() < kLongest;
        take(seen.size());
        take_back(cut);
        return true;
    }
    std::string name = held_.substr(0, end), id;
    if (const size_t mark = name.find(form.id_mark); !form.id_mark.empty() && mark != std::string::npos) {
        id = name.substr(mark + form.id_mark.size());
        name.resize(mark);
    }
    take(end + skip);
    const size_t space = std::min(name.find_first_not_of(kSpace), name.size());
    name.erase(0, space);
    name.resize(name.size() - space_before(name, name.size()));
    if (name.empty() || name.find_first_of(kSpace) != std::string::npos) {
        take_back();
        return true;
    }
    begin_call();
    reader_ = CallReader::of_arguments();
    name_ = name;
    id_ = id;
    return true;
}

bool AnswerParser::step_list() {
    const size_t at = skip_space();
    if (at == held_.size() && !last_) return false;
    if (at < held_.size() && held_[at] == '[') {
        take(at + 1);
        begin_call();
    } else {
        const bool cut = at == held_.size();
        take(at);
        take_back(cut);
    }
    return true;
}

bool AnswerParser::step_call() {
    take(reader_.push(held_));
    if (name_.empty()) name_ = reader_.name();
    if (!name_.empty()) {
        if (!std::exchange(said_, true)) add(Kind::call, name_, id_);
        raw_.clear();
        add(Kind::arguments, reader_.take_arguments());
    }
    if (reader_.state() == CallReader::State::reading) {
        if (!last_) return false;
        if (said_) {
            cut_ = true;
            held_.clear();
            state_ = State::after;
        } else {
            take_back(true);
        }
        return true;
    }
    if (said_) {
        state_ = State::after;
    } else {
        take_back();
    }
    return true;
}

// What stands between calls, and after the last one.
bool AnswerParser::step_after() {
    const ToolForm& form = *of_.calls;
    const size_t at = skip_space();
    if (at == held_.size() && !last_) return false;
    const std::string_view rest = std::string_view(held_).substr(at);
    drop_space_ = marked_ = true;
    switch (form.shape) {
        case Shape::object:
            if (may_become(at, form.end)) return false;
            if (rest.starts_with(form.end) ||
                form.end.starts_with(rest))  // all of it, or the text ends in it
                held_.erase(0, at + std::min(rest.size(), form.end.size()));
            state_ = State::content;
            return true;
        case Shape::list:
            if (rest.starts_with(',')) {
                begin_call();
                take(at + 1);
                return true;
            }
            held_.erase(0, rest.starts_with(']') ? at + 1 : 0);
            state_ = State::content;
            return true;
        case Shape::whole:  // calls one after the other, some with ";" between them
            if (rest.starts_with(';')) {
                held_.erase(0, at + 1);
            } else if (rest.starts_with('{')) {
                begin_call();
            } else {
                state_ = State::content;
            }
            return true;
        case Shape::named: state_ = State::content; return true;
    }
    return false;
}

}  // namespace refold
