// warp.h - collectives of a warp and barriers of a thread block, as CUDA names them.
// Each passes its place in the source: lanes that meet must stand at the same one.
#pragma once
#include "core.h"

#define CUSIM_LOC const char *f_ = __builtin_FILE(), int l_ = __builtin_LINE()
template <class T> static inline T __shfl_sync(unsigned m, T v, int s, int w = 32, CUSIM_LOC) {
  return cusim::unbits<T>(cusim::rendezvous(cusim::OP_SHFL_IDX, m, cusim::bits(v), s, w, sizeof(T), f_, l_));
}
template <class T> static inline T __shfl_up_sync(unsigned m, T v, unsigned s, int w = 32, CUSIM_LOC) {
  return cusim::unbits<T>(cusim::rendezvous(cusim::OP_SHFL_UP, m, cusim::bits(v), (int)s, w, sizeof(T), f_, l_));
}
template <class T> static inline T __shfl_down_sync(unsigned m, T v, unsigned s, int w = 32, CUSIM_LOC) {
  return cusim::unbits<T>(cusim::rendezvous(cusim::OP_SHFL_DOWN, m, cusim::bits(v), (int)s, w, sizeof(T), f_, l_));
}
template <class T> static inline T __shfl_xor_sync(unsigned m, T v, int s, int w = 32, CUSIM_LOC) {
  return cusim::unbits<T>(cusim::rendezvous(cusim::OP_SHFL_XOR, m, cusim::bits(v), s, w, sizeof(T), f_, l_));
}
static inline unsigned __ballot_sync(unsigned m, int p, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_BALLOT, m, p != 0, 0, 32, 4, f_, l_);
}
static inline int __any_sync(unsigned m, int p, CUSIM_LOC) {
  return (int)cusim::rendezvous(cusim::OP_ANY, m, p != 0, 0, 32, 4, f_, l_);
}
static inline int __all_sync(unsigned m, int p, CUSIM_LOC) {
  return (int)cusim::rendezvous(cusim::OP_ALL, m, p != 0, 0, 32, 4, f_, l_);
}
template <class T> static inline unsigned __match_any_sync(unsigned m, T v, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_MATCH_ANY, m, cusim::bits(v), 0, 32, sizeof(T), f_, l_);
}
template <class T> static inline unsigned __match_all_sync(unsigned m, T v, int* all, CUSIM_LOC) {
  const unsigned r = (unsigned)cusim::rendezvous(cusim::OP_MATCH_ALL, m, cusim::bits(v), 0, 32, sizeof(T), f_, l_);
  *all = r != 0;
  return r;
}
static inline unsigned __reduce_add_sync(unsigned m, unsigned v, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_RED_ADD, m, v, 0, 32, 4, f_, l_);
}
static inline unsigned __reduce_min_sync(unsigned m, unsigned v, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_RED_MIN, m, v, 0, 32, 4, f_, l_);
}
static inline unsigned __reduce_or_sync(unsigned m, unsigned v, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_RED_OR, m, v, 0, 32, 4, f_, l_);
}
static inline unsigned __reduce_and_sync(unsigned m, unsigned v, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_RED_AND, m, v, 0, 32, 4, f_, l_);
}
static inline unsigned __reduce_xor_sync(unsigned m, unsigned v, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_RED_XOR, m, v, 0, 32, 4, f_, l_);
}
static inline unsigned __reduce_max_sync(unsigned m, unsigned v, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_RED_MAX, m, v, 0, 32, 4, f_, l_);
}
static inline void __syncwarp(unsigned m = 0xffffffffu, CUSIM_LOC) {
  cusim::rendezvous(cusim::OP_SYNCWARP, m, 0, 0, 32, 0, f_, l_);
}
static inline void __syncthreads(CUSIM_LOC) { cusim::bar_sync(f_, l_, nullptr); }
static inline int __syncthreads_count(int p, CUSIM_LOC) {
  int c = p != 0;
  cusim::bar_sync(f_, l_, &c);
  return c;
}
