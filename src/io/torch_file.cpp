#include "io/torch_file.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <variant>

#include "core/error.h"
#include "core/text.h"
#include "io/zip_entries.h"

namespace refold {
namespace {

// A pickle is a program for a machine with a stack and a memo (Python's pickletools.py describes it). These
// are the values that occur while one makes a dictionary of tensors.
struct Value;
using ValuePtr = std::shared_ptr<const Value>;
struct Global {
    std::string name;  // "torch._utils._rebuild_tensor_v2"
};
struct Tuple {
    std::vector<ValuePtr> items;  // of lists, too
};
struct Storage {
    const char* dtype = nullptr;  // as in safetensors
    std::string entry;
    std::span<const std::byte> bytes;
};
struct Dictionary {
    std::map<std::string, SafetensorsView> tensors;
    std::optional<std::string> other;  // the name of an item that is no tensor
};
struct Mark {};
struct Value {
    std::variant<std::monostate, Mark, int64_t, std::string, Global, Tuple, Storage, SafetensorsView,
                 std::shared_ptr<Dictionary>>
        is;
    int depth = 0;  // of tuples
};

// More than state dicts need; a hostile pickle costs little memory and time.
constexpr size_t kMaxPickle = 32 << 20, kMaxText = 1 << 12, kMaxValues = 2'000'000, kMaxDimensions = 16;
constexpr int kMaxDepth = 32;  // of tuples in tuples, which are destroyed recursively

// The name that safetensors have for the elements of a storage's class; nullptr for others.
const char* element_type(const std::string& name) {
    static const std::map<std::string, const char*> types{
        {"torch.FloatStorage", "F32"},  {"torch.HalfStorage", "F16"}, {"torch.BFloat16Storage", "BF16"},
        {"torch.DoubleStorage", "F64"}, {"torch.LongStorage", "I64"}, {"torch.IntStorage", "I32"},
        {"torch.ShortStorage", "I16"},  {"torch.CharStorage", "I8"},  {"torch.ByteStorage", "U8"},
        {"torch.BoolStorage", "BOOL"},
    };
    const auto found = types.find(name);
    return found == types.end() ? nullptr : found->second;
}

using Entries = std::map<std::string, std::span<const std::byte>>;

class Unpickler {
public:
    Unpickler(std::span<const std::byte> program, const Entries& entries, std::string folder,
              std::string path)
        : program_(program), entries_(entries), folder_(std::move(folder)), path_(std::move(path)) {}

    std::shared_ptr<Dictionary> run() {
        while (step(take<uint8_t>())) {
        }
        if (stack_.size() != 1) reject("more than one value");
        const auto* found = std::get_if<std::shared_ptr<Dictionary>>(&stack_.back()->is);
        if (found == nullptr) reject("something else than a dictionary of tensors");
        if (const auto& other = (*found)->other) reject(fmt::format("'{}', which is no tensor,", *other));
        return *found;
    }

private:
    [[noreturn]] void reject(const std::string& what) const {
        fail(ErrorCode::input, "torch file",
             "got {} at byte {} of the pickle, expected a state dict (file '{}')", what, at_, path_);
    }

    std::span<const std::byte> take_bytes(uint64_t count) {
        if (count > program_.size() - at_) reject("its end");
        const auto out = program_.subspan(at_, count);
        at_ += count;
        return out;
    }
    template <class Number>
    Number take() {
        Number value;
        memcpy(&value, take_bytes(sizeof(value)).data(), sizeof(value));
        return value;
    }
    std::string take_text(uint64_t count) {
        if (count > kMaxText) reject(fmt::format("a text of {} bytes", count));
        const auto bytes = take_bytes(count);
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    std::string take_line() {
        std::string line;
        for (char c; (c = static_cast<char>(take<uint8_t>())) != '\n';) {
            if (line.size() == kMaxText) reject("a long name");
            line += c;
        }
        return line;
    }

    template <class Is>
    void push(Is is, int depth = 0) {
        if (++values_ > kMaxValues) reject("too many values");
        stack_.push_back(std::make_shared<const Value>(Value{std::move(is), depth}));
    }
    ValuePtr pop() {
        if (stack_.empty()) reject("too few values");
        ValuePtr value = std::move(stack_.back());
        stack_.pop_back();
        return value;
    }
    // What was pushed after the last mark, which goes.
    std::vector<ValuePtr> pop_to_mark() {
        std::vector<ValuePtr> items;
        for (ValuePtr value = pop(); !std::holds_alternative<Mark>(value->is); value = pop())
            items.push_back(std::move(value));
        return {items.rbegin(), items.rend()};
    }
    template <class Is>
    const Is& as(const ValuePtr& value, const char* what) const {
        const Is* found = std::get_if<Is>(&value->is);
        if (found == nullptr) reject(fmt::format("something else than {}", what));
        return *found;
    }

    void push_tuple(std::vector<ValuePtr> items) {
        int depth = 0;
        for (const ValuePtr& item : items) depth = std::max(depth, item->depth + 1);
        if (depth > kMaxDepth) reject("tuples too deep");
        push(Tuple{std::move(items)}, depth);
    }
    void push_tuple(size_t count) {
        if (count > stack_.size()) reject("too few values");
        std::vector<ValuePtr> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
        stack_.resize(stack_.size() - count);
        push_tuple(std::move(items));
    }
    void keep(uint64_t place) {
        if (stack_.empty()) reject("too few values");
        memo_[place] = stack_.back();
    }
    void recall(uint64_t place) {
        const auto found = memo_.find(place);
        if (found == memo_.end()) reject(fmt::format("nothing at place {} of the memo", place));
        stack_.push_back(found->second);
    }

    // One instruction; false at the end.
    bool step(uint8_t code) {
        switch (code) {
            case 0x80: {  // PROTO
                const auto protocol = take<uint8_t>();
                if (protocol < 2 || protocol > 5) reject(fmt::format("protocol {}", protocol));
                break;
            }
            case 0x95: take<uint64_t>(); break;  // FRAME
            case '.': return false;
            case '(': push(Mark{}); break;
            case 'N': push(std::monostate{}); break;
            case 0x88: push(int64_t{1}); break;  // NEWTRUE
            case 0x89: push(int64_t{0}); break;  // NEWFALSE
            case 'J': push(int64_t{take<int32_t>()}); break;
            case 'K': push(int64_t{take<uint8_t>()}); break;
            case 'M': push(int64_t{take<uint16_t>()}); break;
            case 0x8a: push(take_long()); break;  // LONG1
            case 'X': push(take_text(take<uint32_t>())); break;
            case 0x8c: push(take_text(take<uint8_t>())); break;  // SHORT_BINUNICODE
            case ')': push_tuple(size_t{0}); break;
            case ']': push_tuple(size_t{0}); break;  // a list: of hooks, empty
            case 0x85: push_tuple(size_t{1}); break;
            case 0x86: push_tuple(size_t{2}); break;
            case 0x87: push_tuple(size_t{3}); break;
            case 't': push_tuple(pop_to_mark()); break;
            case '}': push(std::make_shared<Dictionary>()); break;
            case 'q': keep(take<uint8_t>()); break;
            case 'r': keep(take<uint32_t>()); break;
            case 0x94: keep(memo_.size()); break;  // MEMOIZE
            case 'h': recall(take<uint8_t>()); break;
            case 'j': recall(take<uint32_t>()); break;
            case 'c': {
                const std::string module = take_line();
                push_global(module, take_line());
                break;
            }
            case 0x93: {  // STACK_GLOBAL
                const ValuePtr name = pop(), module = pop();
                push_global(as<std::string>(module, "a name"), as<std::string>(name, "a name"));
                break;
            }
            case 'Q': push(storage(pop())); break;  // BINPERSID
            case 'R': {
                const ValuePtr arguments = pop(), function = pop();
                call(as<Global>(function, "a function").name, as<Tuple>(arguments, "arguments").items);
                break;
            }
            case 's': {
                const ValuePtr value = pop(), key = pop();
                set_items({key, value});
                break;
            }
            case 'u': set_items(pop_to_mark()); break;
            case 'b': {  // BUILD: attributes of the dictionary (_metadata: versions of modules)
                pop();
                if (stack_.empty()) reject("too few values");
                as<std::shared_ptr<Dictionary>>(stack_.back(), "a dictionary");
                break;
            }
            default: reject(fmt::format("instruction {:#04x}, which no state dict needs", code));
        }
        return true;
    }

    int64_t take_long() {
        const auto count = take<uint8_t>();
        if (count > 8) reject("an integer of more than 64 bits");
        const auto bytes = take_bytes(count);
        uint64_t value = 0;
        memcpy(&value, bytes.data(), count);
        if (count > 0 && count < 8 && (static_cast<uint8_t>(bytes.back()) & 0x80) != 0)
            value |= ~uint64_t{0} << (8 * count);
        return static_cast<int64_t>(value);
    }

    void push_global(const std::string& module, const std::string& name) {
        const std::string whole = module + "." + name;
        if (whole != "collections.OrderedDict" && whole != "torch._utils._rebuild_tensor_v2" &&
            whole != "torch._utils._rebuild_parameter" && element_type(whole) == nullptr)
            fail(ErrorCode::input, "torch file",
                 "it calls '{}', which no state dict needs; refold runs no code of files (file '{}')", whole,
                 path_);
        push(Global{whole});
    }

    // ("storage", type, name of the entry, device, elements)
    Storage storage(const ValuePtr& id) const {
        const auto& items = as<Tuple>(id, "a storage").items;
        if (items.size() != 5 || as<std::string>(items[0], "a storage") != "storage") reject("no storage");
        const std::string& type = as<Global>(items[1], "an element type").name;
        const char* known = element_type(type);
        if (known == nullptr) reject(fmt::format("the element type '{}'", type));
        const std::string& name = as<std::string>(items[2], "a storage");
        const auto entry = entries_.find(folder_ + "data/" + name);
        if (entry == entries_.end()) reject(fmt::format("storage '{}', which the file lacks,", name));
        return {known, name, entry->second};
    }

    void call(const std::string& function, const std::vector<ValuePtr>& arguments) {
        if (function == "collections.OrderedDict") {
            if (!arguments.empty() && !std::ranges::all_of(arguments, [](const ValuePtr& a) {
                    const Tuple* tuple = std::get_if<Tuple>(&a->is);
                    return tuple != nullptr && tuple->items.empty();
                }))
                reject("a dictionary with arguments");
            return push(std::make_shared<Dictionary>());
        }
        if (function == "torch._utils._rebuild_parameter") {  // (tensor, requires_grad, hooks)
            if (arguments.empty()) reject("no tensor");
            return push(as<SafetensorsView>(arguments[0], "a tensor"));
        }
        // (storage, offset, shape, strides, requires_grad, hooks)
        if (function != "torch._utils._rebuild_tensor_v2" || arguments.size() < 4)
            reject(fmt::format("a call of '{}'", function));
        push(tensor(as<Storage>(arguments[0], "a storage"), as<int64_t>(arguments[1], "an offset"),
                    numbers(arguments[2]), numbers(arguments[3])));
    }

    std::vector<int64_t> numbers(const ValuePtr& tuple) const {
        std::vector<int64_t> out;
        const auto& items = as<Tuple>(tuple, "a shape").items;
        if (items.size() > kMaxDimensions) reject(fmt::format("{} dimensions", items.size()));
        for (const ValuePtr& item : items) {
            out.push_back(as<int64_t>(item, "a number"));
            if (out.back() < 0) reject(fmt::format("the number {} in a shape", out.back()));
        }
        return out;
    }

    SafetensorsView tensor(const Storage& storage, int64_t offset, const std::vector<int64_t>& shape,
                           const std::vector<int64_t>& strides) const {
        uint64_t count = 1;
        if (offset < 0 || strides.size() != shape.size()) reject("a tensor of another form");
        for (size_t i = shape.size(); i-- > 0;) {
            if (shape[i] > 1 && static_cast<uint64_t>(strides[i]) != count)
                fail(ErrorCode::unsupported, "torch file",
                     "a tensor of shape [{}] has strides [{}]: only elements that lie one after the other "
                     "are read (file '{}')",
                     fmt::join(shape, ", "), fmt::join(strides, ", "), path_);
            if (__builtin_mul_overflow(count, static_cast<uint64_t>(shape[i]), &count))
                reject("too large a shape");
        }
        const uint64_t element = safetensors_element_bytes(storage.dtype),
                       held = storage.bytes.size() / element;
        const auto first = static_cast<uint64_t>(offset);
        if (first > held || count > held - first)
            reject(fmt::format("a tensor of {} elements from {} on in storage '{}', which has {},", count,
                               first, storage.entry, held));
        return {storage.dtype, shape, storage.bytes.subspan(first * element, count * element)};
    }

    // Keys and values in turn, into the dictionary below them.
    void set_items(const std::vector<ValuePtr>& items) {
        if (stack_.empty() || items.size() % 2 != 0) reject("too few values");
        const auto& dictionary = as<std::shared_ptr<Dictionary>>(stack_.back(), "a dictionary");
        for (size_t i = 0; i < items.size(); i += 2) {
            const auto& name = as<std::string>(items[i], "a name");
            const auto* view = std::get_if<SafetensorsView>(&items[i + 1]->is);
            if (view == nullptr)
                dictionary->other = name;
            else if (!dictionary->tensors.emplace(name, *view).second)
                reject(fmt::format("tensor '{}' twice", name));
        }
    }

    std::span<const std::byte> program_;
    const Entries& entries_;
    std::string folder_, path_;
    size_t at_ = 0;
    std::vector<ValuePtr> stack_;
    std::map<uint64_t, ValuePtr> memo_;
    size_t values_ = 0;
};

bool ends_with_entry(const std::string& name, std::string_view entry) {
    return name.ends_with(entry) &&
           (name.size() == entry.size() || name[name.size() - entry.size() - 1] == '/');
}

}  // namespace

SafetensorsFile read_torch_file(const std::string& path) {
    SafetensorsFile out;
    out.file = std::make_unique<const MappedFile>(path);
    const auto bytes = out.file->bytes();
    if (bytes.size() >= 2 && bytes[0] == std::byte{0x80})  // a bare pickle
        fail(ErrorCode::unsupported, "torch file",
             "'{}' was saved by PyTorch before version 1.6 - save it again, as safetensors", path);
    const Entries entries = stored_zip_entries(bytes, path);
    constexpr std::string_view pickle = "data.pkl";
    const auto program = std::ranges::find_if(
        entries, [&](const auto& entry) { return ends_with_entry(entry.first, pickle); });
    if (program == entries.end())
        fail(ErrorCode::input, "torch file", "'{}' has no data.pkl: it is no file of torch.save()", path);
    if (program->second.size() > kMaxPickle)
        fail(ErrorCode::unsupported, "torch file", "data.pkl of '{}' has {} bytes, expected at most {}", path,
             program->second.size(), kMaxPickle);
    const std::string folder = program->first.substr(0, program->first.size() - pickle.size());
    if (const auto order = entries.find(folder + "byteorder"); order != entries.end()) {
        const std::string name(reinterpret_cast<const char*>(order->second.data()), order->second.size());
        if (name != "little")
            fail(ErrorCode::unsupported, "torch file", "'{}' has the byte order '{}'", path, name);
    }
    out.tensors = std::move(Unpickler(program->second, entries, folder, path).run()->tensors);
    return out;
}

}  // namespace refold
