// PairEncoding, of the public header.
#pragma once

#include "refold/tokenizer.h"
