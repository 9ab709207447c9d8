// Tokenizer and chat template of a model: the public header. The vocabulary from Hugging Face files is
// vocab/hf_vocab.h's.
#pragma once

#include "refold/tokenizer.h"
