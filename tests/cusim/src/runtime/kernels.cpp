// The kernels that the CPU build registers: the same source files that NVRTC compiles for the GPU.
#define CUSIM
#include "decode.cu"
