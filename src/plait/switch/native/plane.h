/* The data plane's state: jobs, each with its own range of slots, each slot in two copies. */
#ifndef PLAIT_PLANE_H
#define PLAIT_PLANE_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "protocol.h"

#define PLAIT_MOST_JOBS 64

/* The order is that of COUNTERS in plane.py. */
enum plait_counter {
    COUNT_RECEIVED,
    COUNT_SUMMED,
    COUNT_COMPLETED,
    COUNT_SENT,
    COUNT_UNSENT,
    COUNT_ANSWERED_AGAIN,
    COUNT_ASKED,
    COUNT_FORWARDED,
    COUNT_LOST_ON_PURPOSE,
    COUNT_BAD_LENGTH,
    COUNT_BAD_MAGIC,
    COUNT_BAD_KIND,
    COUNT_BAD_JOB,
    COUNT_BAD_EPOCH,
    COUNT_BAD_KEY,
    COUNT_BAD_WORKER,
    COUNT_BAD_SLOT,
    COUNT_BAD_VERSION,
    COUNT_STALE,
    COUNT_EARLY,
    COUNT_DIFFERS,
    NUM_COUNTERS
};

struct plait_copy {
    uint64_t chunk;
    uint64_t here; /* who has contributed, a bit each */
    bool used;
    bool complete; /* all workers of this switch have contributed */
    bool answered; /* the result for all workers is there; later than `complete` where a parent adds others' */
    uint8_t kind;
    struct plait_header answer;
    int32_t *values;
};

/* This switch as one worker of the switch above it. */
struct plait_parent {
    bool there;
    uint8_t worker, count;
    uint16_t job;
    uint32_t epoch;
    uint64_t token;
    struct sockaddr_in address;
};

struct plait_job {
    bool open;
    uint8_t count;
    uint16_t slots, elements;
    uint32_t epoch;
    uint64_t token;
    uint64_t left; /* workers that have gone for good, a bit each */
    struct plait_copy *copies;
    struct plait_parent parent;
    struct sockaddr_in workers[PLAIT_MOST_WORKERS];
    struct in_addr sources[PLAIT_MOST_WORKERS]; /* our own address, as that worker knows it */
    uint64_t summed, completed;
};

/* Made wrong on purpose, for tests: shares of packets, in millionths. */
struct plait_faults {
    uint64_t seed;
    uint32_t loss, duplicate, reorder;
};

struct plait_plane {
    pthread_mutex_t lock;
    uint32_t slots;
    uint16_t elements;
    struct plait_copy *copies; /* two for each slot */
    uint8_t *memory;
    struct plait_job jobs[PLAIT_MOST_JOBS];
    uint64_t counters[NUM_COUNTERS];
};

enum plait_verdict {
    PLAIT_DROP,
    PLAIT_HELD,
    PLAIT_ANSWER,   /* the first reply goes to one worker */
    PLAIT_EVERYONE, /* to all workers */
    PLAIT_UPWARD,   /* to the parent */
    PLAIT_FORWARD   /* to the parent, and the second to the worker */
};

/* What a packet leads to. `header` is sent, followed by `bytes` of `values`. */
struct plait_reply {
    const struct plait_job *job;
    uint8_t worker; /* of an ANSWER */
    struct plait_header header;
    const int32_t *values;
    size_t bytes;
    int32_t map[2]; /* the values of an answer: who has contributed */
};

enum plait_verdict plait_take(struct plait_plane *plane, const uint8_t *packet, size_t bytes, struct plait_reply replies[2]);

#endif
