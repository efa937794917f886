// The kernels of module fit; see kernels.cpp.
#define CUSIM
#include "fit.cu"
