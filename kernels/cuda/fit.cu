// fit
#include "shared.h"
