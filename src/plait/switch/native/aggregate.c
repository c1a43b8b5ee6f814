/* What the switch does with one packet: no socket, no clock, so that it can be fed anything. */
#include "plane.h"

#include <string.h>

static enum plait_verdict drop(struct plait_plane *plane, enum plait_counter why) {
    plane->counters[why]++;
    return PLAIT_DROP;
}

static void combine(int32_t *restrict kept, const uint8_t *restrict packet, unsigned length, uint8_t kind) {
    for (unsigned i = 0; i < length; i++) {
        int32_t value;
        memcpy(&value, packet + 4u * i, 4);
        if (kind == PLAIT_MAX)
            kept[i] = value > kept[i] ? value : kept[i];
        else /* unsigned: a worker that breaks the agreed scale must not be undefined behaviour here */
            kept[i] = (int32_t)((uint32_t)kept[i] + (uint32_t)value);
    }
}

static void begin(struct plait_copy *copy, const struct plait_header *header) {
    copy->used = true;
    copy->complete = copy->answered = false;
    copy->chunk = header->chunk;
    copy->here = 0;
    copy->kind = header->kind;
    copy->answer = *header;
    copy->answer.kind = PLAIT_WAIT; /* until it is a result */
    copy->answer.worker = 0xff;
}

static void answer_with_result(const struct plait_copy *copy, struct plait_reply *reply) {
    reply->header = copy->answer;
    reply->values = copy->values;
    reply->bytes = 4u * copy->answer.length;
}

static enum plait_verdict tell(const struct plait_job *job, const struct plait_copy *copy, uint8_t kind,
                               const struct plait_header *header, struct plait_reply *reply) {
    reply->job = job;
    reply->worker = header->worker;
    reply->header = *header;
    reply->header.kind = kind;
    reply->header.length = 2;
    memcpy(reply->map, &copy->here, sizeof reply->map);
    reply->values = reply->map;
    reply->bytes = sizeof reply->map;
    return PLAIT_ANSWER;
}

static void upward(const struct plait_job *job, const struct plait_copy *copy, struct plait_reply *reply) {
    const struct plait_parent *parent = &job->parent;
    answer_with_result(copy, reply);
    reply->job = job;
    reply->header.kind = copy->kind;
    reply->header.worker = parent->worker;
    reply->header.count = parent->count;
    reply->header.job = parent->job;
    reply->header.epoch = parent->epoch;
    reply->header.token = parent->token;
}

/* A chunk that this worker has contributed to, or may; `replies` has room for two. */
static enum plait_verdict tell_state(struct plait_plane *plane, const struct plait_job *job,
                                     const struct plait_copy *copy, const struct plait_header *header,
                                     struct plait_reply *replies) {
    uint64_t bit = UINT64_C(1) << header->worker;
    plane->counters[COUNT_ASKED]++;
    if (!copy->used || copy->chunk != header->chunk || !(copy->here & bit))
        return tell(job, copy, PLAIT_NEED, header, replies);
    if (copy->answered)
        return tell(job, copy, PLAIT_READY, header, replies);
    uint8_t kind = job->left & ~copy->here ? PLAIT_GONE : PLAIT_WAIT;
    if (!copy->complete)
        return tell(job, copy, kind, header, replies);
    plane->counters[COUNT_FORWARDED]++; /* what went up, or what came down, was lost or is late */
    upward(job, copy, replies);
    tell(job, copy, PLAIT_WAIT, header, replies + 1);
    return PLAIT_FORWARD;
}

static enum plait_verdict give_again(struct plait_plane *plane, const struct plait_job *job,
                                     const struct plait_copy *copy, const struct plait_header *header,
                                     struct plait_reply *reply) {
    plane->counters[COUNT_ANSWERED_AGAIN]++;
    reply->job = job;
    reply->worker = header->worker;
    answer_with_result(copy, reply);
    return PLAIT_ANSWER;
}

static enum plait_verdict contribute(struct plait_plane *plane, struct plait_job *job, struct plait_copy *copy,
                                     const struct plait_header *header, const uint8_t *values,
                                     struct plait_reply *reply) {
    /* From a switch below, a second time means that the result has not come to it. */
    uint64_t bit = UINT64_C(1) << header->worker, all = ~UINT64_C(0) >> (PLAIT_MOST_WORKERS - job->count);
    if (copy->kind != header->kind || copy->answer.length != header->length || copy->answer.size != header->size) {
        plane->counters[COUNT_DIFFERS]++;
        return tell(job, copy, PLAIT_DIFFERS, header, reply);
    }
    if (copy->here & bit)
        return copy->answered ? give_again(plane, job, copy, header, reply)
                              : tell_state(plane, job, copy, header, reply);
    if (!copy->here) {
        memcpy(copy->values, values, 4u * header->length);
    } else {
        combine(copy->values, values, header->length, header->kind);
        if (header->exponent > copy->answer.exponent)
            copy->answer.exponent = header->exponent;
        copy->answer.special |= header->special;
    }
    copy->here |= bit;
    plane->counters[COUNT_SUMMED]++;
    job->summed++;
    if (copy->here != all)
        return PLAIT_HELD;
    copy->complete = true;
    plane->counters[COUNT_COMPLETED]++;
    job->completed++;
    if (job->parent.there) {
        upward(job, copy, reply);
        return PLAIT_UPWARD;
    }
    copy->answered = true;
    copy->answer.kind = PLAIT_RESULT;
    reply->job = job;
    answer_with_result(copy, reply);
    return PLAIT_EVERYONE;
}

static enum plait_verdict from_worker(struct plait_plane *plane, const struct plait_header *header,
                                      const uint8_t *values, struct plait_reply *replies) {
    if (header->job >= PLAIT_MOST_JOBS || !plane->jobs[header->job].open)
        return drop(plane, COUNT_BAD_JOB);
    struct plait_job *job = &plane->jobs[header->job];
    if (header->epoch != job->epoch)
        return drop(plane, COUNT_BAD_EPOCH);
    if (header->token != job->token)
        return drop(plane, COUNT_BAD_KEY);
    if (header->worker >= job->count || header->count != job->count)
        return drop(plane, COUNT_BAD_WORKER);
    if (header->slot >= job->slots || header->slot != header->chunk % job->slots)
        return drop(plane, COUNT_BAD_SLOT);
    if (header->version != (header->chunk / job->slots) % 2)
        return drop(plane, COUNT_BAD_VERSION);
    bool has_values = header->kind == PLAIT_SUM || header->kind == PLAIT_MAX;
    if (has_values == !header->length || header->length > job->elements)
        return drop(plane, COUNT_BAD_LENGTH);
    struct plait_copy *copy = &job->copies[2u * header->slot + header->version];
    /* A copy is used again two rounds later, when everybody has what was in it. Nothing else may touch it. */
    uint64_t next = copy->used ? copy->chunk + 2u * job->slots : header->slot + (uint64_t)header->version * job->slots;
    if (copy->used && header->chunk < next) {
        if (header->chunk != copy->chunk)
            return drop(plane, COUNT_STALE);
    } else {
        if (header->chunk != next || (copy->used && !copy->answered))
            return drop(plane, COUNT_EARLY);
        if (has_values)
            begin(copy, header);
    }
    if (has_values)
        return contribute(plane, job, copy, header, values, replies);
    if (header->kind == PLAIT_ASK)
        return tell_state(plane, job, copy, header, replies);
    if (!copy->used || copy->chunk != header->chunk || !copy->answered)
        return drop(plane, COUNT_STALE);
    return give_again(plane, job, copy, header, replies);
}

static enum plait_verdict from_parent(struct plait_plane *plane, const struct plait_header *header,
                                      const uint8_t *values, struct plait_reply *reply) {
    struct plait_job *job = NULL;
    for (unsigned i = 0; i < PLAIT_MOST_JOBS && !job; i++) {
        struct plait_job *one = &plane->jobs[i];
        if (one->open && one->parent.there && one->parent.token == header->token && one->parent.epoch == header->epoch)
            job = one;
    }
    if (!job)
        return drop(plane, COUNT_BAD_KIND);
    if (header->slot >= job->slots || header->slot != header->chunk % job->slots)
        return drop(plane, COUNT_BAD_SLOT);
    if (header->version != (header->chunk / job->slots) % 2)
        return drop(plane, COUNT_BAD_VERSION);
    struct plait_copy *copy = &job->copies[2u * header->slot + header->version];
    if (!copy->used || copy->chunk != header->chunk || !copy->complete || copy->answered)
        return drop(plane, COUNT_STALE);
    if (copy->answer.length != header->length)
        return drop(plane, COUNT_BAD_LENGTH);
    memcpy(copy->values, values, 4u * header->length);
    copy->answer.exponent = header->exponent;
    copy->answer.special = header->special;
    copy->answer.kind = PLAIT_RESULT;
    copy->answered = true;
    reply->job = job;
    answer_with_result(copy, reply);
    return PLAIT_EVERYONE;
}

enum plait_verdict plait_take(struct plait_plane *plane, const uint8_t *packet, size_t bytes,
                              struct plait_reply replies[2]) {
    struct plait_header header;
    plane->counters[COUNT_RECEIVED]++;
    if (bytes < sizeof header)
        return drop(plane, COUNT_BAD_LENGTH);
    memcpy(&header, packet, sizeof header);
    if (header.magic != PLAIT_MAGIC)
        return drop(plane, COUNT_BAD_MAGIC);
    if (bytes != sizeof header + 4u * header.length)
        return drop(plane, COUNT_BAD_LENGTH);
    switch (header.kind) {
    case PLAIT_SUM:
    case PLAIT_MAX:
    case PLAIT_ASK:
    case PLAIT_GIVE:
        return from_worker(plane, &header, packet + sizeof header, replies);
    case PLAIT_RESULT:
        return from_parent(plane, &header, packet + sizeof header, replies);
    default: /* WAIT and its like from a parent change nothing here: the workers themselves will ask again */
        return drop(plane, COUNT_BAD_KIND);
    }
}
