/* What a worker sends of a tensor, and what it makes of the answers.
 *
 * Items: the opening (largest exponents of the first blocks, a MAX), then one block after the other (a SUM; each carries
 * the exponent of the block that takes its slot next, so scales are agreed without rounds of their own), then once more
 * those blocks that hold a NaN or an infinity anywhere. */
#include "worker.h"

#include <stdlib.h>

#include "numbers.h"

int plait_items_begin(struct plait_worker *worker, const float *in, float *out, uint64_t length) {
    worker->in = in;
    worker->out = out;
    worker->length = length;
    worker->blocks = (length + worker->ticket.elements - 1) / worker->ticket.elements;
    worker->num_specials = worker->done = 0;
    if (worker->blocks > worker->room) {
        plait_items_free(worker);
        worker->exponents = malloc(worker->blocks);
        worker->special = malloc(worker->blocks);
        worker->specials = malloc(worker->blocks * sizeof *worker->specials);
        worker->room = worker->exponents && worker->special && worker->specials ? worker->blocks : 0;
        if (!worker->room)
            return 0;
    }
    worker->items = 1 + worker->blocks;
    return 1;
}

void plait_items_free(struct plait_worker *worker) {
    free(worker->exponents);
    free(worker->special);
    free(worker->specials);
    worker->exponents = NULL;
    worker->special = NULL;
    worker->specials = NULL;
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

void plait_items_write(struct plait_worker *worker, struct plait_lane *lane) {
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
        plait_worker_start(worker, 1 + worker->blocks + i, time);
}

void plait_items_finish(struct plait_worker *worker, uint64_t item, const struct plait_header *header, double time) {
    const int32_t *integers = (const int32_t *)(const void *)(header + 1);
    uint64_t slots = worker->ticket.slots, elements = worker->ticket.elements;
    worker->done++;
    if (item == 0) {
        for (uint64_t block = 0; block < opened(worker); block++)
            learn(worker, block, integers[2 * block], integers[2 * block + 1]);
        for (uint64_t first = 1; first <= worker->blocks && first <= slots; first++)
            plait_worker_start(worker, first, time);
        return;
    }
    if (item > worker->blocks) {
        uint64_t block = worker->specials[item - 1 - worker->blocks];
        plait_decode_special(integers, worker->out + block * elements, header->length);
        if (item + slots < worker->items)
            plait_worker_start(worker, item + slots, time);
        return;
    }
    uint64_t block = item - 1;
    plait_decode(integers, worker->out + block * elements, header->length,
                 plait_scale(worker->exponents[block], worker->ticket.summands));
    if (block + slots < worker->blocks) {
        learn(worker, block + slots, header->exponent, header->special);
        plait_worker_start(worker, item + slots, time);
    }
    if (worker->done == 1 + worker->blocks)
        start_specials(worker, time);
}
