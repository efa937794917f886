// rendezvous.cpp - the collectives of a warp.
// A lane that arrives records operation, mask, width, size, place and value. The last lane of the mask computes all
// results and goes on; the others become runnable. Lanes whose requests differ never meet: that is a deadlock.
#include "runtime.h"

namespace cusim {
// What the lanes of a group give together.
struct Totals {
  uint32_t voted = 0;
  uint32_t reduced = 0;
  bool same = true;
};

static Totals totals(const Warp& w, const Group& g) {
  Totals t;
  const Lane& first = w.lanes[__builtin_ctz(g.mask)];
  t.reduced = (uint32_t)first.arg;
  for (uint32_t m = g.mask; m; m &= m - 1) {
    const Lane& l = w.lanes[__builtin_ctz(m)];
    const uint32_t v = (uint32_t)l.arg;
    if (l.arg) t.voted |= 1u << l.lane;
    t.same &= l.arg == first.arg;
    if (&l == &first) continue;
    switch (g.op) {
      case OP_RED_ADD: t.reduced += v; break;
      case OP_RED_MAX: t.reduced = v > t.reduced ? v : t.reduced; break;
      case OP_RED_MIN: t.reduced = v < t.reduced ? v : t.reduced; break;
      case OP_RED_OR: t.reduced |= v; break;
      case OP_RED_AND: t.reduced &= v; break;
      case OP_RED_XOR: t.reduced ^= v; break;
      default: break;
    }
  }
  return t;
}

// The lane whose value a shuffle gives to `l`.
static int source(const Lane& l, const Group& g) {
  const int lane = (int)l.lane, width = g.width, base = lane & ~(width - 1);
  switch (g.op) {
    case OP_SHFL_IDX: return base + (l.src & (width - 1));
    case OP_SHFL_UP: return lane - l.src < base ? lane : lane - l.src;
    case OP_SHFL_DOWN: return lane + l.src >= base + width ? lane : lane + l.src;
    default: return (lane ^ l.src) >= base + width ? lane : lane ^ l.src;
  }
}

static uint64_t shuffled(const Warp& w, const Group& g, const Lane& l) {
  const int s = source(l, g);
  if ((g.mask >> s) & 1) return w.lanes[s].arg;
  runtime->error = where(&l) + format(": %s reads lane %d, which is not in mask %08x, at %s:%d", op_name(g.op), s,
                                      g.mask, l.file, l.line);
  stop();
}

static uint32_t matches(const Warp& w, const Group& g, const Lane& l) {
  uint32_t r = 0;
  for (uint32_t m = g.mask; m; m &= m - 1) {
    const Lane& o = w.lanes[__builtin_ctz(m)];
    if (o.arg == l.arg) r |= 1u << o.lane;
  }
  return r;
}

void complete(Warp& w, Group& g) {
  runtime->stats.collectives++;
  const Totals t = totals(w, g);
  for (uint32_t m = g.mask; m; m &= m - 1) {
    Lane& l = w.lanes[__builtin_ctz(m)];
    switch (g.op) {
      case OP_BALLOT: l.result = t.voted; break;
      case OP_ANY: l.result = t.voted != 0; break;
      case OP_ALL: l.result = t.voted == g.mask; break;
      case OP_SYNCWARP: break;
      case OP_MATCH_ANY: l.result = matches(w, g, l); break;
      case OP_MATCH_ALL: l.result = t.same ? g.mask : 0; break;
      case OP_SHFL_IDX:
      case OP_SHFL_UP:
      case OP_SHFL_DOWN:
      case OP_SHFL_XOR: l.result = shuffled(w, g, l); break;
      default: l.result = t.reduced; break;
    }
  }
  w.runnable |= g.mask & ~w.exited;
}

static void check_mask(const Warp& w, Op op, uint32_t mask, uint32_t bit, const char* file, int line) {
  if (!(mask & bit)) fail("%s mask %08x does not name the calling lane, at %s:%d", op_name(op), mask, file, line);
  if (mask & ~w.present)
    fail("%s mask %08x names lanes the block does not have (%08x), at %s:%d", op_name(op), mask, mask & ~w.present,
         file, line);
  if ((mask & w.exited) && runtime->opts.strict_exit)
    fail("%s mask %08x names exited lanes %08x, at %s:%d", op_name(op), mask, mask & w.exited, file, line);
}

static Group& join(Warp& w, const Lane& l) {
  for (int i = 0; i < w.n_groups; i++) {
    Group& g = w.groups[i];
    const bool same_site = g.line == l.line && g.file == l.file;
    if (g.op == l.op && g.mask == l.mask && g.width == l.width && g.size == l.size &&
        (same_site || !runtime->opts.strict_site))
      return g;
  }
  Group& g = w.groups[w.n_groups++];
  g = Group{l.mask, 0, l.op, l.size, l.width, l.file, l.line};
  return g;
}

uint64_t rendezvous(Op op, uint32_t mask, uint64_t arg, int src, int width, int size, const char* file, int line) {
  Lane* me = cur;
  Warp& w = runtime->warps[me->warp];
  runtime->stats.lane_steps++;
  const uint32_t bit = 1u << me->lane;
  me->op = op;
  me->mask = mask;
  me->arg = arg;
  me->src = src;
  me->width = (uint16_t)width;
  me->size = (uint8_t)size;
  me->file = file;
  me->line = line;
  check_mask(w, op, mask, bit, file, line);
  // Only __syncwarp orders memory: a shuffle or a vote does not.
  if (op == OP_SYNCWARP) order_before(&w);
  Group& g = join(w, *me);
  g.arrived |= bit;
  w.runnable &= ~bit;
  if (g.arrived == (g.mask & ~w.exited)) {
    complete(w, g);
    g = w.groups[--w.n_groups];
  } else {
    leave(me);
  }
  if (op == OP_SYNCWARP) order_after(&w);
  return me->result;
}

void lane_exits(Lane* me) {
  Runtime& rt = *runtime;
  Warp& w = rt.warps[me->warp];
  const uint32_t bit = 1u << me->lane;
  rt.n_copies[me->linear] = 0;
  w.runnable &= ~bit;
  w.exited |= bit;
  rt.n_alive--;
  rt.idle_yields = 0;
  for (int i = 0; i < w.n_groups; i++) {
    Group& g = w.groups[i];
    if (!(g.mask & bit)) continue;
    if (rt.opts.strict_exit) {
      const Lane& o = w.lanes[__builtin_ctz(g.arrived)];
      fail("exited while lanes %08x wait for it in %s(mask %08x) at %s:%d", g.arrived, op_name(g.op), g.mask, o.file,
           o.line);
    }
    if (g.arrived == (g.mask & ~w.exited)) {
      complete(w, g);
      w.groups[i--] = w.groups[--w.n_groups];
    }
  }
  if (!rt.n_in_barrier) return;
  if (rt.opts.strict_exit)
    fail("exited while %u threads wait in __syncthreads at %s:%d", rt.n_in_barrier, rt.bar_file, rt.bar_line);
  if (rt.n_in_barrier == rt.n_alive) release_barrier();
}
}  // namespace cusim
