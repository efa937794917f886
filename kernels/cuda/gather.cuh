// gather.cuh - one row of a tensor: from the cache, or from the pool and then into the cache.
//
// A team of lanes has a window of shared memory, in which a row stands as it does in a line of the cache: its front,
// and after it the rests of its records, or its entries of the list of escapes. So a row that came from the cache, and
// one from the pool without rest, are decoded from shared memory alone. A row that no window can hold is decoded record
// by record, and stays outside of the cache; so does a row of access whole, which is a part of records, and a piece.
#pragma once
#include "ibp.cuh"
#include "planes.cuh"
#include "rows.cuh"
#include "sparse.cuh"
#include "sweep.cuh"

enum : uint32_t { WINDOW_SLACK = 32 };  // bytes after what a window holds that reads may touch
enum Codec : uint32_t { IBP = 2, IBP_WINDOW, PLANES4, PLANES3, PLANES222, SPARSE };
// What a thread block counts, in the order of GatherStatus.
enum Count : uint32_t { HITS, MISSES, INSERTS, CONFLICTS, BYPASSES, N_COUNTS };

// A row in the window.
struct Window {
  uint4* bytes;
  uint32_t room;  // bytes that it can hold
  uint32_t skew;  // where the row starts
  uint32_t used;  // where it ends
};

template <int LANES>
struct RowGather {
  const GatherTensor& tensor;
  const GatherCall& call;
  Team<LANES> team;
  Window window;
  uint32_t* counts;

  DEV_MEMBER void count(Count what) const {
    if (team.lane == 0) atomicAdd(counts + what, 1u);
  }
  DEV_MEMBER GatherStatus* status() const { return (GatherStatus*)call.status; }

  DEV_MEMBER void miss(uint32_t position) const {
    if (team.lane != 0) return;
    const unsigned long long at = atomicAdd((unsigned long long*)&status()->n_missed, 1ull);
    if (at < call.missed_room) ((uint32_t*)call.missed)[at] = position;
  }
  DEV_MEMBER void damaged(uint32_t position, uint32_t flag) const {
    if (team.lane != 0) return;
    atomicOr(&status()->status.flags, flag);
    atomicMin(&status()->status.first, position);
  }

  // Copies bytes of the pool into the window, from the multiple of 16 before them.
  DEV_MEMBER void fetch(uint64_t from, uint32_t n) const {
    const uint32_t skew = (uint32_t)from & 15;
    unsigned char* to = (unsigned char*)window.bytes;
    const unsigned char* start = (const unsigned char*)(from - skew);
    for (uint32_t at = 16 * team.lane; at < skew + n; at += 16 * LANES) cp_async16(to + at, start + at);
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp(team.mask);
  }

  // Stores n bytes of the window.
  DEV_MEMBER void copy_out(const void* from, uint32_t skew, uint32_t n, unsigned char* out) const {
    for (uint32_t at = 16 * team.lane; at < n; at += 16 * LANES) {
      uint32_t words[4];
      load_bytes<false>((const uint32_t*)from, skew + at, words);
      store(out + at, uint4{words[0], words[1], words[2], words[3]}, n - at);
    }
  }

  // Stores a row that is not encoded; gives whether all of it stands in the window.
  DEV_MEMBER bool plain(uint64_t from, uint32_t n, unsigned char* out) {
    uint32_t at = 0;
    for (;;) {
      window.skew = (uint32_t)(from + at) & 15;
      const uint32_t part = least(n - at, window.room - window.skew);
      fetch(from + at, part);
      copy_out(window.bytes, window.skew, part, out + at);
      window.used = window.skew + part;
      if (part == n) return true;
      at += part;
      if (at == n) return false;
      __syncwarp(team.mask);
    }
  }

  // The bytes of a block, by its header: at least the front, at most those of the segment.
  DEV_MEMBER uint32_t stored_len(const Source& source, uint32_t front_len) const {
    const uint32_t mine = team.lane == 0 ? ((const uint32_t*)source.address)[TOTAL_LEN_WORD] : 0;
    uint64_t len = __shfl_sync(team.mask, mine, 0, LANES);
    if (len > HEADER_BYTES + MAX_BLOCK_RAW_BYTES) len = HEADER_BYTES + MAX_BLOCK_RAW_BYTES;
    if (len < HEADER_BYTES + front_len) len = HEADER_BYTES + front_len;
    return (uint32_t)(len < source.room ? len : source.room);
  }

  // Adds the escapes of the elements from `first` to `end` of a block of planes:4; whether the window has room.
  DEV_MEMBER bool add_escapes(const BlockJob& block, uint32_t first, uint32_t end) {
    const uint32_t at = HEADER_BYTES + block.front_len, n = (block.stored_len - at) / 4, elem = 0x3ffff;
    const uint32_t* list = (const uint32_t*)(block.src + at);
    uint32_t next = count_below(team, list, n, elem, first);
    for (;; next += LANES) {
      const uint32_t entry = next + team.lane < n ? list[next + team.lane] : elem;
      // A number that is too small ends a damaged list.
      const bool mine = next + team.lane < n && (entry & elem) < end && (entry & elem) >= first;
      const uint32_t found = __ballot_sync(team.mask, !mine) >> (__ffs((int)team.mask) - 1);
      const uint32_t count = found ? (uint32_t)__ffs((int)found) - 1 : LANES;
      if (window.used + 4 * count > window.room) {
        __syncwarp(team.mask);
        return false;
      }
      if (team.lane < count) ((uint32_t*)window.bytes)[window.used / 4 + team.lane] = entry;
      window.used += 4 * count;
      if (count < LANES) break;
    }
    __syncwarp(team.mask);
    return true;
  }

  // Moves the rest of record `r`, which has been decoded, into the window, and makes its head say so; whether there
  // was room, and the rest was whole. `body` is how many bytes its body has.
  DEV_MEMBER bool add_rest(const BlockJob& block, uint32_t head_at, uint32_t n_front, uint32_t body, uint32_t rests_at) {
    uint32_t* head = (uint32_t*)((unsigned char*)window.bytes + head_at);
    const uint32_t offset = *head & NO_OVERFLOW, at = HEADER_BYTES + block.front_len;
    if (offset == NO_OVERFLOW) return true;
    const uint32_t front = 4 * n_front - 4, n = body > front ? body - front : 0, len = block.stored_len - at;
    if (offset > len || n > len - offset || window.used + n > window.room) return false;
    const unsigned char* from = (const unsigned char*)block.src + at + offset;
    unsigned char* to = (unsigned char*)window.bytes + window.used;
    for (uint32_t i = team.lane; i < n; i += LANES) to[i] = from[i];
    __syncwarp(team.mask);
    if (team.lane == 0) *head = (*head & RAW_RECORD) | (window.used - rests_at);
    window.used += n;
    return true;
  }

  template <int S>
  DEV_MEMBER uint32_t planes(const BlockJob& job, const Record& record, Status* to) const {
    const PlanesForm form = *(const PlanesForm*)job.form;
    if (form.elem_bits == 16) return PlanesCodec<2, S>{form, job.form, 16}.decode(team, job, record, to);
    if (form.elem_bits == 32) return PlanesCodec<4, S>{form, job.form, 32}.decode(team, job, record, to);
    if (form.elem_bits == 8) return PlanesCodec<1, S>{form, job.form, 8}.decode(team, job, record, to);
    return PlanesCodec<8, S>{form, job.form, 64}.decode(team, job, record, to);
  }

  // Decodes one record; gives the bytes of its body.
  DEV_MEMBER uint32_t decode(uint32_t codec, const BlockJob& job, const Record& record) const {
    Status* const to = &status()->status;
    if (codec == PLANES4) return planes<4>(job, record, to);
    if (codec == PLANES3) return planes<3>(job, record, to);
    if (codec == PLANES222) return planes<2>(job, record, to);
    if (codec == SPARSE) {
      const SparseForm form = *(const SparseForm*)job.form;
      const uint64_t* words = (const uint64_t*)(job.form + form.dictionary_at);
      if (form.word_bytes == 1) return SparseCodec<1>{form, words, form.elem_bits}.decode(team, job, record, to);
      if (form.word_bytes == 2) return SparseCodec<2>{form, words, 16}.decode(team, job, record, to);
      if (form.word_bytes == 4) return SparseCodec<4>{form, words, 32}.decode(team, job, record, to);
      return SparseCodec<8>{form, words, 64}.decode(team, job, record, to);
    }
    const IbpForm form = *(const IbpForm*)job.form;
    return IbpCodec{form, job.form, form.elem_bits}.decode(team, job, record, to);
  }

  DEV_MEMBER bool has_escape(uint64_t address, const Record& record) const {
    const PlanesForm form = *(const PlanesForm*)address;
    if (form.elem_bits == 16) return PlanesCodec<2, 4>{form, address, 16}.has_escape(team, record);
    if (form.elem_bits == 32) return PlanesCodec<4, 4>{form, address, 32}.has_escape(team, record);
    if (form.elem_bits == 8) return PlanesCodec<1, 4>{form, address, 8}.has_escape(team, record);
    return PlanesCodec<8, 4>{form, address, 64}.has_escape(team, record);
  }

  // Whether a record of the row in the window has a rest.
  DEV_MEMBER bool has_rest(const BlockJob& job) const {
    bool found = false;
    for (uint32_t r = team.lane; r < job.records; r += LANES) {
      const uint32_t at = window.skew + r * job.record_stride;
      found = found || (((const uint32_t*)window.bytes)[at / 4] & NO_OVERFLOW) != NO_OVERFLOW;
    }
    return __any_sync(team.mask, found);
  }

  // Which bytes of a run make up a row, and where they go.
  struct Part {
    uint32_t run;
    uint32_t start;  // the first raw byte in the run
    uint32_t n;
    unsigned char* out;
  };

  DEV_MEMBER static Places places_of(const BlockJob& job, uint32_t elem_bits) {
    Places places;
    places.run_stride = (job.records - 1) * job.record_stride + job.tail_stride;
    places.run_elems = (job.records - 1) * RECORD_ELEMS + job.tail_elems;
    places.full_bytes = RECORD_ELEMS * elem_bits / 8;
    places.run_bytes = (job.records - 1) * places.full_bytes + job.tail_elems * elem_bits / 8;
    places.stage_bytes = places.n_stages = 0;
    return places;
  }

  DEV_MEMBER BlockJob job_of(const GatherForm& form, const GatherGrid& grid, bool last, uint32_t position) const {
    BlockJob job;
    job.src = job.out = 0;
    job.form = form.form;
    job.runs = grid.runs;
    job.records = grid.records;
    job.tail_elems = grid.tail_elems;
    job.record_stride = form.record_stride;
    job.tail_stride = form.tail_stride[last];
    job.front_len = grid.runs * ((grid.records - 1) * job.record_stride + job.tail_stride);
    job.stored_len = HEADER_BYTES + job.front_len;
    job.raw_len = job.reserved = 0;
    job.number = position;
    return job;
  }

  // Where a record of access whole is decoded to.
  DEV_MEMBER unsigned char* scratch() const { return (unsigned char*)window.bytes + window.room + WINDOW_SLACK; }

  // Adds the escapes of a row of planes:4 to its front in the window, if it has any; whether there was room.
  DEV_MEMBER bool with_escapes(BlockJob& block, const Places& places, uint32_t run, const Source& source) {
    bool escapes = false;
    for (uint32_t r = 0; r < block.records && !escapes; r++) {
      Record record = record_at(block, places, run * block.records + r, tensor.elem_bits);
      record.front = (const uint32_t*)window.bytes + (window.skew + r * block.record_stride) / 4;
      escapes = has_escape(block.form, record);
    }
    if (!escapes) return true;
    block.stored_len = stored_len(source, block.front_len);
    return add_escapes(block, run * places.run_elems, (run + 1) * places.run_elems);
  }

  // Decodes a part of an encoded block. `source` has no address where the window has a line of the cache; gives whether the
  // window has the whole row afterwards, as a line does.
  DEV_MEMBER bool encoded(const GatherForm& form, const GatherGrid& grid, bool last, const Part& part,
                          const Source& source, uint32_t position) {
    const bool from_pool = source.address != 0;
    BlockJob block = job_of(form, grid, last, position);
    const Places places = places_of(block, tensor.elem_bits);
    const uint32_t front = part.run * places.run_stride;
    // Whether the window has all of the row's front, all of the row, and rests that are still in the block.
    bool has_front = tensor.whole == 0, complete = true, rests = false;
    if (from_pool) {
      block.src = source.address;
      window.skew = (uint32_t)(HEADER_BYTES + front) & 15;
      has_front = has_front && window.skew + places.run_stride <= window.room;
      complete = has_front;
    }
    const uint32_t rests_at = window.skew + places.run_stride;
    if (from_pool && has_front) {
      fetch(block.src + HEADER_BYTES + front, places.run_stride);
      window.used = rests_at;
      if (form.codec == PLANES4) {
        complete = with_escapes(block, places, part.run, source);
      } else if (has_rest(block)) {
        rests = true;
        block.stored_len = stored_len(source, block.front_len);
      }
    } else if (from_pool) {
      block.stored_len = stored_len(source, block.front_len);
    }
    // What the codec sees: the window as a block of one run, or the block.
    BlockJob job = block;
    const bool alone = complete && !rests;
    if (alone) {
      job.src = (uint64_t)window.bytes + window.skew - HEADER_BYTES;
      job.front_len = places.run_stride;
      job.stored_len = HEADER_BYTES + window.used - window.skew;
    }
    const uint32_t first = tensor.whole ? part.start / places.full_bytes : 0;
    const uint32_t end = tensor.whole ? (part.start + part.n - 1) / places.full_bytes + 1 : block.records;
    for (uint32_t r = first; r < end; r++) {
      Record record = record_at(block, places, part.run * block.records + r, tensor.elem_bits);
      const uint32_t head_at = window.skew + r * block.record_stride;
      if (has_front) {
        record.front = (const uint32_t*)window.bytes + head_at / 4;
        if (alone) record.offset -= front;
      } else {
        fetch(block.src + record.offset, 4 * record.n_front);
        record.front = (const uint32_t*)window.bytes + (record.offset & 15) / 4;
      }
      record.out = tensor.whole ? scratch() : part.out + r * places.full_bytes;
      const uint32_t body = decode(form.codec, job, record);
      __syncwarp(team.mask);
      if (rests && complete) complete = add_rest(block, head_at, record.n_front, body, rests_at);
      if (tensor.whole) {
        const uint32_t at = r * places.full_bytes, skip = part.start > at ? part.start - at : 0;
        const uint32_t to = least(record.raw_bytes, part.start + part.n - at);
        copy_out(scratch(), skip, to - skip, part.out + (at + skip - part.start));
        __syncwarp(team.mask);
      }
    }
    return complete;
  }

  // Gathers a row, or a piece of it, to `out`.
  DEV_MEMBER void row(uint64_t row, uint32_t piece, uint32_t position, unsigned char* out) {
    const uint64_t block = tensor.pieces > 1 ? row * tensor.pieces + piece : block_of(tensor, row);
    const bool last = tensor.pieces > 1 ? piece + 1 == tensor.pieces : block + 1 == tensor.n_blocks;
    const GatherGrid& grid = tensor.grids[last];
    const uint32_t in_block = tensor.pieces > 1 ? 0 : (uint32_t)(row - block * tensor.block_rows);
    const uint64_t word = ((const uint64_t*)tensor.words)[block];
    if (!(word & WORD_RESIDENT)) return miss(position);
    const bool cached = tensor.cache.n_sets != 0;
    const uint32_t keep = call.flags & CALL_KEEP ? (uint32_t)LINE_KEEP : 0;
    Source source = {ABSENT, 0, 0, 0};
    const uint32_t meta = cached ? look_up_line(word, row, &source) : 0;
    if (meta) {
      count(HITS);
    } else {
      source = find_row(team, tensor, word, grid, last, in_block);
      if (source.what == ABSENT) return miss(position);
      if (source.what == DAMAGED) return damaged(position, STATUS_OVERLAY);
      count(MISSES);
    }
    bool complete = true;
    if (meta && keep) {
      // The line is there; it is only to stay.
    } else if (source.what == ENCODED) {
      Part part = {in_block, 0, grid.row_bytes, out};
      if (tensor.whole) part.run = 0, part.start = in_block * grid.row_bytes;
      complete = encoded(tensor.forms[source.form], grid, last, part, source, position);
    } else if (meta) {
      copy_out(window.bytes, window.skew, grid.row_bytes, out);
    } else {
      complete = plain(source.address, grid.row_bytes, out);
    }
    if (!cached || (meta && !keep)) return;
    if (!complete || window.used > tensor.cache.line_bytes) return count(BYPASSES);
    const uint32_t raw = source.what == PLAIN ? (uint32_t)LINE_RAW : 0;
    const uint32_t made = window.used | window.skew << LINE_SKEW_SHIFT | source.form << LINE_FORM_SHIFT | raw | keep;
    // A row that is to stay tries the other lines of its set; any other row gives up.
    const uint32_t random = hash_row(position ^ (uint64_t)call.turn << 32);
    uint32_t done, tries = keep ? (uint32_t)WAYS : 1;
    do {
      done = insert(team, tensor.cache, word, row, made, window.bytes, random);
    } while (done == INSERT_LOST && --tries > 0);
    if (done == INSERTED) count(INSERTS);
    if (done == INSERT_LOST) count(CONFLICTS);
  }

  // Copies the line of a row into the window; gives its LineMeta, or 0.
  DEV_MEMBER uint32_t look_up_line(uint64_t word, uint64_t row, Source* source) {
    bool changed;
    const uint32_t meta = probe(team, tensor.cache, word, row, window.bytes, &changed);
    if (changed) count(CONFLICTS);
    window.skew = meta >> LINE_SKEW_SHIFT & 15;
    window.used = meta & LINE_BYTES;
    source->what = meta & LINE_RAW ? PLAIN : ENCODED;
    source->form = meta >> LINE_FORM_SHIFT & 15;
    // Without its generation the line is of no use, and the row goes to the miss list.
    return (meta & LINE_RAW) || tensor.forms[source->form].codec != 0 ? meta : 0;
  }
};

// The rows of a call that teams of this length gather.
template <int LANES>
DEV void gather_rows(const GatherTensor& tensor, const GatherCall& call, unsigned char* shared, uint32_t* counts) {
  const Team<LANES> team = team_of_thread<LANES>();
  const uint32_t n_teams = blockDim.x / LANES, number = threadIdx.x / LANES;
  const uint32_t turn = (blockIdx.x + gridDim.x - call.first_block % gridDim.x) % gridDim.x;
  Window window = {(uint4*)(shared + number * tensor.window_bytes), 0, 0, 0};
  window.room = tensor.window_bytes - tensor.scratch_bytes - WINDOW_SLACK;
  RowGather<LANES> gather = {tensor, call, team, window, counts};
  const uint64_t n = (uint64_t)call.n_ids * tensor.pieces, step = (uint64_t)gridDim.x * n_teams;
  for (uint64_t i = (uint64_t)turn * n_teams + number; i < n; i += step) {
    const uint32_t item = (uint32_t)(tensor.pieces > 1 ? i / tensor.pieces : i);
    const uint32_t piece = (uint32_t)(i - (uint64_t)item * tensor.pieces);
    const uint32_t position = call.only ? ((const uint32_t*)call.only)[item] : item;
    const uint64_t row =
        call.id_bytes == 8 ? ((const uint64_t*)call.ids)[position] : ((const uint32_t*)call.ids)[position];
    if (row >= tensor.n_rows) {
      unsigned long long* least_bad = (unsigned long long*)&gather.status()->bad_position;
      if (team.lane == 0 && piece == 0) atomicMin(least_bad, (unsigned long long)position);
      continue;
    }
    if (tensor.row_bytes == 0) continue;
    const uint64_t place = call.flags & CALL_KEEP ? (uint64_t)blockIdx.x * n_teams + number : position;
    gather.row(row, piece, position,
               (unsigned char*)call.out + place * tensor.row_bytes + (uint64_t)piece * tensor.piece_bytes);
    __syncwarp(team.mask);
  }
}
