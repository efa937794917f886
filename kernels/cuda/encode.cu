// Kernels that encode blocks: one warp packs a record into a slot, then one thread block places those of a block.
#include "encode_ibp.cuh"
#include "encode_planes.cuh"
#include "encode_sparse.cuh"

using namespace encode;

KERNEL void encode_records_ibp(const EncodeJob* __restrict__ jobs, uint32_t n_jobs, uint32_t warp_bytes) {
  encode_records<IbpEncoder>(jobs, n_jobs, warp_bytes);
}
KERNEL void encode_records_planes4(const EncodeJob* __restrict__ jobs, uint32_t n_jobs, uint32_t warp_bytes) {
  encode_records<PlanesEncoder<FOUR>>(jobs, n_jobs, warp_bytes);
}
KERNEL void encode_records_planes3(const EncodeJob* __restrict__ jobs, uint32_t n_jobs, uint32_t warp_bytes) {
  encode_records<PlanesEncoder<THREE>>(jobs, n_jobs, warp_bytes);
}
KERNEL void encode_records_planes222(const EncodeJob* __restrict__ jobs, uint32_t n_jobs, uint32_t warp_bytes) {
  encode_records<PlanesEncoder<TIERS>>(jobs, n_jobs, warp_bytes);
}
KERNEL void encode_records_sparse(const EncodeJob* __restrict__ jobs, uint32_t n_jobs, uint32_t warp_bytes) {
  encode_records<SparseEncoder>(jobs, n_jobs, warp_bytes);
}

// Bytes of a record that go to the overflow: what its stride has no room for, or its escapes.
DEV uint32_t rest_of(const EncodeJob& job, const Record& record, const RecordNote& note) {
  if (job.list_at != 0) return 4 * (note.chunks - note.participating);
  const uint32_t body_len = note.body & ~(NOTE_RAW | NOTE_UNFIT), inside = record.stride - HEAD_BYTES;
  return body_len > inside ? body_len - inside : 0;
}

// Writes one record where it goes, with all lanes of a warp.
DEV void place_record(const EncodeJob& job, uint32_t number, const RecordNote& note, uint32_t lane) {
  const Record record = record_at(job, number);
  unsigned char* const work = (unsigned char*)job.work;
  unsigned char* front = work + job.out_at + record.front_at;
  unsigned char* const overflow = work + job.out_at + job.front_len + note.rest_at;
  const unsigned char* body = work + job.slots_at + (uint64_t)number * job.slot_bytes;
  const uint32_t rest = rest_of(job, record, note);
  uint32_t stride = record.stride, body_len = note.body & ~(NOTE_RAW | NOTE_UNFIT);
  const unsigned char* rest_from = body + job.list_at;
  if (job.list_at == 0) {
    if ((note.body & NOTE_RAW) != 0) body = (const unsigned char*)job.raw + record.raw_at;
    const uint32_t head = (note.body & NOTE_RAW ? HEAD_RAW : 0) | (rest == 0 ? HEAD_NO_REST : note.rest_at);
    if (lane == 0) *(uint32_t*)front = head;
    front += HEAD_BYTES;
    stride -= HEAD_BYTES;
    body_len = least(body_len, stride);
    rest_from = body + body_len;
  }
  copy_bytes(front, body, body_len, lane);
  for (uint32_t i = body_len + lane; i < stride; i += 32) front[i] = 0;
  copy_bytes(overflow, rest_from, rest, lane);
}

// Adds up what each thread of the thread block has; thread 0 gets the sum. `sums` has a word per warp.
DEV uint32_t sum_of_all(uint32_t value, uint32_t* sums) {
  const uint32_t warp_sum = __reduce_add_sync(FULL, value);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = warp_sum;
  __syncthreads();
  uint32_t sum = 0;
  for (uint32_t i = 0; i < blockDim.x / 32 && threadIdx.x == 0; i++) sum += sums[i];
  return sum;
}

// Says where the rest of every record goes, then writes front and overflow; one thread block per block.
KERNEL void place_records(const EncodeJob* __restrict__ jobs, uint32_t n_jobs) {
  SHARED(uint32_t, sums, 32);
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  for (uint32_t j = blockIdx.x; j < n_jobs; j += gridDim.x) {
    const EncodeJob job = jobs[j];
    RecordNote* const notes = (RecordNote*)(job.work + sizeof(EncodeResult));
    const uint32_t total = job.runs * job.records;
    uint32_t overflow_len = 0, unfit = 0, chunks = 0, participating = 0;
    for (uint32_t first = 0; first < total; first += blockDim.x) {
      const uint32_t r = first + threadIdx.x;
      uint32_t rest = 0;
      if (r < total) {
        const RecordNote note = notes[r];
        rest = rest_of(job, record_at(job, r), note);
        unfit |= note.body & NOTE_UNFIT;
        chunks += note.chunks;
        participating += note.participating;
      }
      const uint32_t end = sum_up_to(rest, lane);
      if (lane == 31) sums[warp] = end;
      __syncthreads();
      uint32_t before = overflow_len;
      for (uint32_t i = 0; i < warps; i++) {
        if (i < warp) before += sums[i];
        overflow_len += sums[i];
      }
      if (r < total) notes[r].rest_at = before + end - rest;
      __syncthreads();
    }
    chunks = sum_of_all(chunks, sums);
    participating = sum_of_all(participating, sums);
    unfit = (uint32_t)__syncthreads_count(unfit != 0);
    if (threadIdx.x == 0) {
      const EncodeResult result = {overflow_len, unfit != 0, chunks, participating};
      *(EncodeResult*)job.work = result;
    }
    // A block that does not shrink becomes raw: its front is not looked at, and its overflow may have no room.
    if (unfit == 0 && job.front_len + overflow_len < job.raw_len) {
      for (uint32_t r = warp; r < total; r += warps) place_record(job, r, notes[r], lane);
    }
  }
}

EXPORT_KERNEL(encode_records_ibp)
EXPORT_KERNEL(encode_records_planes4)
EXPORT_KERNEL(encode_records_planes3)
EXPORT_KERNEL(encode_records_planes222)
EXPORT_KERNEL(encode_records_sparse)
EXPORT_KERNEL(place_records)
