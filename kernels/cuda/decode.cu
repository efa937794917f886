// decode.cu - kernels that decode blocks of each codec, and that write overlays over what they decoded.
//
// Grid: x = jobs, y = slices of a job; thread blocks of 128. Warps do not wait for each other, except for the
// dictionary of sparse.
#include "ibp.cuh"
#include "overlay.cuh"
#include "planes.cuh"
#include "raw.cuh"
#include "sparse.cuh"

// So many thread blocks of 128 fit a multiprocessor: with fewer registers some would be spilled.
#define DECODE_BOUNDS __launch_bounds__(128, 5)
#define DECODE_TIERS_BOUNDS __launch_bounds__(128, 4)

KERNEL void DECODE_BOUNDS
    decode_raw(const BlockJob* __restrict__ jobs, uint32_t n_jobs, uint32_t warp_bytes, Status* status) {
  for (uint32_t j = blockIdx.x; j < n_jobs; j += gridDim.x) decode_raw_job(jobs[j]);
}

KERNEL void DECODE_BOUNDS
    decode_ibp(const BlockJob* __restrict__ jobs, uint32_t n_jobs, uint32_t warp_bytes, Status* status) {
  DYN_SHARED(shared);
  for (uint32_t j = blockIdx.x; j < n_jobs; j += gridDim.x) {
    const BlockJob& job = jobs[j];
    const IbpForm form = *(const IbpForm*)job.form;
    decode_job(IbpCodec{form, job.form, form.elem_bits}, job, shared, warp_bytes, status);
  }
}

// The codec's code for each size of its words.
template <int S>
DEV void decode_planes(const BlockJob* __restrict__ jobs, uint32_t n_jobs, unsigned char* shared, uint32_t warp_bytes,
                       Status* status) {
  for (uint32_t j = blockIdx.x; j < n_jobs; j += gridDim.x) {
    const BlockJob& job = jobs[j];
    const PlanesForm form = *(const PlanesForm*)job.form;
    if (form.elem_bits == 16) {
      decode_job(PlanesCodec<2, S>{form, job.form, 16}, job, shared, warp_bytes, status);
    } else if (form.elem_bits == 32) {
      decode_job(PlanesCodec<4, S>{form, job.form, 32}, job, shared, warp_bytes, status);
    } else if (form.elem_bits == 8) {
      decode_job(PlanesCodec<1, S>{form, job.form, 8}, job, shared, warp_bytes, status);
    } else {
      decode_job(PlanesCodec<8, S>{form, job.form, 64}, job, shared, warp_bytes, status);
    }
  }
}

KERNEL void DECODE_BOUNDS
    decode_planes4(const BlockJob* __restrict__ jobs, uint32_t n_jobs, uint32_t warp_bytes, Status* status) {
  DYN_SHARED(shared);
  decode_planes<4>(jobs, n_jobs, shared, warp_bytes, status);
}

KERNEL void DECODE_BOUNDS
    decode_planes3(const BlockJob* __restrict__ jobs, uint32_t n_jobs, uint32_t warp_bytes, Status* status) {
  DYN_SHARED(shared);
  decode_planes<3>(jobs, n_jobs, shared, warp_bytes, status);
}

KERNEL void DECODE_TIERS_BOUNDS
    decode_planes222(const BlockJob* __restrict__ jobs, uint32_t n_jobs, uint32_t warp_bytes, Status* status) {
  DYN_SHARED(shared);
  decode_planes<2>(jobs, n_jobs, shared, warp_bytes, status);
}

KERNEL void DECODE_BOUNDS
    decode_sparse(const BlockJob* __restrict__ jobs, uint32_t n_jobs, uint32_t warp_bytes, Status* status) {
  DYN_SHARED(shared);
  SHARED(uint64_t, dictionary, 256);
  uint64_t loaded = 0;
  for (uint32_t j = blockIdx.x; j < n_jobs; j += gridDim.x) {
    const BlockJob& job = jobs[j];
    const SparseForm form = *(const SparseForm*)job.form;
    if (job.form != loaded && form.dictionary_at) {
      const uint64_t* words = (const uint64_t*)(job.form + form.dictionary_at);
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x) dictionary[i] = words[i];
      __syncthreads();
      loaded = job.form;
    }
    if (form.word_bytes == 1) {
      decode_job(SparseCodec<1>{form, dictionary, form.elem_bits}, job, shared, warp_bytes, status);
    } else if (form.word_bytes == 2) {
      decode_job(SparseCodec<2>{form, dictionary, 16}, job, shared, warp_bytes, status);
    } else if (form.word_bytes == 4) {
      decode_job(SparseCodec<4>{form, dictionary, 32}, job, shared, warp_bytes, status);
    } else {
      decode_job(SparseCodec<8>{form, dictionary, 64}, job, shared, warp_bytes, status);
    }
  }
}

KERNEL void DECODE_BOUNDS overlay_rows(const OverlayJob* __restrict__ jobs, uint32_t n_jobs, Status* status) {
  for (uint32_t j = blockIdx.x; j < n_jobs; j += gridDim.x) overlay_job(jobs[j], status);
}

EXPORT_KERNEL(decode_raw)
EXPORT_KERNEL(decode_ibp)
EXPORT_KERNEL(decode_planes4)
EXPORT_KERNEL(decode_planes3)
EXPORT_KERNEL(decode_planes222)
EXPORT_KERNEL(decode_sparse)
EXPORT_KERNEL(overlay_rows)
