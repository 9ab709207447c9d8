// A model's tokenizer and chat template for training.
#pragma once

#include <string>

#include "train/records.h"

namespace refold {

// From a GGUF file or a Hugging Face directory. Texts begin with BOS if the tokenizer adds it, and end with
// EOS if the model has one. Templates are rendered as transformers does (text/jinja.h), including a BOS that
// they write. A template that cannot be read is an error only when a dialogue needs it. Throws as Tokenizer
// does.
TrainTokenizer train_tokenizer(const std::string& model);

}  // namespace refold
