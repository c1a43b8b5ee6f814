/* One contributor of a job: a tensor goes through the job's slots, chunk by chunk, and comes back summed.
 *
 * Items of a tensor: the opening (largest exponents of the first blocks, a MAX), then one block after the other (a SUM;
 * each carries the exponent of the block that takes its slot next, so scales are agreed without rounds of their own),
 * then once more those blocks that hold a NaN or an infinity anywhere. Item i is chunk base + i, in lane (slot) chunk
 * modulo slots. A lane sends its next item when the result of its last is there, and keeps what it sent until then. */
#include "worker.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "numbers.h"

#define BATCH 32
#define SAMPLES 64
#define ROUND_TRIPS 2.0       /* until the worker asks */
#define FIRST_TIMEOUT 0.1     /* before anything has been measured */
#define SHORTEST_TIMEOUT 4e-3 /* less is noise of schedulers */
#define LONGEST_TIMEOUT 0.25
#define LONGEST_SLEEP 0.1
#define LONGEST_PAUSE 2e-4

struct lane {
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
    struct lane *lanes;
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

    float samples[SAMPLES]; /* round trips of a full window, of packets sent once */
    unsigned num_samples;
    double timeout;
    struct plait_report report;
    struct mmsghdr incoming[BATCH], outgoing[BATCH];
    struct iovec parts[BATCH], sending[BATCH];
};

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
    free(worker->specials);
    free(worker->exponents);
    free(worker->special);
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
    worker->packets = calloc(BATCH, worker->stride);
    if (!worker->lanes || !worker->queue || !worker->memory || !worker->packets) {
        plait_worker_free(worker);
        return NULL;
    }
    for (unsigned i = 0; i < ticket->slots; i++)
        worker->lanes[i].packet = (struct plait_header *)(void *)(worker->memory + i * worker->stride);
    for (unsigned i = 0; i < BATCH; i++) {
        worker->parts[i] = (struct iovec){worker->packets + i * worker->stride, worker->stride};
        worker->incoming[i].msg_hdr = (struct msghdr){.msg_iov = &worker->parts[i], .msg_iovlen = 1};
        worker->outgoing[i].msg_hdr = (struct msghdr){.msg_iov = &worker->sending[i], .msg_iovlen = 1};
    }
    return worker;
}

static unsigned length_of(const struct plait_worker *worker, uint64_t block) {
    uint64_t rest = worker->length - block * worker->ticket.elements;
    return rest < worker->ticket.elements ? (unsigned)rest : worker->ticket.elements;
}

static struct plait_bound bound_of(const struct plait_worker *worker, uint64_t block) {
    if (block >= worker->blocks)
        return (struct plait_bound){PLAIT_NO_EXPONENT, 0};
    return plait_bound(worker->in + block * worker->ticket.elements, length_of(worker, block));
}

/* The opening holds two integers for each of the first blocks: its exponent, and whether it is special. */
static uint64_t opened(const struct plait_worker *worker) {
    return worker->blocks < worker->ticket.slots ? worker->blocks : worker->ticket.slots;
}

static void write_item(struct plait_worker *worker, struct lane *lane) {
    const struct plait_ticket *ticket = &worker->ticket;
    uint64_t item = lane->item, chunk = worker->base + item, slots = ticket->slots;
    struct plait_header *header = lane->packet;
    int32_t *integers = (int32_t *)(void *)(header + 1);
    struct plait_bound next = {PLAIT_NO_EXPONENT, 0};
    unsigned length;
    if (item == 0) {
        length = 2 * (unsigned)opened(worker);
        for (uint64_t block = 0; block < opened(worker); block++) {
            struct plait_bound bound = bound_of(worker, block);
            integers[2 * block] = bound.exponent;
            integers[2 * block + 1] = bound.special;
        }
    } else {
        uint64_t block = item <= worker->blocks ? item - 1 : worker->specials[item - 1 - worker->blocks];
        const float *values = worker->in + block * ticket->elements;
        length = length_of(worker, block);
        if (item > worker->blocks) {
            plait_encode_special(values, integers, length);
        } else {
            int scale = plait_scale(worker->exponents[block], ticket->summands);
            plait_encode(values, integers, length, scale, worker->special[block]);
            next = bound_of(worker, block + slots);
        }
    }
    *header = (struct plait_header){
        .magic = PLAIT_MAGIC,
        .kind = item ? PLAIT_SUM : PLAIT_MAX,
        .version = (uint8_t)(chunk / slots % 2),
        .worker = ticket->worker,
        .count = ticket->count,
        .job = ticket->job,
        .slot = (uint16_t)(chunk % slots),
        .epoch = ticket->epoch,
        .token = ticket->token,
        .chunk = chunk,
        .size = (uint32_t)worker->length,
        .length = (uint16_t)length,
        .exponent = (int8_t)next.exponent,
        .special = (uint8_t)next.special,
    };
    lane->bytes = sizeof *header + 4u * length;
}

static void enqueue(struct plait_worker *worker, struct lane *lane) {
    if (!lane->queued)
        worker->queue[worker->num_queued++] = (uint16_t)(lane - worker->lanes);
    lane->queued = true;
}

/* [Note: asking] A packet that is late is not sent again, since it may only be late: that would make all others later.
 * The worker asks. Answers do not overtake what was sent before them, so NEED and READY prove a loss, where packets keep
 * their order, and cost little where they do not. Only then does a contribution go out, or a result come, again. */
static void ask(struct plait_worker *worker, struct lane *lane, uint8_t kind) {
    lane->ask = *lane->packet;
    lane->ask.kind = kind;
    lane->ask.length = 0;
    lane->ask.size = ++lane->asked;
    lane->asks = true;
    enqueue(worker, lane);
}

static void send_again(struct plait_worker *worker, struct lane *lane) {
    lane->asked++; /* answers to what was asked before no longer count */
    lane->asks = false;
    worker->report.retransmitted++;
    enqueue(worker, lane);
}

static void start(struct plait_worker *worker, uint64_t item, double time) {
    struct lane *lane = &worker->lanes[(worker->base + item) % worker->ticket.slots];
    lane->item = item;
    lane->outstanding = true;
    worker->num_outstanding++;
    lane->tries = 0;
    lane->asks = false;
    lane->heard = time;
    write_item(worker, lane);
    enqueue(worker, lane);
}

/* Returns 0 where memory is short. `out` is written while `in` is still read, so they must not overlap. */
int plait_worker_begin(struct plait_worker *worker, const float *in, float *out, uint64_t length, double patience) {
    worker->base += worker->items;
    worker->in = in;
    worker->out = out;
    worker->length = length;
    worker->patience = patience;
    worker->blocks = (length + worker->ticket.elements - 1) / worker->ticket.elements;
    if (worker->blocks > worker->room) {
        free(worker->exponents);
        free(worker->special);
        free(worker->specials);
        worker->exponents = malloc(worker->blocks);
        worker->special = malloc(worker->blocks);
        worker->specials = malloc(worker->blocks * sizeof *worker->specials);
        worker->room = worker->exponents && worker->special && worker->specials ? worker->blocks : 0;
        if (!worker->room)
            return 0;
    }
    worker->items = 1 + worker->blocks;
    worker->num_specials = worker->done = 0;
    worker->report.here = 0;
    worker->progress = now();
    start(worker, 0, worker->progress);
    return 1;
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* With the window full a packet waits for a window of others in turn: a round trip is window / rate. Where packets are
 * lost, many round trips are those of others' losses; the lower quartile is of those that went well. */
static void measure(struct plait_worker *worker, double round_trip) {
    worker->samples[worker->num_samples++ % SAMPLES] = (float)round_trip;
    if (worker->num_samples % (SAMPLES / 4))
        return;
    float sorted[SAMPLES];
    unsigned n = worker->num_samples < SAMPLES ? worker->num_samples : SAMPLES;
    memcpy(sorted, worker->samples, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, ascending);
    double timeout = ROUND_TRIPS * sorted[n / 4];
    worker->report.round_trip = sorted[n / 4];
    worker->timeout = timeout < SHORTEST_TIMEOUT ? SHORTEST_TIMEOUT : timeout;
}

static void learn(struct plait_worker *worker, uint64_t block, int exponent, int special) {
    worker->exponents[block] = (int8_t)exponent;
    worker->special[block] = special != 0;
}

static void start_specials(struct plait_worker *worker, double time) {
    for (uint64_t block = 0; block < worker->blocks; block++)
        if (worker->special[block])
            worker->specials[worker->num_specials++] = block;
    worker->items += worker->num_specials;
    for (uint64_t i = 0; i < worker->num_specials && i < worker->ticket.slots; i++)
        start(worker, 1 + worker->blocks + i, time);
}

static void finish_item(struct plait_worker *worker, uint64_t item, const struct plait_header *header, double time) {
    const int32_t *integers = (const int32_t *)(const void *)(header + 1);
    uint64_t slots = worker->ticket.slots, elements = worker->ticket.elements;
    worker->done++;
    if (item == 0) {
        for (uint64_t block = 0; block < opened(worker); block++)
            learn(worker, block, integers[2 * block], integers[2 * block + 1]);
        for (uint64_t first = 1; first <= worker->blocks && first <= slots; first++)
            start(worker, first, time);
        return;
    }
    if (item > worker->blocks) {
        uint64_t block = worker->specials[item - 1 - worker->blocks];
        plait_decode_special(integers, worker->out + block * elements, header->length);
        if (item + slots < worker->items)
            start(worker, item + slots, time);
        return;
    }
    uint64_t block = item - 1;
    plait_decode(integers, worker->out + block * elements, header->length,
                 plait_scale(worker->exponents[block], worker->ticket.summands));
    if (block + slots < worker->blocks) {
        learn(worker, block + slots, header->exponent, header->special);
        start(worker, item + slots, time);
    }
    if (worker->done == 1 + worker->blocks)
        start_specials(worker, time);
}

/* An answer about a chunk that is outstanding. */
static enum plait_outcome hear(struct plait_worker *worker, struct lane *lane, const struct plait_header *header,
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
    struct lane *lane = NULL;
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
    finish_item(worker, lane->item, header, time);
    return PLAIT_PENDING;
}

/* False where the socket takes no more for now. */
static bool flush(struct plait_worker *worker, double time) {
    while (worker->num_queued) {
        unsigned taken = 0, wanted = 0;
        for (; taken < worker->num_queued && wanted < BATCH; taken++) {
            struct lane *lane = &worker->lanes[worker->queue[taken]];
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
            struct lane *lane = &worker->lanes[worker->queue[i]];
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

static double deadline_of(const struct plait_worker *worker, const struct lane *lane) {
    double wait = worker->timeout * (double)(1u << (lane->tries < 8 ? lane->tries - 1 : 7));
    double longest = worker->timeout > LONGEST_TIMEOUT ? worker->timeout : LONGEST_TIMEOUT;
    return lane->sent + (wait < longest ? wait : longest);
}

/* Asks about what is overdue; `*next` becomes the time to look again. */
static enum plait_outcome check_times(struct plait_worker *worker, double time, double *next) {
    *next = time + LONGEST_SLEEP;
    for (unsigned i = 0; i < worker->ticket.slots; i++) {
        struct lane *lane = &worker->lanes[i];
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
    int n = recvmmsg(worker->socket, worker->incoming, BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < n; i++) {
        enum plait_outcome outcome = take(worker, (const void *)worker->parts[i].iov_base,
                                          worker->incoming[i].msg_len, time);
        worker->report.received++;
        if (outcome != PLAIT_PENDING)
            return outcome;
    }
    return PLAIT_PENDING;
}

/* To be woken for every packet costs more than to handle it. With half a window or more under way, a sixteenth of the
 * round trip later there are several. */
static void gather(const struct plait_worker *worker) {
    double pause = worker->report.round_trip / 16;
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
