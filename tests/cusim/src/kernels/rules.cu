// Kernels for the tests of cusim itself: broken_* break a rule, legal_* must pass, twin_* give what wrappers give.
#include "common.cuh"

// ---------------------------------------------------------------- rules of warps
KERNEL void broken_mask_without_caller(uint32_t* out) { out[threadIdx.x] = __ballot_sync(0xfffffffeu, 1); }
KERNEL void broken_absent_lanes(uint32_t* out) { out[threadIdx.x] = __ballot_sync(FULL, 1); }
KERNEL void broken_exited_lane(uint32_t* out) {  // lane 5 has left when the others name it
  if (threadIdx.x == 5) return;
  __syncwarp(~0x20u);
  out[threadIdx.x] = __shfl_sync(FULL, threadIdx.x, 0);
}
KERNEL void broken_exit_while_awaited(uint32_t* out) {  // lane 5 leaves while the others wait for it
  if (threadIdx.x == 5) return;
  out[threadIdx.x] = __shfl_sync(FULL, threadIdx.x, 0);
}
KERNEL void broken_masks_never_meet(uint32_t* out) {
  const unsigned m = threadIdx.x < 4 ? 0xffu : FULL;
  out[threadIdx.x] = __ballot_sync(m, 1);
}
KERNEL void broken_operations_never_meet(uint32_t* out) {
  out[threadIdx.x] = threadIdx.x < 16 ? __ballot_sync(FULL, 1) : (uint32_t)__any_sync(FULL, 1);
}
KERNEL void broken_widths_never_meet(uint32_t* out) {
  out[threadIdx.x] = __shfl_xor_sync(FULL, threadIdx.x, 1, threadIdx.x < 16 ? 16 : 32);
}
KERNEL void broken_shuffle_source(uint32_t* out) {  // reads a lane outside the mask
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, threadIdx.x, 20);
}

// ---------------------------------------------------------------- rules of barriers
KERNEL void broken_barrier_after_exit(uint32_t* out) {
  if (threadIdx.x >= 32) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}
KERNEL void broken_barrier_and_warp(uint32_t* out) {  // one lane in __syncwarp, the others in __syncthreads
  if (threadIdx.x == 40)
    __syncwarp();
  else
    __syncthreads();
  out[threadIdx.x] = 1;
}
KERNEL void broken_barrier_sites(uint32_t* out) {  // two halves in two different barriers
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
  out[threadIdx.x] = 1;
}
KERNEL void broken_livelock(uint32_t* flag, uint32_t* out) {  // nobody sets the flag
  if (threadIdx.x == 0) {
    while (ld_acquire_sys(flag) == 0) {}
    out[0] = 42;
  }
}

// ---------------------------------------------------------------- rules of memory
KERNEL void broken_copy_alignment(const uint32_t* in, uint32_t* out) {
  DYN_SHARED(sm);
  cp_async16(sm + threadIdx.x * 16, in + 1 + threadIdx.x * 4);
  cp_async_commit();
  cp_async_wait<0>();
  out[threadIdx.x] = sm[threadIdx.x * 16];
}
KERNEL void broken_copies_in_flight(const uint32_t* in, uint32_t* out) {
  DYN_SHARED(sm);
  for (int i = 0; i < 1025; i++) cp_async16(sm, in);
  out[0] = sm[0];
}
KERNEL void broken_read_before_wait(const uint32_t* in, uint32_t* out) {
  DYN_SHARED(sm);
  cp_async16(sm + threadIdx.x * 16, in + threadIdx.x * 4);
  cp_async_commit();
  out[threadIdx.x] = ((uint32_t*)sm)[threadIdx.x * 4];
}
KERNEL void broken_unwritten_shared(uint32_t* out) {
  DYN_SHARED(sm);
  SHARED(uint32_t, fixed, 32);
  out[threadIdx.x] = ((uint32_t*)sm)[threadIdx.x];
  out[32 + threadIdx.x] = fixed[threadIdx.x];
}
KERNEL void broken_address(uint32_t* out) { out[threadIdx.x] = 1; }  // the test passes an address without memory
KERNEL void broken_stack(uint32_t* out) {                            // overflows the lane's stack
  volatile unsigned char big[256 << 10];
  for (int i = sizeof big - 1; i >= 0; i -= 1024) big[i] = (unsigned char)i;
  out[threadIdx.x] = big[1023];
}
KERNEL void broken_race(uint32_t* out) {  // lacks a __syncwarp between write and read
  SHARED(uint32_t, s, 32);
  s[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = s[(threadIdx.x + 1) & 31];
}
KERNEL void broken_shared_overrun(uint32_t* out) {  // one word past dynamic shared memory
  DYN_SHARED(sm);
  uint32_t* s = (uint32_t*)sm;
  s[threadIdx.x + 1] = 1;
  __syncwarp();
  out[threadIdx.x] = s[threadIdx.x];
}
KERNEL void broken_global_overrun(uint32_t* out, uint32_t n) { out[n + threadIdx.x] = 1; }
KERNEL void broken_vector_alignment(const uint32_t* p, uint32_t* out) {  // a fault on a GPU, silent on x86
  out[threadIdx.x] = ld_nc_v4((const uint4*)(p + 1)).x;
}
KERNEL void broken_shift(const uint32_t* p, uint32_t* out) { out[threadIdx.x] = (1u << p[0]) - 1; }

// ---------------------------------------------------------------- legal
KERNEL void legal_syncwarp(uint32_t* out) {
  SHARED(uint32_t, s, 32);
  s[threadIdx.x] = threadIdx.x;
  __syncwarp();
  out[threadIdx.x] = s[(threadIdx.x + 1) & 31];
}
KERNEL void legal_divergence(uint32_t* out) {  // two half warps in loops of different lengths
  uint32_t v = threadIdx.x;
  const unsigned m = threadIdx.x < 16 ? 0xffffu : 0xffff0000u;
  const int n = threadIdx.x < 16 ? 3 : 7;
  for (int i = 0; i < n; i++) v += __shfl_xor_sync(m, v, 1);
  __syncwarp();
  out[threadIdx.x] = v;
}
KERNEL void legal_flag(uint32_t* flag, uint32_t* out) {  // one warp polls a flag that another one sets
  if (threadIdx.x == 40) st_release_sys(flag, 1);
  if (threadIdx.x == 0) {
    while (ld_acquire_sys(flag) == 0) {}
    out[0] = 42;
  }
  __syncthreads();
}
KERNEL void legal_order(uint32_t* counter, uint32_t* out) { out[threadIdx.x] = atomicAdd(counter, 1u); }
KERNEL void legal_places(uint32_t* out) {  // where a thread is: 3 x 2 x 2 thread blocks of 4 x 3 x 2 threads
  const uint32_t b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const uint32_t t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[b * blockDim.x * blockDim.y * blockDim.z + t] = b << 16 | t;
}

// ---------------------------------------------------------------- CPU twins
KERNEL void twin_collectives(uint32_t* out) {
  const uint32_t l = threadIdx.x, v = l * 2654435761u;
  int same = 0;
  uint32_t* o = out + l * 20;
  o[0] = __shfl_sync(FULL, v, (int)(l * 7 % 32));
  o[1] = __shfl_up_sync(FULL, v, 3, 8);
  o[2] = __shfl_down_sync(FULL, v, 5, 16);
  o[3] = __shfl_xor_sync(FULL, v, 9, 16);
  o[4] = __ballot_sync(FULL, v & 0x10000);
  o[5] = (uint32_t)__any_sync(FULL, l == 13);
  o[6] = (uint32_t)__all_sync(FULL, l < 31);
  o[7] = __match_any_sync(FULL, l % 5);
  o[8] = __match_all_sync(FULL, l / 32, &same) + (uint32_t)same;
  o[9] = __match_all_sync(FULL, l / 31, &same) + (uint32_t)same;
  o[10] = __reduce_add_sync(FULL, v);
  o[11] = __reduce_min_sync(FULL, v + 1);
  o[12] = __reduce_max_sync(FULL, v);
  o[13] = __reduce_or_sync(FULL, 1u << (l & 15));
  o[14] = __reduce_and_sync(FULL, ~(1u << (l & 7)));
  o[15] = __reduce_xor_sync(FULL, v);
  const uint64_t wide = __shfl_sync(FULL, (uint64_t)v << 32 | l, 3);
  o[16] = (uint32_t)(wide >> 32);
  o[17] = (uint32_t)wide;
  o[18] = (uint32_t)__syncthreads_count(l < 9);
}
KERNEL void twin_copies(const uint32_t* in, uint32_t* out) {  // 28 bytes per lane: 16, 8 and 4
  DYN_SHARED(sm);
  const uint32_t l = threadIdx.x;
  cp_async16(sm + l * 32, in + l * 8);
  cp_async_commit();
  cp_async8(sm + l * 32 + 16, in + l * 8 + 4);
  cp_async4(sm + l * 32 + 24, in + l * 8 + 6);
  cp_async_commit();
  cp_async_wait<1>();
  const uint32_t* s = (const uint32_t*)(sm + l * 32);
  for (int i = 0; i < 8; i++) out[l * 16 + i] = s[i];  // the first group is there, the second is not
  cp_async_wait<0>();
  for (int i = 0; i < 8; i++) out[l * 16 + 8 + i] = s[i];
}
KERNEL void twin_loads(const uint32_t* in, uint32_t* flag, uint32_t* out) {
  const uint4 v = ld_nc_v4((const uint4*)in);
  out[0] = v.x ^ v.y ^ v.z ^ v.w;
  st_release_sys(flag, 7);
  out[1] = ld_acquire_sys(flag);
}
KERNEL void twin_atomics(uint32_t* words, uint64_t* wide) {
  const uint32_t l = threadIdx.x;
  atomicMin(words, 100 + l);
  atomicMax(words + 1, 100 + l);
  atomicAdd(words + 2, l);
  atomicOr(words + 3, 1u << l);
  atomicAnd(words + 4, ~(1u << l));
  atomicXor(words + 5, l);
  if (atomicCAS(words + 6, 0u, l + 1) == 0) atomicExch(words + 7, l + 1);
  atomicMin(wide, ((uint64_t)1 << 40) + l);
  atomicMax(wide + 1, ((uint64_t)1 << 40) + l);
}
KERNEL void twin_scalars(const uint32_t* in, uint32_t* out) {
  const uint32_t a = in[0], b = in[1];
  out[0] = (uint32_t)__popc(a);
  out[1] = (uint32_t)__popcll((unsigned long long)a << 32 | b);
  out[2] = (uint32_t)__clz((int)(a >> 9));
  out[3] = (uint32_t)__clzll((long long)(a >> 9));
  out[4] = (uint32_t)__ffs((int)(a << 5));
  out[5] = (uint32_t)__ffsll((long long)((uint64_t)a << 37));
  out[6] = __brev(a);
  out[7] = __funnelshift_r(a, b, 11);
  out[8] = __funnelshift_l(a, b, 11);
  out[9] = __byte_perm(a, b, 0x5140);
  out[10] = __umulhi(a, b);
  out[11] = (uint32_t)__clz(0) << 8 | (uint32_t)__ffs(0);
}

EXPORT_KERNEL(broken_mask_without_caller)
EXPORT_KERNEL(broken_absent_lanes)
EXPORT_KERNEL(broken_exited_lane)
EXPORT_KERNEL(broken_exit_while_awaited)
EXPORT_KERNEL(broken_masks_never_meet)
EXPORT_KERNEL(broken_operations_never_meet)
EXPORT_KERNEL(broken_widths_never_meet)
EXPORT_KERNEL(broken_shuffle_source)
EXPORT_KERNEL(broken_barrier_after_exit)
EXPORT_KERNEL(broken_barrier_and_warp)
EXPORT_KERNEL(broken_barrier_sites)
EXPORT_KERNEL(broken_livelock)
EXPORT_KERNEL(broken_copy_alignment)
EXPORT_KERNEL(broken_copies_in_flight)
EXPORT_KERNEL(broken_read_before_wait)
EXPORT_KERNEL(broken_unwritten_shared)
EXPORT_KERNEL(broken_address)
EXPORT_KERNEL(broken_stack)
EXPORT_KERNEL(broken_race)
EXPORT_KERNEL(broken_shared_overrun)
EXPORT_KERNEL(broken_global_overrun)
EXPORT_KERNEL(broken_vector_alignment)
EXPORT_KERNEL(broken_shift)
EXPORT_KERNEL(legal_syncwarp)
EXPORT_KERNEL(legal_divergence)
EXPORT_KERNEL(legal_flag)
EXPORT_KERNEL(legal_order)
EXPORT_KERNEL(legal_places)
EXPORT_KERNEL(twin_collectives)
EXPORT_KERNEL(twin_copies)
EXPORT_KERNEL(twin_loads)
EXPORT_KERNEL(twin_atomics)
EXPORT_KERNEL(twin_scalars)
