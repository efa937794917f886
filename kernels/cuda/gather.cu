// gather.cu - kernels that gather rows of tensors by their numbers, and that sweep the cache.
//
// Grid: x = thread blocks, as many as the caller can spare; teams take rows in turn. All go through all calls; each
// call starts at a thread block of its own. Thread blocks of up to 128 threads.
#include "gather.cuh"

// So many thread blocks of 128 fit a multiprocessor: with fewer registers some would be spilled.
#define GATHER_BOUNDS __launch_bounds__(128, 3)

DEV void gather_call(const GatherCall& call, unsigned char* shared, uint32_t* counts) {
  const GatherTensor& tensor = *(const GatherTensor*)call.tensor;
  if (tensor.lanes == 8) {
    gather_rows<8>(tensor, call, shared, counts);
  } else {
    gather_rows<32>(tensor, call, shared, counts);
  }
  __syncthreads();
  if (threadIdx.x < N_COUNTS && counts[threadIdx.x]) {
    unsigned long long* totals = (unsigned long long*)&((GatherStatus*)call.status)->hits;
    atomicAdd(totals + threadIdx.x, (unsigned long long)counts[threadIdx.x]);
    counts[threadIdx.x] = 0;
  }
  __syncthreads();
}

KERNEL void GATHER_BOUNDS gather(const GatherCall* __restrict__ calls, uint32_t n_calls) {
  DYN_SHARED(shared);
  SHARED(uint32_t, counts, N_COUNTS);
  if (threadIdx.x < N_COUNTS) counts[threadIdx.x] = 0;
  __syncthreads();
  // One place that calls: the code of all codecs is in it.
  for (uint32_t i = 0; i < n_calls; i++) gather_call(calls[i], shared, counts);
}

KERNEL void GATHER_BOUNDS sweep_cache(const GatherTensor* __restrict__ tensor) {
  const uint64_t n = (uint64_t)tensor->cache.n_sets * WAYS;
  for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
    sweep_line(*tensor, i);
  }
}

EXPORT_KERNEL(gather)
EXPORT_KERNEL(sweep_cache)
