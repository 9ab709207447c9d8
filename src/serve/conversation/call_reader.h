// Reads a call of a tool, which is JSON, while it is written.
#pragma once

#include <string>
#include <string_view>

namespace refold {

class CallReader {
public:
    enum class State { reading, done, broken };

    // {"name": NAME, "arguments": {...}}, with any other keys; "parameters" is another name of "arguments".
    CallReader() = default;
    // The arguments alone, of a call whose name is known.
    static CallReader of_arguments();

    // Takes what of the text belongs to the call; returns its bytes. Takes nothing once it is not reading.
    size_t push(std::string_view text);
    // Broken: it is no call. Once the name is known, a call stays one.
    State state() const { return state_; }
    // Empty: not known yet.
    const std::string& name() const { return name_; }
    // Arguments as JSON that came since the last call. Control characters within its texts, which models
    // write as they are, are escaped. A call without arguments has "{}".
    std::string take_arguments();

private:
    enum class Expect { object, key, in_key, colon, value, in_value, comma };

    // Returns whether the character was taken.
    bool take(char c);
    void begin_value(char c);
    bool continue_value(char c);
    void end_value();
    void add(char c);
    void finish();

    State state_ = State::reading;
    Expect expect_ = Expect::object;
    bool alone_ = false;  // arguments without an object around them
    bool text_ = false, escaped_ = false;
    int depth_ = 0;          // of the value
    bool streamed_ = false;  // the value is arguments, which are passed on as they come
    bool any_ = false;       // arguments were passed on
    std::string key_, value_, name_, arguments_;
};

}  // namespace refold
