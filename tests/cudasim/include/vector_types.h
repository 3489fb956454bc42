// dim3 and uint3, as the toolkit's header of this name has them.
#pragma once
#include "tests/cudasim/core/dim.h"
