/* checksum.c - XXH64, seed 0, written from the algorithm's specification (xxHash fast digest algorithm, 0.1.1). */
#include "memory.h"
#include "mlc_rt.h"

#define PRIME1 UINT64_C(0x9E3779B185EBCA87)
#define PRIME2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define PRIME3 UINT64_C(0x165667B19E3779F9)
#define PRIME4 UINT64_C(0x85EBCA77C2B2AE63)
#define PRIME5 UINT64_C(0x27D4EB2F165667C5)
#define STRIPE_BYTES 32

static uint64_t rotate_left(uint64_t value, int count) { return value << count | value >> (64 - count); }

static uint64_t read_u64(const uint8_t *bytes) {
  uint64_t value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

static uint32_t read_u32(const uint8_t *bytes) {
  uint32_t value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

static uint64_t mix_lane(uint64_t lane, uint64_t word) { return rotate_left(lane + word * PRIME2, 31) * PRIME1; }

static uint64_t merge_lane(uint64_t hash, uint64_t lane) { return (hash ^ mix_lane(0, lane)) * PRIME1 + PRIME4; }

/* Lanes live in registers over the whole run: the four chains are what the speed hangs on. */
static void mix_stripes(uint64_t lanes[4], const uint8_t *bytes, uint64_t stripe_count) {
  uint64_t lane0 = lanes[0], lane1 = lanes[1], lane2 = lanes[2], lane3 = lanes[3];
  for (; stripe_count > 0; --stripe_count, bytes += STRIPE_BYTES) {
    lane0 = mix_lane(lane0, read_u64(bytes));
    lane1 = mix_lane(lane1, read_u64(bytes + 8));
    lane2 = mix_lane(lane2, read_u64(bytes + 16));
    lane3 = mix_lane(lane3, read_u64(bytes + 24));
  }
  lanes[0] = lane0, lanes[1] = lane1, lanes[2] = lane2, lanes[3] = lane3;
}

void mlc_checksum_begin(mlc_checksum_state *state) {
  memset(state, 0, sizeof *state);
  state->lanes[0] = PRIME1 + PRIME2;
  state->lanes[1] = PRIME2;
  state->lanes[2] = 0;
  state->lanes[3] = 0 - PRIME1;
}

void mlc_checksum_update(mlc_checksum_state *state, const void *bytes, uint64_t size_bytes) {
  const uint8_t *cursor = (const uint8_t *)bytes;
  uint64_t held = state->total_bytes % STRIPE_BYTES;
  if (size_bytes == 0) return;
  state->total_bytes += size_bytes;
  if (held > 0) {
    const uint64_t wanted = STRIPE_BYTES - held;
    const uint64_t taken = size_bytes < wanted ? size_bytes : wanted;
    memcpy(state->tail + held, cursor, (size_t)taken);
    cursor += taken;
    size_bytes -= taken;
    if (taken < wanted) return;
    mix_stripes(state->lanes, state->tail, 1);
  }
  mix_stripes(state->lanes, cursor, size_bytes / STRIPE_BYTES);
  held = size_bytes % STRIPE_BYTES;
  if (held > 0) memcpy(state->tail, cursor + (size_bytes - held), (size_t)held);
}

uint64_t mlc_checksum_end(const mlc_checksum_state *state) {
  const uint64_t *lanes = state->lanes;
  const uint8_t *tail = state->tail;
  uint64_t rest = state->total_bytes % STRIPE_BYTES;
  uint64_t hash = PRIME5;
  if (state->total_bytes >= STRIPE_BYTES) {
    hash = rotate_left(lanes[0], 1) + rotate_left(lanes[1], 7) + rotate_left(lanes[2], 12) + rotate_left(lanes[3], 18);
    for (int lane = 0; lane < 4; ++lane) hash = merge_lane(hash, lanes[lane]);
  }
  hash += state->total_bytes;
  for (; rest >= 8; rest -= 8, tail += 8) {
    hash = rotate_left(hash ^ mix_lane(0, read_u64(tail)), 27) * PRIME1 + PRIME4;
  }
  if (rest >= 4) {
    hash = rotate_left(hash ^ read_u32(tail) * PRIME1, 23) * PRIME2 + PRIME3;
    rest -= 4, tail += 4;
  }
  for (; rest > 0; --rest, ++tail) hash = rotate_left(hash ^ *tail * PRIME5, 11) * PRIME1;
  hash = (hash ^ hash >> 33) * PRIME2;
  hash = (hash ^ hash >> 29) * PRIME3;
  return hash ^ hash >> 32;
}

uint64_t mlc_checksum(const void *bytes, uint64_t size_bytes) {
  mlc_checksum_state state;
  mlc_checksum_begin(&state);
  mlc_checksum_update(&state, bytes, size_bytes);
  return mlc_checksum_end(&state);
}
