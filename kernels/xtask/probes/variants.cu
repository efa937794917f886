// Kernels of a single variant each, for `xtask sass --source`: the images hold all variants of a codec in one kernel.
//
// The names say codec, bits of an element, and lanes per record.
#include "ibp.cuh"
#include "planes.cuh"
#include "sparse.cuh"

template <class Codec>
DEV void probe(const Codec& codec, const BlockJob& job, uint32_t warp_bytes, Status* status) {
  DYN_SHARED(shared);
  decode_records<32>(codec, job, shared, warp_bytes, status);
}

// For example: a kernel probe_ibp_16_32 that makes an IbpCodec of an IbpForm.
#define PROBE(name, Form, ...)                                                                              \
  KERNEL void __launch_bounds__(128) name(const BlockJob* __restrict__ jobs, uint32_t warp_bytes, Status* status) { \
    const BlockJob job = jobs[blockIdx.x];                                                                  \
    const Form form = *(const Form*)job.form;                                                               \
    SHARED(uint64_t, dictionary, 256);                                                                      \
    (void)dictionary;                                                                                       \
    probe(__VA_ARGS__, job, warp_bytes, status);                                                            \
  }
PROBE(probe_ibp_16_32, IbpForm, IbpCodec{form, job.form, 16})
PROBE(probe_planes4_16_32, PlanesForm, PlanesCodec<2, 4>{form, job.form, 16})
PROBE(probe_planes4_32_32, PlanesForm, PlanesCodec<4, 4>{form, job.form, 32})
PROBE(probe_planes3_16_32, PlanesForm, PlanesCodec<2, 3>{form, job.form, 16})
PROBE(probe_planes222_16_32, PlanesForm, PlanesCodec<2, 2>{form, job.form, 16})
PROBE(probe_sparse_16_32, SparseForm, SparseCodec<2>{form, dictionary, 16})
