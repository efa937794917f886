// raw.cuh - codec raw: the raw bytes follow the header.
#pragma once
#include "records.cuh"

// Copies this thread block's share of a block; neighboring threads copy neighboring 16 bytes.
DEV void decode_raw_job(const BlockJob& job) {
  const unsigned char* src = (const unsigned char*)job.src + HEADER_BYTES;
  unsigned char* out = (unsigned char*)job.out;
  const uint32_t total = (job.raw_len + 15) / 16, share = (total + gridDim.y - 1) / gridDim.y;
  const uint32_t start = least(blockIdx.y * share, total), end = least(start + share, total);
  for (uint32_t i = start + threadIdx.x; i < end; i += blockDim.x) {
    // The last 16 bytes may end after the block, and then within the 64 that it is rounded up to.
    store(out + 16 * i, ld_nc_v4((const uint4*)(src + 16 * i)), job.raw_len - 16 * i);
  }
}
