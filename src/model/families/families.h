// The architectures, one file each.
#pragma once

#include "model/family.h"

namespace refold {

extern const Family kLlamaFamily;  // Llama 1-3, TinyLlama, SmolLM, Mistral
extern const Family kQwen2Family;
extern const Family kGemmaFamily;
extern const Family kGemma2Family;
extern const Family kGemma3Family;
extern const Family kGptNeoxFamily;  // GPT-NeoX, Pythia
extern const Family kGptjFamily;
extern const Family kGpt2Family;
extern const Family kBaichuanFamily;   // Baichuan 1
extern const Family kBaichuan2Family;  // with normalised output rows
extern const Family kBertFamily;
extern const Family kRobertaFamily;

}  // namespace refold
