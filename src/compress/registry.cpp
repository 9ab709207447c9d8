// The table of methods. A new method adds its header and one entry.
#include <array>

#include "compress/method.h"
#include "compress/methods/cla.h"
#include "compress/methods/compensation.h"
#include "compress/methods/direct_share.h"
#include "compress/methods/drop.h"
#include "compress/methods/exit_map.h"
#include "compress/methods/ffn_share.h"
#include "compress/methods/gqa.h"
#include "compress/methods/laser.h"
#include "compress/methods/llm_pruner.h"
#include "compress/methods/llmdrop.h"
#include "compress/methods/lora.h"
#include "compress/methods/prefix.h"
#include "compress/methods/prune_magnitude.h"
#include "compress/methods/recursive.h"
#include "compress/methods/refit.h"
#include "compress/methods/relax.h"
#include "compress/methods/seq.h"
#include "compress/methods/tensorllm.h"
#include "compress/methods/train.h"
#include "compress/methods/trawl.h"
#include "compress/methods/uniattn.h"

namespace refold {

static constexpr std::array kMethods = {
    &kDirectShare, &kFfnShare, &kGqa,     &kSeq,          &kPruneMagnitude, &kLlmPruner, &kDrop,
    &kRecursive,   &kRelax,    &kLora,    &kPrefix,       &kTensorLlm,      &kLaser,     &kTrawl,
    &kUniAttn,     &kCla,      &kLlmDrop, &kCompensation, &kRefit,          &kTrain,     &kExitMap};

std::span<const Method* const> methods() { return kMethods; }

}  // namespace refold
