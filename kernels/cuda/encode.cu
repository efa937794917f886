// encode
#include "shared.h"
