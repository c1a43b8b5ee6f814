/* What travels between workers and an aggregating switch: one header, then `length` 32-bit integers. All fields are
 * little-endian. docs/switch.md describes the protocol; both data planes and the worker include this file. */
#ifndef PLAIT_PROTOCOL_H
#define PLAIT_PROTOCOL_H

#include <stdint.h>

#define PLAIT_MAGIC 0x31574c50u /* "PLW1" */
#define PLAIT_MOST_WORKERS 64   /* a bit each in a 64-bit map of who has contributed */
#define PLAIT_NO_EXPONENT (-127)

enum plait_kind {
    PLAIT_SUM = 1,     /* worker to switch: add these */
    PLAIT_MAX = 2,     /* worker to switch: keep the larger, element by element */
    PLAIT_RESULT = 3,  /* switch to all workers, or again to one */
    PLAIT_ASK = 4,     /* worker to switch, a header alone: what has become of this chunk? One of these answers: */
    PLAIT_NEED = 5,    /* your contribution is not here */
    PLAIT_WAIT = 6,    /* it is, others are missing; the map of who is here, as two integers */
    PLAIT_GONE = 7,    /* as WAIT, and some of those missing have left the job for good */
    PLAIT_READY = 8,   /* the result has been sent */
    PLAIT_GIVE = 9,    /* worker to switch, a header alone: the result again */
    PLAIT_DIFFERS = 10 /* switch to one: others sum a tensor of another size here */
};

struct plait_header {
    uint32_t magic;
    uint8_t kind;
    uint8_t version; /* which copy of the slot: (chunk / slots) % 2 */
    uint8_t worker;
    uint8_t count; /* workers of the job at this switch */
    uint16_t job;  /* index at this switch */
    uint16_t slot; /* in the job's own range: chunk % slots */
    uint32_t epoch;
    uint64_t token; /* drawn for every epoch and told to its workers alone */
    uint64_t chunk; /* counted through all tensors of an epoch */
    uint32_t size;  /* elements of the whole tensor, modulo 2^32; of an ASK its number, which the answer repeats */
    uint16_t length;
    int8_t exponent; /* largest exponent of the chunk that comes to this slot next */
    uint8_t special; /* not 0 where that chunk has a NaN or an infinity */
} __attribute__((packed));

_Static_assert(sizeof(struct plait_header) == 40, "the header is 40 bytes on the wire");

#endif
