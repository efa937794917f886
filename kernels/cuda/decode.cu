// Kernels that decode blocks: one thread block per block of the tensor, in blockIdx.y slices of its records.
#include "shared.h"

KERNEL void decode_raw(const BlockJob* __restrict__ jobs, uint32_t n_jobs, uint32_t warp_bytes, Status* status) {
  for (uint32_t j = blockIdx.x; j < n_jobs; j += gridDim.x) {
    const BlockJob job = jobs[j];
    const unsigned char* src = (const unsigned char*)job.src + 64;
    unsigned char* out = (unsigned char*)job.out;
    const uint32_t step = blockDim.x * gridDim.y;
    for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < job.raw_len; i += step) out[i] = src[i];
  }
}

EXPORT_KERNEL(decode_raw)
