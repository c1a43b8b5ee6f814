/* One contributor: what it keeps while a tensor is summed. */
#ifndef PLAIT_WORKER_H
#define PLAIT_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "protocol.h"

#define PLAIT_BATCH 32
#define PLAIT_SAMPLES 64

/* The order is that of Outcome in native.py. */
enum plait_outcome {
    PLAIT_DONE,
    PLAIT_PENDING,
    PLAIT_SILENT,  /* the switch has not answered for too long */
    PLAIT_LATE,    /* it answers, but other workers have not contributed */
    PLAIT_ENDED,   /* the control connection says something or has closed */
    PLAIT_SIZES,   /* others sum a tensor of another size */
    PLAIT_LEFT,    /* others have left the job */
    PLAIT_FAILED   /* the socket failed; errno is in the report */
};

/* What the worker was told when it joined. */
struct plait_ticket {
    uint64_t token;
    uint32_t epoch;
    uint32_t summands; /* workers below all switches together */
    uint16_t job, slots, elements;
    uint8_t worker, count;
};

/* The order is that of Report in native.py. */
struct plait_report {
    uint64_t sent, received, retransmitted, ignored;
    uint64_t here; /* from the last WAIT: who has contributed */
    double round_trip, timeout;
    int32_t error;
    int32_t reserved;
};

struct plait_lane {
    uint64_t item;
    double sent, heard;
    unsigned tries; /* of sending anything */
    unsigned asked; /* the number of the last ASK whose answer still counts */
    bool outstanding, queued, asks;
    struct plait_header ask; /* what is sent where it `asks`, instead of the packet */
    struct plait_header *packet; /* followed by the integers */
    size_t bytes;
};

struct plait_worker {
    int socket, control;
    struct plait_ticket ticket;
    double silence, patience;
    struct plait_lane *lanes;
    uint16_t *queue; /* lanes with something to send */
    unsigned num_queued, num_outstanding;
    uint8_t *memory, *packets;
    size_t stride;
    uint64_t base; /* chunks of earlier tensors */

    const float *in;
    float *out;
    uint64_t length, blocks, items, done;
    uint64_t *specials, num_specials;
    int8_t *exponents; /* of each block, once agreed */
    uint8_t *special;
    uint64_t room; /* blocks that the last three have room for */
    double progress;

    float samples[PLAIT_SAMPLES]; /* round trips of a full window, of packets sent once */
    unsigned num_samples;
    double timeout;
    struct plait_report report;
    struct mmsghdr incoming[PLAIT_BATCH], outgoing[PLAIT_BATCH];
    struct iovec parts[PLAIT_BATCH], sending[PLAIT_BATCH];
};

/* Items. */
int plait_items_begin(struct plait_worker *worker, const float *in, float *out, uint64_t length);
void plait_items_free(struct plait_worker *worker);
void plait_items_write(struct plait_worker *worker, struct plait_lane *lane);
void plait_items_finish(struct plait_worker *worker, uint64_t item, const struct plait_header *header, double time);

/* Lanes. */
void plait_worker_start(struct plait_worker *worker, uint64_t item, double time);

#endif
