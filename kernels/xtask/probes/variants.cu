// Kernels of a single variant each, for `xtask sass --source`: what the images hold has all of them in one kernel.
//
// The names say codec, bits of an element, and lanes per record.
#include "ibp.cuh"
#include "planes.cuh"
#include "sparse.cuh"

#define PROBE(name, lanes, codec, Form)                                                                      \
  KERNEL void __launch_bounds__(128) name(const BlockJob* __restrict__ jobs, uint32_t warp_bytes, Status* status) { \
    DYN_SHARED(shared);                                                                                      \
    const BlockJob job = jobs[blockIdx.x];                                                                   \
    const Form* form = (const Form*)job.form;                                                                \
    decode_records<lanes>(codec, job, shared, warp_bytes, status);                                           \
  }
#define COMMA ,
PROBE(probe_ibp_16_32, 32, IbpCodec{form COMMA 16}, IbpForm)
PROBE(probe_ibp_32_32, 32, IbpCodec{form COMMA 32}, IbpForm)
PROBE(probe_planes4_16_32, 32, PlanesCodec<2 COMMA 4>{form COMMA 16}, PlanesForm)
PROBE(probe_planes4_32_32, 32, PlanesCodec<4 COMMA 4>{form COMMA 32}, PlanesForm)
PROBE(probe_planes3_16_32, 32, PlanesCodec<2 COMMA 3>{form COMMA 16}, PlanesForm)
PROBE(probe_planes222_16_32, 32, PlanesCodec<2 COMMA 2>{form COMMA 16}, PlanesForm)
KERNEL void __launch_bounds__(128)
    probe_sparse_16_32(const BlockJob* __restrict__ jobs, uint32_t warp_bytes, Status* status) {
  DYN_SHARED(shared);
  SHARED(uint64_t, dictionary, 256);
  const BlockJob job = jobs[blockIdx.x];
  const SparseForm* form = (const SparseForm*)job.form;
  decode_records<32>(SparseCodec<2>{form, dictionary, 16}, job, shared, warp_bytes, status);
}
