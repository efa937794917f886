// The kernels of module encode; see kernels.cpp.
#define CUSIM
#include "encode.cu"
