// records.cuh - the records of a job: which warp decodes which, their windows in shared memory, and their stores.
//
// A team of lanes takes every n-th record of its share. The front of a record is copied into a window of shared
// memory, in units of 16 bytes, while the team decodes records before it:
//
//   for each record of the team:
//     start copying the record n_stages - 1 further on; wait until the window of this one is there
//     decode it from the window and, where it has a rest, from global memory
//
// A wait is followed by __syncwarp, because lanes read what others copied, and so is the last read of a window,
// because it is copied over next.
// kernels/src/cuda/launch.rs plans the shared memory.
#pragma once
#include "bits.cuh"

enum : uint32_t {
  HEADER_BYTES = 64,
  RECORD_ELEMS = 1024,
  RAW_RECORD = 1u << 31,
  NO_OVERFLOW = RAW_RECORD - 1,
  MAX_STAGES = 4,
  SMALL_ELEMS = 256,
};

// One record, and where its raw bytes go.
struct Record {
  const uint32_t* front;  // its bytes in the front, in shared memory
  uint32_t n_front;       // words of them
  uint32_t offset;        // where they start, from the job's src
  uint32_t first_elem;    // its first element in its run
  uint32_t block_elem;    // its first element in the block
  uint32_t n_elems;
  uint32_t raw_bytes;
  unsigned char* out;
};

DEV void report(Status* status, const BlockJob& job, uint32_t flag) {
  atomicOr(&status->flags, flag);
  atomicMin(&status->first, job.number);
}

DEV uint32_t byte_of(const uint4& v, uint32_t i) {
  const uint32_t word = i < 8 ? (i < 4 ? v.x : v.y) : (i < 12 ? v.z : v.w);
  return word >> (8 * (i & 3));
}

// Stores the first n bytes of v, all of them where n is 16 or more, in the largest units that the address allows.
DEV void store(unsigned char* to, const uint4& v, uint32_t n) {
  const uint32_t address = (uint32_t)(uint64_t)to;
  if (n >= 16 && (address & 15) == 0) {
    *(uint4*)to = v;
  } else if (n >= 16 && (address & 3) == 0) {
    uint32_t* words = (uint32_t*)to;
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  } else if (n >= 16 && (address & 1) == 0) {
    UNROLL
    for (uint32_t i = 0; i < 16; i += 2) *(uint16_t*)(to + i) = (uint16_t)byte_of(v, i);
  } else {
    UNROLL
    for (uint32_t i = 0; i < 16; i++) {
      if (i < n) to[i] = (unsigned char)byte_of(v, i);
    }
  }
}

// The body of a record with a head; a rest that starts after the block is reported, and missing.
DEV Body body_of(const BlockJob& job, const Record& record, Status* status) {
  const uint32_t head = record.front[0], offset = head & NO_OVERFLOW;
  const uint32_t overflow_at = HEADER_BYTES + job.front_len;
  const uint32_t overflow_len = job.stored_len - overflow_at;
  Body body = {record.front + 1, record.n_front - 1, 0, nullptr, false};
  if (offset == NO_OVERFLOW) return body;
  if (offset > overflow_len) {
    report(status, job, STATUS_OVERFLOW);
    return body;
  }
  body.rest = (const unsigned char*)job.src + overflow_at + offset;
  body.rest_len = overflow_len - offset;
  body.has_rest = true;
  return body;
}

// Stores a record that was not packed; gives the bytes of its body.
template <int LANES>
DEV uint32_t copy_raw(const Team<LANES>& team, const BlockJob& job, const Record& record, const Body& body,
                  Status* status) {
  for (uint32_t at = 16 * team.lane; at < record.raw_bytes; at += 16 * LANES) {
    const uint32_t i = at / 4;
    const uint4 v = {word_of(body, i), word_of(body, i + 1), word_of(body, i + 2), word_of(body, i + 3)};
    store(record.out + at, v, record.raw_bytes - at);
  }
  const uint32_t n_front = 4 * body.n_front;
  if (record.raw_bytes > n_front && record.raw_bytes - n_front > body.rest_len) {
    report(status, job, STATUS_OVERFLOW);
  }
  return record.raw_bytes;
}

// Bytes of the window of a record of this stride: up to 12 bytes before the record, in units of 16, and 16 bytes
// that reads of the last bits may touch. launch.rs has the same.
DEV uint32_t window_bytes(uint32_t stride) { return ((stride + 12 + 15) & ~15u) + 16; }

DEV void wait_for_stage(uint32_t n_stages) {
  if (n_stages == 1) {
    cp_async_wait<0>();
  } else if (n_stages == 2) {
    cp_async_wait<1>();
  } else if (n_stages == 3) {
    cp_async_wait<2>();
  } else {
    cp_async_wait<3>();
  }
}

// Where records of a job are.
struct Places {
  uint32_t run_stride;   // bytes of a run in the front
  uint32_t run_elems;    // elements of a run
  uint32_t full_bytes;   // raw bytes of a full record
  uint32_t run_bytes;    // raw bytes of a run
  uint32_t stage_bytes;  // bytes of a window
  uint32_t n_stages;     // windows of a team
};

DEV Record record_at(const BlockJob& job, const Places& places, uint32_t number, uint32_t elem_bits) {
  const uint32_t run = number / job.records, in_run = number - run * job.records;
  const bool last = in_run + 1 == job.records;
  Record record;
  record.front = nullptr;
  record.n_front = (last ? job.tail_stride : job.record_stride) / 4;
  record.offset = HEADER_BYTES + run * places.run_stride + in_run * job.record_stride;
  record.first_elem = in_run * RECORD_ELEMS;
  record.block_elem = run * places.run_elems + record.first_elem;
  record.n_elems = last ? job.tail_elems : RECORD_ELEMS;
  record.raw_bytes = record.n_elems * elem_bits / 8;
  record.out = (unsigned char*)job.out + run * places.run_bytes + in_run * places.full_bytes;
  return record;
}

// Starts the copy of a record into a window.
template <int LANES>
DEV void fetch(const Team<LANES>& team, const BlockJob& job, const Record& record, unsigned char* window) {
  const uint32_t start = record.offset & ~15u, end = record.offset + 4 * record.n_front;
  const unsigned char* from = (const unsigned char*)job.src + start;
  for (uint32_t at = 16 * team.lane; at < end - start; at += 16 * LANES) cp_async16(window + at, from + at);
}

// Decodes this thread block's share of the records of a job; `codec` has elem_bits, and decodes one record.
template <int LANES, class Codec>
DEV void decode_records(const Codec& codec, const BlockJob& job, unsigned char* shared, uint32_t warp_bytes,
                        Status* status) {
  const Team<LANES> team = team_of_thread<LANES>();
  const uint32_t number = threadIdx.x / LANES, n_teams = blockDim.x / LANES;
  const uint32_t room = warp_bytes / (32 / LANES) & ~15u;
  // Within the memory of the warp, as warps may be at different jobs, with teams of other lengths.
  unsigned char* const ring = shared + threadIdx.x / 32 * warp_bytes + number % (32 / LANES) * room;
  Places places;
  places.run_stride = (job.records - 1) * job.record_stride + job.tail_stride;
  places.run_elems = (job.records - 1) * RECORD_ELEMS + job.tail_elems;
  places.full_bytes = RECORD_ELEMS * codec.elem_bits / 8;
  places.run_bytes = (job.records - 1) * places.full_bytes + job.tail_elems * codec.elem_bits / 8;
  places.stage_bytes = window_bytes(job.record_stride > job.tail_stride ? job.record_stride : job.tail_stride);
  places.n_stages = least(room / places.stage_bytes, MAX_STAGES);
  if (places.n_stages == 0) return;  // launch.rs plans at least one

  const uint32_t total = job.runs * job.records, share = (total + gridDim.y - 1) / gridDim.y;
  const uint32_t start = least(blockIdx.y * share, total), end = least(start + share, total);
  const uint32_t ahead = places.n_stages - 1;
  for (uint32_t i = 0; i < ahead; i++) {
    const uint32_t next = start + number + i * n_teams;
    if (next < end) fetch(team, job, record_at(job, places, next, codec.elem_bits), ring + i * places.stage_bytes);
    cp_async_commit();
  }
  uint32_t slot = 0;
  for (uint32_t i = start + number; i < end; i += n_teams) {
    const uint32_t next = i + ahead * n_teams, next_slot = slot == 0 ? ahead : slot - 1;
    if (next < end) {
      fetch(team, job, record_at(job, places, next, codec.elem_bits), ring + next_slot * places.stage_bytes);
    }
    cp_async_commit();
    wait_for_stage(places.n_stages);
    __syncwarp(team.mask);
    Record record = record_at(job, places, i, codec.elem_bits);
    record.front = (const uint32_t*)(ring + slot * places.stage_bytes + (record.offset & 15));
    codec.decode(team, job, record, status);
    __syncwarp(team.mask);
    slot = slot == ahead ? 0 : slot + 1;
  }
}

// Decodes this thread block's share of a job, with teams as long as its records.
template <class Codec>
DEV void decode_job(const Codec& codec, const BlockJob& job, unsigned char* shared, uint32_t warp_bytes,
                    Status* status) {
  if (job.records == 1 && job.tail_elems <= SMALL_ELEMS) {
    decode_records<8>(codec, job, shared, warp_bytes, status);
  } else {
    decode_records<32>(codec, job, shared, warp_bytes, status);
  }
  // The next job may have longer teams, which copy over the windows of several of these.
  __syncwarp(FULL);
}
