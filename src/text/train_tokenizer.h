// A model's tokenizer and chat template as training uses them.
#pragma once

#include <string>

#include "train/records.h"

namespace refold {

// Of a GGUF file or a Hugging Face directory. Texts begin with BOS where the tokenizer adds it, and end with
// EOS where the model has one. Templates are rendered as transformers does (text/jinja.h), BOS included where
// they write it; one that cannot be read is an error when a dialogue comes. Throws as Tokenizer does.
TrainTokenizer train_tokenizer(const std::string& model);

}  // namespace refold
