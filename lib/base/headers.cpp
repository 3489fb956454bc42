// Nothing but the precompiled header of all modules.
#include "lib/base/headers.h"
