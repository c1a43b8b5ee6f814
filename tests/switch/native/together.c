/* A switch and its workers in one process over loopback, with packets lost, doubled and out of order: `together SEED`.
 * Built with sanitizers by test_switch_malformed.py. */
#include <arpa/inet.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "plane.h"
#include "worker.h"

struct plait_plane *plait_plane_make(uint32_t slots, uint16_t elements);
void plait_plane_worker(struct plait_plane *plane, unsigned job, unsigned worker, const char *address, uint16_t port,
                        const char *source);
void plait_plane_open(struct plait_plane *plane, unsigned index, uint8_t count, uint32_t epoch, uint64_t token,
                      uint32_t first, uint16_t slots, uint16_t elements);
void plait_plane_close(struct plait_plane *plane, unsigned job);
void plait_plane_free(struct plait_plane *plane);
int plait_serve(struct plait_plane *plane, int socket, int stop, struct plait_faults faults);
struct plait_worker *plait_worker_make(int socket, int control, const struct plait_ticket *ticket, double silence);
int plait_worker_begin(struct plait_worker *worker, const float *in, float *out, uint64_t length, double patience);
enum plait_outcome plait_worker_run(struct plait_worker *worker, double seconds);
void plait_worker_free(struct plait_worker *worker);

enum { WORKERS = 3, SLOTS = 8, ELEMENTS = 96 };
static const uint64_t LENGTHS[] = {1, 97, 30000, 768, 5000};

static int make_socket(struct sockaddr_in *address) {
    int made = socket(AF_INET, SOCK_DGRAM, 0);
    socklen_t size = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(made, (struct sockaddr *)address, size) || getsockname(made, (struct sockaddr *)address, &size))
        exit(3);
    return made;
}

struct serving {
    struct plait_plane *plane;
    int socket, stop;
    struct plait_faults faults;
};

static void *serve(void *argument) {
    struct serving *serving = argument;
    plait_serve(serving->plane, serving->socket, serving->stop, serving->faults);
    return NULL;
}

struct contributor {
    int socket, number;
    struct plait_ticket ticket;
    int failed;
};

static float value(int number, uint64_t i) {
    return i % 1009 == 5 && number == 1 ? INFINITY : (float)((i * 7 + (uint64_t)number) % 1000) - 500.0f;
}

static void *contribute(void *argument) {
    struct contributor *one = argument;
    int quiet = eventfd(0, 0);
    struct plait_worker *worker = plait_worker_make(one->socket, quiet, &one->ticket, 5.0);
    for (unsigned turn = 0; turn < sizeof LENGTHS / sizeof *LENGTHS && !one->failed; turn++) {
        uint64_t length = LENGTHS[turn];
        float *in = malloc(4 * length), *out = malloc(4 * length); /* exact sizes: reading past them is caught */
        enum plait_outcome outcome = PLAIT_PENDING;
        for (uint64_t i = 0; i < length; i++)
            in[i] = value(one->number, i);
        plait_worker_begin(worker, in, out, length, 20.0);
        while (outcome == PLAIT_PENDING)
            outcome = plait_worker_run(worker, 0.1);
        one->failed = outcome != PLAIT_DONE;
        for (uint64_t i = 0; i < length && !one->failed; i++) {
            float sum = value(0, i) + value(1, i) + value(2, i);
            one->failed = isinf(sum) ? out[i] != sum : !(fabsf(out[i] - sum) < 0.01f);
        }
        free(in);
        free(out);
    }
    plait_worker_free(worker);
    close(quiet);
    return NULL;
}

int main(int argc, char **argv) {
    struct sockaddr_in address, mine;
    struct serving serving = {.plane = plait_plane_make(2 * SLOTS, ELEMENTS), .stop = eventfd(0, 0)};
    serving.socket = make_socket(&address);
    serving.faults = (struct plait_faults){argc > 1 ? strtoull(argv[1], NULL, 10) : 1, 30000, 30000, 100000};
    struct contributor workers[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (struct contributor){.socket = make_socket(&mine), .number = i};
        workers[i].ticket = (struct plait_ticket){.token = 99, .epoch = 5, .summands = WORKERS, .job = 1,
                                                  .slots = SLOTS, .elements = ELEMENTS, .worker = (uint8_t)i,
                                                  .count = WORKERS};
        if (connect(workers[i].socket, (struct sockaddr *)&address, sizeof address))
            return 3;
        plait_plane_worker(serving.plane, 1, (unsigned)i, "127.0.0.1", ntohs(mine.sin_port), "127.0.0.1");
    }
    plait_plane_open(serving.plane, 1, WORKERS, 5, 99, SLOTS, SLOTS, ELEMENTS);
    pthread_t server, threads[WORKERS];
    pthread_create(&server, NULL, serve, &serving);
    for (int i = 0; i < WORKERS; i++)
        pthread_create(&threads[i], NULL, contribute, &workers[i]);
    int failed = 0;
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(threads[i], NULL);
        failed |= workers[i].failed;
        close(workers[i].socket);
    }
    uint64_t one = 1;
    if (write(serving.stop, &one, sizeof one) != sizeof one)
        return 3;
    pthread_join(server, NULL);
    plait_plane_close(serving.plane, 1);
    plait_plane_free(serving.plane);
    puts(failed ? "wrong" : "right");
    return failed;
}
