#pragma once
// The rules of elementwise updates, for which both kinds of devices have kernels. A new rule is its header, its name
// here, and a row in optim/rows.cpp.
#include "ops/rules/adamw.h"
#include "ops/rules/sgd.h"

#define TRAINER_RULES(X) X(AdamW) X(Sgd) X(SgdMomentum) X(SgdNesterov)
