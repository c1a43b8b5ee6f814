/* Making a data plane, opening and closing jobs on it: called by the control channel. */
#include "plane.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#define LINE 64u /* values start on a cache line */

struct plait_plane *plait_plane_make(uint32_t slots, uint16_t elements) {
    struct plait_plane *plane = calloc(1, sizeof *plane);
    size_t stride = (4u * elements + LINE - 1) / LINE * LINE;
    if (!plane)
        return NULL;
    plane->slots = slots;
    plane->elements = elements;
    plane->copies = calloc(2u * slots, sizeof *plane->copies);
    if (!plane->copies || posix_memalign((void **)&plane->memory, LINE, 2u * slots * stride)) {
        free(plane->copies);
        free(plane);
        return NULL;
    }
    for (uint32_t i = 0; i < 2u * slots; i++)
        plane->copies[i].values = (int32_t *)(void *)(plane->memory + i * stride);
    pthread_mutex_init(&plane->lock, NULL);
    return plane;
}

void plait_plane_free(struct plait_plane *plane) {
    pthread_mutex_destroy(&plane->lock);
    free(plane->memory);
    free(plane->copies);
    free(plane);
}

/* The job's workers are added one by one before it is opened. */
void plait_plane_worker(struct plait_plane *plane, unsigned job, unsigned worker, const char *address, uint16_t port,
                        const char *source) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &to.sin_addr);
    pthread_mutex_lock(&plane->lock);
    plane->jobs[job].workers[worker] = to;
    inet_pton(AF_INET, source, &plane->jobs[job].sources[worker]);
    pthread_mutex_unlock(&plane->lock);
}

void plait_plane_parent(struct plait_plane *plane, unsigned job, const char *address, uint16_t port,
                        uint16_t parent_job, uint8_t worker, uint8_t count, uint32_t epoch, uint64_t token) {
    struct plait_parent parent = {.there = true, .job = parent_job, .worker = worker, .count = count, .epoch = epoch};
    parent.token = token;
    parent.address.sin_family = AF_INET;
    parent.address.sin_port = htons(port);
    inet_pton(AF_INET, address, &parent.address.sin_addr);
    pthread_mutex_lock(&plane->lock);
    plane->jobs[job].parent = parent;
    pthread_mutex_unlock(&plane->lock);
}

void plait_plane_open(struct plait_plane *plane, unsigned index, uint8_t count, uint32_t epoch, uint64_t token,
                      uint32_t first, uint16_t slots, uint16_t elements) {
    pthread_mutex_lock(&plane->lock);
    struct plait_job *job = &plane->jobs[index];
    job->copies = plane->copies + 2u * first;
    for (uint32_t i = 0; i < 2u * slots; i++)
        job->copies[i].used = false; /* whatever an earlier job left there */
    job->count = count;
    job->epoch = epoch;
    job->token = token;
    job->slots = slots;
    job->elements = elements;
    job->left = job->summed = job->completed = 0;
    job->open = true;
    pthread_mutex_unlock(&plane->lock);
}

void plait_plane_close(struct plait_plane *plane, unsigned job) {
    pthread_mutex_lock(&plane->lock);
    memset(&plane->jobs[job], 0, sizeof plane->jobs[job]);
    pthread_mutex_unlock(&plane->lock);
}

void plait_plane_left(struct plait_plane *plane, unsigned job, unsigned worker) {
    pthread_mutex_lock(&plane->lock);
    plane->jobs[job].left |= UINT64_C(1) << worker;
    pthread_mutex_unlock(&plane->lock);
}

void plait_plane_counters(struct plait_plane *plane, uint64_t *counters) {
    pthread_mutex_lock(&plane->lock);
    memcpy(counters, plane->counters, sizeof plane->counters);
    pthread_mutex_unlock(&plane->lock);
}

void plait_plane_job_counters(struct plait_plane *plane, unsigned job, uint64_t *counters) {
    pthread_mutex_lock(&plane->lock);
    counters[0] = plane->jobs[job].summed;
    counters[1] = plane->jobs[job].completed;
    pthread_mutex_unlock(&plane->lock);
}
