/* Feeds the data plane packets of every kind of wrongness, without a socket: `feed COUNT SEED`. Built with sanitizers by
 * test_switch_malformed.py; every packet lies in memory of its exact size, so that reading past it is caught.
 *
 * Two jobs of three workers run meanwhile, on slots side by side; what they sum is checked, and so are the counters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plane.h"

struct plait_plane *plait_plane_make(uint32_t slots, uint16_t elements);
void plait_plane_open(struct plait_plane *plane, unsigned index, uint8_t count, uint32_t epoch, uint64_t token,
                      uint32_t first, uint16_t slots, uint16_t elements);
void plait_plane_free(struct plait_plane *plane);

enum { SLOTS = 8, ELEMENTS = 32, WORKERS = 3, JOBS = 2 };

static uint64_t state;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 11;
}

static enum plait_verdict give(struct plait_plane *plane, const struct plait_header *header, const int32_t *values,
                               size_t bytes, struct plait_reply *replies) {
    uint8_t *packet = malloc(bytes ? bytes : 1);
    size_t head = bytes < sizeof *header ? bytes : sizeof *header;
    memcpy(packet, header, head);
    if (bytes > head)
        memcpy(packet + head, values, bytes - head);
    enum plait_verdict verdict = plait_take(plane, packet, bytes, replies);
    free(packet);
    return verdict;
}

static struct plait_header honest(unsigned job, unsigned worker, uint64_t chunk) {
    return (struct plait_header){
        .magic = PLAIT_MAGIC, .kind = PLAIT_SUM, .version = (uint8_t)(chunk / SLOTS % 2), .worker = (uint8_t)worker,
        .count = WORKERS, .job = (uint16_t)job, .slot = (uint16_t)(chunk % SLOTS), .epoch = 100 + job,
        .token = 7000 + job, .chunk = chunk, .size = 1000, .length = ELEMENTS, .exponent = -3, .special = 0};
}

/* One field or more of a packet that would do is made wrong, or all of it is. Never one that a worker may send. */
static void disturb(struct plait_plane *plane, uint64_t chunk) {
    struct plait_header header = honest((unsigned)(draw() % JOBS), (unsigned)(draw() % WORKERS), chunk);
    int32_t values[4 * ELEMENTS];
    size_t bytes = sizeof header + 4u * header.length;
    for (unsigned i = 0; i < 4 * ELEMENTS; i++)
        values[i] = (int32_t)draw();
    switch (draw() % 12) {
    case 0: header.magic ^= 1u << draw() % 32; break;
    case 1: header.kind = (uint8_t)(3 + draw() % 253); break;
    case 2: header.version ^= (uint8_t)(1 + draw() % 255); break;
    case 3: header.worker = (uint8_t)(WORKERS + draw() % (256 - WORKERS)); break;
    case 4: header.count = (uint8_t)(WORKERS + 1 + draw() % 200); break;
    case 5: header.job = (uint16_t)(JOBS + draw() % 65000); break;
    case 6: header.slot = (uint16_t)(header.slot + 1 + draw() % 65000 / SLOTS * SLOTS); break;
    case 7: header.epoch ^= 1u << draw() % 32; break;
    case 8: header.token ^= UINT64_C(1) << draw() % 64; break;
    case 9: header.chunk += 2 * SLOTS * (2 + draw() % 1000) ; break; /* the same slot and copy, far ahead */
    case 10:
        bytes = draw() % (sizeof header + sizeof values);
        if (bytes == sizeof header + 4u * header.length)
            bytes--;
        break;
    default: /* noise, which must not happen to be right */
        for (size_t i = 0; i < sizeof header; i++)
            ((uint8_t *)&header)[i] = (uint8_t)draw();
        if (draw() % 2)
            header.magic = PLAIT_MAGIC;
        if (draw() % 2)
            bytes = draw() % (sizeof header + sizeof values);
    }
    struct plait_reply replies[2];
    enum plait_verdict verdict = give(plane, &header, values, bytes, replies);
    if (verdict != PLAIT_DROP) {
        fprintf(stderr, "a wrong packet was taken: verdict %d, chunk %llu\n", verdict, (unsigned long long)chunk);
        exit(1);
    }
}

int main(int argc, char **argv) {
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000, sent = 0;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) * 2654435761u + 1 : 1;
    struct plait_plane *plane = plait_plane_make(JOBS * SLOTS, ELEMENTS);
    struct plait_reply replies[2];
    for (unsigned job = 0; job < JOBS; job++)
        plait_plane_open(plane, job, WORKERS, 100 + job, 7000 + job, job * SLOTS, SLOTS, ELEMENTS);
    uint64_t wrong = 0, chunks = 0;
    for (uint64_t chunk = 0; wrong < count; chunk++) {
        for (unsigned worker = 0; worker < WORKERS; worker++) {
            for (unsigned job = 0; job < JOBS; job++) {
                for (uint64_t i = draw() % 40; i; i--, wrong++)
                    disturb(plane, chunk);
                struct plait_header header = honest(job, worker, chunk);
                int32_t values[ELEMENTS];
                for (int i = 0; i < ELEMENTS; i++)
                    values[i] = (int32_t)(chunk % 1000) * (int)(worker + 1) + i + (int)job;
                enum plait_verdict verdict = give(plane, &header, values, sizeof header + sizeof values, replies);
                sent++;
                if (verdict != (worker + 1 < WORKERS ? PLAIT_HELD : PLAIT_EVERYONE))
                    return fprintf(stderr, "verdict %d\n", verdict), 1;
                if (verdict != PLAIT_EVERYONE)
                    continue;
                chunks++;
                for (int i = 0; i < ELEMENTS; i++)
                    if (replies->values[i] != (int32_t)(chunk % 1000) * 6 + 3 * (i + (int)job))
                        return fprintf(stderr, "chunk %llu is summed wrongly\n", (unsigned long long)chunk), 1;
            }
        }
    }
    uint64_t dropped = 0, *counters = plane->counters;
    for (int i = COUNT_BAD_LENGTH; i < NUM_COUNTERS; i++)
        dropped += counters[i];
    if (counters[COUNT_RECEIVED] != sent + wrong || counters[COUNT_SUMMED] != sent || dropped != wrong ||
        counters[COUNT_COMPLETED] != chunks)
        return fprintf(stderr, "counters do not add up\n"), 1;
    for (int i = COUNT_BAD_LENGTH; i < NUM_COUNTERS; i++)
        if (!counters[i] && i != COUNT_DIFFERS && i != COUNT_STALE)
            return fprintf(stderr, "counter %d was never needed\n", i), 1;
    printf("%llu wrong packets dropped, %llu chunks right\n", (unsigned long long)wrong, (unsigned long long)chunks);
    plait_plane_free(plane);
    return 0;
}
