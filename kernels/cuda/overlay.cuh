// overlay.cuh - rows of an overlay over the raw bytes of its block: LAYOUT.md, section "Overlay".
#pragma once
#include "records.cuh"

enum : uint32_t { OVERLAY_NUMBERS_AT = 64 };  // where the row numbers start

// Copies the rows of one overlay; a row that the block lacks is reported, and nothing is written for it.
DEV void overlay_job(const OverlayJob& job, Status* status) {
  const uint32_t* numbers = (const uint32_t*)(job.src + OVERLAY_NUMBERS_AT);
  const unsigned char* rows = (const unsigned char*)job.src + job.rows_at;
  const uint32_t n_rows = job.raw_len / job.row_bytes, lane = threadIdx.x & 31;
  for (uint32_t i = threadIdx.x / 32; i < job.n_rows; i += blockDim.x / 32) {
    const uint32_t row = numbers[i];
    if (row >= n_rows) {
      atomicOr(&status->flags, (uint32_t)STATUS_OVERLAY);
      atomicMin(&status->first, job.number);
      continue;
    }
    const unsigned char* from = rows + (uint64_t)i * job.row_bytes;
    unsigned char* to = (unsigned char*)job.out + (uint64_t)row * job.row_bytes;
    // Up to 15 bytes one by one, until the row in the block is aligned; then 16 at a time, if the other is as well.
    const uint32_t skew = (uint32_t)(uint64_t)to & 15, apart = ((uint32_t)(uint64_t)from ^ (uint32_t)(uint64_t)to) & 15;
    const uint32_t head = apart ? job.row_bytes : least((16 - skew) & 15, job.row_bytes);
    for (uint32_t at = lane; at < head; at += 32) to[at] = from[at];
    const uint32_t tail = head + ((job.row_bytes - head) & ~15u);
    for (uint32_t at = head + 16 * lane; at < tail; at += 16 * 32) *(uint4*)(to + at) = ld_nc_v4((const uint4*)(from + at));
    for (uint32_t at = tail + lane; at < job.row_bytes; at += 32) to[at] = from[at];
  }
}
