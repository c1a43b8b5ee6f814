/* One contributor: what it keeps while a tensor is summed. */
#ifndef PLAIT_WORKER_H
#define PLAIT_WORKER_H

#include <stdbool.h>
#include <stddef.h>

#include "protocol.h"

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

#endif
