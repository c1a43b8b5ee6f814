/* The data plane's loop: packets in by recvmmsg, replies out by sendmmsg, many for one call. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "plane.h"

#define BATCH 64
#define QUEUE 256
#define FRAME 9216
#define HELD 16
#define BUSY 1000000 /* nanoseconds; woken more often than that, the switch lets packets gather for a pause: */
#define PAUSE 50000
#define SEND_PATIENCE 20 /* milliseconds; then the packet is lost, as on a full queue anywhere */

struct outgoing {
    struct plait_header header;
    int32_t map[2];
    struct iovec parts[2];
    struct sockaddr_in to;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(struct in_pktinfo))];
    } control;
};

struct held {
    uint8_t packet[FRAME];
    size_t bytes;
    unsigned countdown; /* packets that overtake this one; 0 where nothing is held */
};

struct server {
    struct plait_plane *plane;
    int socket;
    struct plait_faults faults;
    uint64_t random;
    unsigned queued, num_held;
    struct mmsghdr out[QUEUE], in[BATCH];
    struct outgoing outgoing[QUEUE];
    struct iovec parts[BATCH];
    struct held held[HELD];
    uint8_t packets[BATCH][FRAME];
};

static bool happens(struct server *server, uint32_t millionths) {
    if (!millionths)
        return false;
    uint64_t x = server->random; /* xorshift64 */
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    server->random = x;
    return (x >> 20) % 1000000u < millionths;
}

static void flush(struct server *server) {
    unsigned sent = 0;
    while (sent < server->queued) {
        int n = sendmmsg(server->socket, server->out + sent, server->queued - sent, MSG_DONTWAIT);
        if (n > 0) {
            sent += (unsigned)n;
            server->plane->counters[COUNT_SENT] += (unsigned)n;
            continue;
        }
        struct pollfd room = {.fd = server->socket, .events = POLLOUT};
        if (errno == EINTR || (errno == EAGAIN && poll(&room, 1, SEND_PATIENCE) > 0))
            continue;
        server->plane->counters[COUNT_UNSENT]++;
        sent++; /* this one cannot be sent; the next may go elsewhere */
    }
    server->queued = 0;
}

static void enqueue_once(struct server *server, const struct plait_reply *reply, const struct sockaddr_in *to,
                         struct in_addr source) {
    if (server->queued == QUEUE)
        flush(server);
    struct outgoing *one = &server->outgoing[server->queued];
    struct msghdr *message = &server->out[server->queued].msg_hdr;
    one->header = reply->header;
    one->to = *to;
    one->parts[0] = (struct iovec){&one->header, sizeof one->header};
    if (reply->values == reply->map)
        memcpy(one->map, reply->map, sizeof one->map);
    one->parts[1] = (struct iovec){reply->values == reply->map ? (void *)one->map : (void *)(uintptr_t)reply->values,
                                   reply->bytes};
    *message = (struct msghdr){.msg_name = &one->to, .msg_namelen = sizeof one->to, .msg_iov = one->parts};
    message->msg_iovlen = 2;
    if (source.s_addr) { /* a switch with many addresses answers from the one it was called by */
        struct in_pktinfo info = {.ipi_spec_dst = source};
        memset(&one->control, 0, sizeof one->control);
        message->msg_control = one->control.bytes;
        message->msg_controllen = sizeof one->control.bytes;
        struct cmsghdr *control = CMSG_FIRSTHDR(message);
        control->cmsg_level = IPPROTO_IP;
        control->cmsg_type = IP_PKTINFO;
        control->cmsg_len = CMSG_LEN(sizeof info);
        memcpy(CMSG_DATA(control), &info, sizeof info);
    }
    server->queued++;
}

static void enqueue(struct server *server, const struct plait_reply *reply, const struct sockaddr_in *to,
                    struct in_addr source) {
    if (happens(server, server->faults.loss)) {
        server->plane->counters[COUNT_LOST_ON_PURPOSE]++;
        return;
    }
    enqueue_once(server, reply, to, source);
    if (happens(server, server->faults.duplicate))
        enqueue_once(server, reply, to, source);
}

static void act(struct server *server, const uint8_t *packet, size_t bytes) {
    static const struct in_addr any = {0};
    struct plait_reply replies[2], *reply = replies;
    enum plait_verdict verdict = plait_take(server->plane, packet, bytes, replies);
    switch (verdict) {
    case PLAIT_EVERYONE:
        for (unsigned worker = 0; worker < reply->job->count; worker++)
            enqueue(server, reply, &reply->job->workers[worker], reply->job->sources[worker]);
        break;
    case PLAIT_UPWARD:
        enqueue(server, reply, &reply->job->parent.address, any);
        break;
    case PLAIT_FORWARD:
        enqueue(server, reply, &reply->job->parent.address, any);
        reply++;
        /* fall through */
    case PLAIT_ANSWER:
        enqueue(server, reply, &reply->job->workers[reply->worker], reply->job->sources[reply->worker]);
        break;
    case PLAIT_DROP:
    case PLAIT_HELD:
        break;
    }
}

static void hold(struct server *server, const uint8_t *packet, size_t bytes) {
    for (unsigned i = 0; i < HELD; i++) {
        struct held *one = &server->held[i];
        if (one->countdown)
            continue;
        memcpy(one->packet, packet, bytes);
        one->bytes = bytes;
        one->countdown = 2 + (unsigned)(server->random >> 32) % 30;
        server->num_held++;
        return;
    }
    act(server, packet, bytes);
}

static void release(struct server *server, bool all) {
    for (unsigned i = 0; server->num_held && i < HELD; i++) {
        struct held *one = &server->held[i];
        if (!one->countdown || (--one->countdown && !all))
            continue;
        one->countdown = 0;
        server->num_held--;
        act(server, one->packet, one->bytes);
    }
}

static void take(struct server *server, const uint8_t *packet, size_t bytes) {
    if (happens(server, server->faults.loss)) {
        server->plane->counters[COUNT_LOST_ON_PURPOSE]++;
        return;
    }
    if (happens(server, server->faults.reorder))
        hold(server, packet, bytes);
    else
        act(server, packet, bytes);
    if (happens(server, server->faults.duplicate))
        act(server, packet, bytes);
    release(server, false);
}

/* Nanoseconds since this was last asked. */
static int64_t since_last(struct timespec *last) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    int64_t passed = (time.tv_sec - last->tv_sec) * INT64_C(1000000000) + time.tv_nsec - last->tv_nsec;
    *last = time;
    return passed;
}

/* Runs until `stop` becomes readable. Returns 0, or an errno where the socket is of no use any more. */
int plait_serve(struct plait_plane *plane, int socket, int stop, struct plait_faults faults) {
    struct server *server = calloc(1, sizeof *server);
    struct timespec last = {0}, pause = {.tv_nsec = PAUSE};
    int error = 0;
    if (!server)
        return ENOMEM;
    server->plane = plane;
    server->socket = socket;
    server->faults = faults;
    server->random = faults.seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (unsigned i = 0; i < BATCH; i++) {
        server->parts[i] = (struct iovec){server->packets[i], FRAME};
        server->in[i].msg_hdr = (struct msghdr){.msg_iov = &server->parts[i], .msg_iovlen = 1};
    }
    for (;;) {
        int n = recvmmsg(socket, server->in, BATCH, MSG_DONTWAIT, NULL);
        if (n < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNREFUSED) {
            error = errno;
            break;
        }
        struct pollfd wait[2] = {{.fd = stop, .events = POLLIN}, {.fd = socket, .events = POLLIN}};
        if (n <= 0) {
            if (poll(wait, 2, server->num_held ? 1 : -1) == 0) {
                pthread_mutex_lock(&plane->lock);
                release(server, true);
                flush(server);
                pthread_mutex_unlock(&plane->lock);
            }
        } else if (n == BATCH) {
            poll(wait, 1, 0); /* never too busy to be stopped */
        }
        if (wait[0].revents)
            break;
        if (n <= 0) {
            if (since_last(&last) < BUSY)
                nanosleep(&pause, NULL);
            continue;
        }
        pthread_mutex_lock(&plane->lock);
        for (int i = 0; i < n; i++)
            take(server, server->packets[i], server->in[i].msg_len);
        flush(server);
        pthread_mutex_unlock(&plane->lock);
    }
    free(server);
    return error;
}
