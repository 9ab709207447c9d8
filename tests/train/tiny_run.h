// A tiny model, and a tiny text to train it on.
#pragma once

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/temp_folder.h"
#include "model/small_model.h"
#include "train/train.h"

namespace refold {

// Bytes as tokens of a vocabulary of 8.
inline TrainTokenizer byte_tokenizer() {
    TrainTokenizer out;
    out.identity = "bytes modulo 8";
    out.tokens = [](std::string_view text) {
        std::vector<int32_t> tokens;
        for (const char c : text) tokens.push_back(static_cast<unsigned char>(c) % 8);
        return tokens;
    };
    out.template_tokens = out.tokens;
    return out;
}

// "abcd" repeated, with random other letters now and then: learnable, but never perfectly.
inline std::string tiny_text(size_t length = 3000) {
    std::string text;
    uint64_t x = 1;
    for (size_t i = 0; i < length; ++i) {
        x = x * 6364136223846793005ULL + 1442695040888963407ULL;
        text += (x >> 40) % 7 == 0 ? static_cast<char>('a' + (x >> 50) % 7) : static_cast<char>('a' + i % 4);
    }
    return text;
}

inline Model tiny_model(float scale = 0.3F, int64_t layers = 3) {
    SmallShape shape;
    shape.layers = layers;
    Model model = small_model(shape, [&](size_t layer, Slot slot, int64_t row, int64_t column) {
        return is_vector(slot) ? 1.0F : scale * scattered(layer, slot, row, column);
    });
    return model;
}

// A training run in its own folder.
struct TinyRun {
    TempFolder folder;
    std::string shared_folder;  // of the checkpoint; empty: in `folder`
    Model model = tiny_model();
    TrainOptions options;
    ObjectiveOptions objective = {
        {"alpha", "0.5"}, {"divergence", "fkl"},          {"temperature", "1"},   {"teacher_cache", "0"},
        {"exits", "1"},   {"coefficients", "aggressive"}, {"coefficient", "0.1"}, {"exit_target", "ce+kd"},
        {"gamma", "0.5"}, {"weighting", "paper"}};
    std::vector<HeadPair> pairs;
    const Model* teacher = nullptr;
    SequenceLogits teacher_logits;
    std::string identity = "model: tiny\ntext: letters\n";
    std::vector<StepMetrics> metrics;
    int64_t prepared = 0;                  // calls of TrainRequest::prepare
    std::map<int64_t, TensorValues> kept;  // by number
    int64_t interrupted_at = 0;            // number of the model that is not written
    // Stop each call of run() after this many steps; -1: never.
    int64_t stop_after = -1;

    TinyRun() {
        options.steps = 6;
        options.batch = 4;
        options.micro_batch = 2;
        options.context = 16;
        options.learning_rate = 3e-2;
        options.evaluate_every = 2;
        write_all(folder / "text.txt", tiny_text());
    }

    TrainData data() const {
        return TrainData::open({{folder / "text.txt"}, options.context, true, 0.1, folder / "data"},
                               byte_tokenizer());
    }

    TrainResult run(const std::function<TrainResult(const TrainRequest&)>& how) {
        const TrainData text = data();
        TrainRequest request{model,     teacher, options,
                             objective, text,    shared_folder.empty() ? folder / "run" : shared_folder,
                             identity,  1};
        request.pairs = pairs;
        request.teacher_logits = teacher_logits;
        request.keep = [&](int64_t number, TensorValues tensors) {
            if (number == interrupted_at) return false;
            kept[number] = std::move(tensors);
            return true;
        };
        int64_t steps = 0;
        request.report = [&](const StepMetrics& m) {
            metrics.push_back(m);
            if (m.values.contains("loss")) ++steps;
        };
        request.prepare = [&](const std::string&, int64_t, int64_t) { ++prepared; };
        request.stop = [&] { return stop_after >= 0 && steps >= stop_after; };
        return how(request);
    }

    // The values of one metric, in the order of steps.
    std::vector<double> figures(const std::string& name) const {
        std::vector<double> out;
        for (const auto& m : metrics)
            if (const auto found = m.values.find(name); found != m.values.end()) out.push_back(found->second);
        return out;
    }
};

}  // namespace refold
