/* One contributor of a job: lanes, time-outs and sockets. What goes through the lanes is in items.c.
 *
 * Item i of a tensor is chunk base + i, in lane (slot) chunk modulo slots. A lane sends its next item when the result of its
 * last is there, and keeps what it sent until then. */
#include "worker.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define ROUND_TRIPS 2.0       /* until the worker asks */
#define FIRST_TIMEOUT 0.1     /* before anything has been measured */
#define SHORTEST_TIMEOUT 4e-3 /* less is noise of schedulers */
#define LONGEST_TIMEOUT 0.25
#define LONGEST_SLEEP 0.1
#define LONGEST_PAUSE 4e-4

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void plait_worker_free(struct plait_worker *worker) {
    if (!worker)
        return;
    free(worker->lanes);
    free(worker->queue);
    free(worker->memory);
    free(worker->packets);
    plait_items_free(worker);
    free(worker);
}

struct plait_worker *plait_worker_make(int socket, int control, const struct plait_ticket *ticket, double silence) {
    struct plait_worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return NULL;
    worker->socket = socket;
    worker->control = control;
    worker->ticket = *ticket;
    worker->silence = silence;
    worker->timeout = FIRST_TIMEOUT;
    worker->stride = sizeof(struct plait_header) + 4u * ticket->elements + 24; /* a multiple of 64 */
    worker->stride = (worker->stride + 63) / 64 * 64;
    worker->lanes = calloc(ticket->slots, sizeof *worker->lanes);
    worker->queue = calloc(ticket->slots, sizeof *worker->queue);
    worker->memory = calloc(ticket->slots, worker->stride);
    worker->packets = calloc(PLAIT_BATCH, worker->stride);
    if (!worker->lanes || !worker->queue || !worker->memory || !worker->packets) {
        plait_worker_free(worker);
        return NULL;
    }
    for (unsigned i = 0; i < ticket->slots; i++)
        worker->lanes[i].packet = (struct plait_header *)(void *)(worker->memory + i * worker->stride);
    for (unsigned i = 0; i < PLAIT_BATCH; i++) {
        worker->parts[i] = (struct iovec){worker->packets + i * worker->stride, worker->stride};
        worker->incoming[i].msg_hdr = (struct msghdr){.msg_iov = &worker->parts[i], .msg_iovlen = 1};
        worker->outgoing[i].msg_hdr = (struct msghdr){.msg_iov = &worker->sending[i], .msg_iovlen = 1};
    }
    return worker;
}

static void enqueue(struct plait_worker *worker, struct plait_lane *lane) {
    if (!lane->queued)
        worker->queue[worker->num_queued++] = (uint16_t)(lane - worker->lanes);
    lane->queued = true;
}

/* [Note: asking] A packet that is late is not sent again, since it may only be late: that would make all others later.
 * The worker asks. Answers do not overtake what was sent before them, so NEED and READY prove a loss, where packets keep
 * their order, and cost little where they do not. Only then does a contribution go out, or a result come, again. */
static void ask(struct plait_worker *worker, struct plait_lane *lane, uint8_t kind) {
    lane->ask = *lane->packet;
    lane->ask.kind = kind;
    lane->ask.length = 0;
    lane->ask.size = ++lane->asked;
    lane->asks = true;
    enqueue(worker, lane);
}

static void send_again(struct plait_worker *worker, struct plait_lane *lane) {
    lane->asked++; /* answers to what was asked before no longer count */
    lane->asks = false;
    worker->report.retransmitted++;
    enqueue(worker, lane);
}

void plait_worker_start(struct plait_worker *worker, uint64_t item, double time) {
    struct plait_lane *lane = &worker->lanes[(worker->base + item) % worker->ticket.slots];
    lane->item = item;
    lane->outstanding = true;
    worker->num_outstanding++;
    lane->tries = 0;
    lane->asks = false;
    lane->heard = time;
    plait_items_write(worker, lane);
    enqueue(worker, lane);
}

/* Returns 0 where memory is short. `out` is written while `in` is still read, so they must not overlap. */
int plait_worker_begin(struct plait_worker *worker, const float *in, float *out, uint64_t length, double patience) {
    worker->base += worker->items;
    worker->items = 0;
    worker->patience = patience;
    worker->report.here = 0;
    worker->progress = now();
    if (!plait_items_begin(worker, in, out, length))
        return 0;
    plait_worker_start(worker, 0, worker->progress);
    return 1;
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* With the window full a packet waits for a window of others in turn: a round trip is window / rate. Where packets are
 * lost, many round trips are those of others' losses; the lower quartile is of those that went well. */
static void measure(struct plait_worker *worker, double round_trip) {
    worker->samples[worker->num_samples++ % PLAIT_SAMPLES] = (float)round_trip;
    if (worker->num_samples % (PLAIT_SAMPLES / 4))
        return;
    float sorted[PLAIT_SAMPLES];
    unsigned n = worker->num_samples < PLAIT_SAMPLES ? worker->num_samples : PLAIT_SAMPLES;
    memcpy(sorted, worker->samples, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, ascending);
    double timeout = ROUND_TRIPS * sorted[n / 4];
    worker->report.round_trip = sorted[n / 4];
    worker->timeout = timeout < SHORTEST_TIMEOUT ? SHORTEST_TIMEOUT : timeout;
}

/* An answer about a chunk that is outstanding. */
static enum plait_outcome hear(struct plait_worker *worker, struct plait_lane *lane, const struct plait_header *header,
                               double time) {
    bool counts = header->size == lane->asked && lane->asked;
    if (header->length != 2)
        return PLAIT_PENDING;
    lane->heard = time;
    memcpy(&worker->report.here, header + 1, sizeof worker->report.here);
    switch (header->kind) {
    case PLAIT_DIFFERS:
        return PLAIT_SIZES;
    case PLAIT_GONE:
        return PLAIT_LEFT;
    case PLAIT_NEED:
        if (counts)
            send_again(worker, lane);
        return PLAIT_PENDING;
    case PLAIT_READY:
        if (counts)
            ask(worker, lane, PLAIT_GIVE);
        return PLAIT_PENDING;
    default:
        return PLAIT_PENDING;
    }
}

/* PENDING, or what ends the sum. */
static enum plait_outcome take(struct plait_worker *worker, const struct plait_header *header, size_t bytes,
                               double time) {
    const struct plait_ticket *ticket = &worker->ticket;
    struct plait_lane *lane = NULL;
    if (bytes >= sizeof *header && header->magic == PLAIT_MAGIC && header->epoch == ticket->epoch &&
        header->token == ticket->token && bytes == sizeof *header + 4u * header->length)
        lane = &worker->lanes[header->chunk % ticket->slots];
    if (!lane || !lane->outstanding || header->chunk != worker->base + lane->item) {
        worker->report.ignored++; /* a result that came twice, or something that is not ours */
        return PLAIT_PENDING;
    }
    if (header->kind != PLAIT_RESULT)
        return hear(worker, lane, header, time);
    if (header->length != lane->packet->length) {
        worker->report.ignored++;
        return PLAIT_PENDING;
    }
    if (lane->tries == 1 && lane->item > ticket->slots)
        measure(worker, time - lane->sent);
    lane->outstanding = false;
    worker->num_outstanding--;
    worker->progress = time;
    plait_items_finish(worker, lane->item, header, time);
    return PLAIT_PENDING;
}

/* False where the socket takes no more for now. */
static bool flush(struct plait_worker *worker, double time) {
    while (worker->num_queued) {
        unsigned taken = 0, wanted = 0;
        for (; taken < worker->num_queued && wanted < PLAIT_BATCH; taken++) {
            struct plait_lane *lane = &worker->lanes[worker->queue[taken]];
            if (lane->outstanding) /* else its result came while it waited to be sent again */
                worker->sending[wanted++] = lane->asks ? (struct iovec){&lane->ask, sizeof lane->ask}
                                                       : (struct iovec){lane->packet, lane->bytes};
        }
        int sent = wanted ? sendmmsg(worker->socket, worker->outgoing, wanted, MSG_DONTWAIT) : 0;
        if (sent < 0 && (errno == ECONNREFUSED || errno == EINTR))
            continue; /* news of an earlier packet; the control connection tells whether the switch has gone */
        if (sent < 0 && errno != EAGAIN && errno != ENOBUFS) {
            worker->report.error = errno;
            return true;
        }
        if (sent < 0)
            return false;
        unsigned left = 0, passed = 0;
        for (unsigned i = 0; i < worker->num_queued; i++) {
            struct plait_lane *lane = &worker->lanes[worker->queue[i]];
            if (i < taken && lane->outstanding && passed < (unsigned)sent) {
                passed++;
                lane->sent = time;
                lane->tries++;
            } else if (i >= taken || lane->outstanding) {
                worker->queue[left++] = worker->queue[i];
                continue;
            }
            lane->queued = false;
        }
        worker->num_queued = left;
        worker->report.sent += passed;
        if (passed < wanted)
            return false;
    }
    return true;
}

static double deadline_of(const struct plait_worker *worker, const struct plait_lane *lane) {
    double wait = worker->timeout * (double)(1u << (lane->tries < 8 ? lane->tries - 1 : 7));
    double longest = worker->timeout > LONGEST_TIMEOUT ? worker->timeout : LONGEST_TIMEOUT;
    return lane->sent + (wait < longest ? wait : longest);
}

/* Asks about what is overdue; `*next` becomes the time to look again. */
static enum plait_outcome check_times(struct plait_worker *worker, double time, double *next) {
    *next = time + LONGEST_SLEEP;
    for (unsigned i = 0; i < worker->ticket.slots; i++) {
        struct plait_lane *lane = &worker->lanes[i];
        if (!lane->outstanding)
            continue;
        if (time - lane->heard > worker->silence)
            return PLAIT_SILENT;
        if (lane->queued || !lane->tries)
            continue;
        double deadline = deadline_of(worker, lane);
        if (deadline <= time)
            ask(worker, lane, PLAIT_ASK);
        else if (deadline < *next)
            *next = deadline;
    }
    return time - worker->progress > worker->patience ? PLAIT_LATE : PLAIT_PENDING;
}

static enum plait_outcome receive(struct plait_worker *worker, double time) {
    int n = recvmmsg(worker->socket, worker->incoming, PLAIT_BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < n; i++) {
        enum plait_outcome outcome = take(worker, (const void *)worker->parts[i].iov_base,
                                          worker->incoming[i].msg_len, time);
        worker->report.received++;
        if (outcome != PLAIT_PENDING)
            return outcome;
    }
    return PLAIT_PENDING;
}

/* To be woken for every packet costs more than to handle it. With half a window or more under way, an eighth of the
 * round trip later there are several. */
static void gather(const struct plait_worker *worker) {
    double pause = worker->report.round_trip / 8;
    if (2 * worker->num_outstanding < worker->ticket.slots || worker->num_outstanding < 8)
        return;
    struct timespec time = {0, (long)(1e9 * (pause < LONGEST_PAUSE ? pause : LONGEST_PAUSE))};
    nanosleep(&time, NULL);
}

/* Goes on for about `seconds`; PENDING where there is more to do. */
enum plait_outcome plait_worker_run(struct plait_worker *worker, double seconds) {
    double time = now(), until = time + seconds, next;
    while (worker->done < worker->items) {
        enum plait_outcome outcome = check_times(worker, time, &next);
        if (outcome != PLAIT_PENDING)
            return outcome;
        bool all_sent = flush(worker, time);
        if (worker->report.error)
            return PLAIT_FAILED;
        if (time >= until)
            return PLAIT_PENDING;
        struct pollfd wait[2] = {{.fd = worker->socket, .events = POLLIN}, {.fd = worker->control, .events = POLLIN}};
        if (!all_sent) {
            wait[0].events |= POLLOUT;
            next = time + 1e-3; /* a full queue below the socket does not wake anybody */
        }
        double sleep = (next < until ? next : until) - time;
        if (poll(wait, 2, sleep > 0 ? 1 + (int)(sleep * 1e3) : 0) < 0 && errno != EINTR) {
            worker->report.error = errno;
            return PLAIT_FAILED;
        }
        if (wait[1].revents)
            return PLAIT_ENDED;
        time = now();
        gather(worker);
        if ((outcome = receive(worker, time)) != PLAIT_PENDING)
            return outcome;
    }
    return PLAIT_DONE;
}

void plait_worker_report(const struct plait_worker *worker, struct plait_report *report) {
    *report = worker->report;
    report->timeout = worker->timeout;
}
