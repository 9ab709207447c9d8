// A model that is there for as long as the test.
#pragma once

#include "serve/served_model.h"

namespace refold {

class OneModel : public Models {
public:
    explicit OneModel(std::shared_ptr<ServedModel> model) : model_(std::move(model)) {}
    std::shared_ptr<ServedModel> find(const std::string& name, const std::function<void()>&) override {
        if (!name.empty() && name != model_->info.name) throw no_such_model(name, {model_->info.name});
        return model_;
    }
    std::vector<ListedModel> list() override {
        return {{.info = model_->info, .state = ModelState::loaded, .loads = 1, .model = model_}};
    }
    void shutdown(std::chrono::milliseconds grace) override { model_->shutdown(grace); }

private:
    const std::shared_ptr<ServedModel> model_;
};

}  // namespace refold
