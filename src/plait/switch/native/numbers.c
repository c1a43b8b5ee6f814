/* Fixed point with one scale for a block, a power of two, so that scaling itself is exact.
 *
 * Values of a block are less than 2^(e+1) in size, e the largest exponent among all workers. Of n workers each sends
 * round(x 2^p), p = 29 - e - ceil(log2 n): at most 2^30 / n in size, so no sum of n of them leaves 32 bits. Rounding
 * errs by half a unit, 2^(e - 30 + ceil(log2 n)), for each worker. p is at most 149, for there every float is whole. */
#include "numbers.h"

#include <math.h>
#include <string.h>

#include "protocol.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_WIDER_VECTORS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_WIDER_VECTORS
#endif

#define INFINITE 0x7f800000
#define LARGEST_SCALE 149

static int32_t bits_of(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

FOR_WIDER_VECTORS static int32_t largest_bits(const float *values, size_t length) {
    int32_t largest = 0;
    for (size_t i = 0; i < length; i++) { /* without its sign a float orders as its bits do */
        int32_t bits = bits_of(values[i]) & 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

struct plait_bound plait_bound(const float *values, size_t length) {
    int32_t largest = largest_bits(values, length);
    int special = largest >= INFINITE;
    if (special) {
        largest = 0;
        for (size_t i = 0; i < length; i++) {
            int32_t bits = bits_of(values[i]) & 0x7fffffff;
            if (bits < INFINITE && bits > largest)
                largest = bits;
        }
    }
    return (struct plait_bound){(largest >> 23) - 127, special};
}

int plait_scale(int exponent, unsigned summands) {
    int bits = 0;
    while ((1u << bits) < summands)
        bits++;
    int scale = 29 - exponent - bits;
    return scale < LARGEST_SCALE ? scale : LARGEST_SCALE;
}

/* 2^scale as two factors, since a float reaches only 2^127. */
static void factors(int scale, float *first, float *second) {
    int large = scale > 126 ? 126 : scale < -126 ? -126 : scale;
    *first = ldexpf(1.0f, large);
    *second = ldexpf(1.0f, scale - large);
}

FOR_WIDER_VECTORS void plait_encode(const float *restrict values, int32_t *restrict integers, size_t length, int scale,
                                    int special) {
    float first, second;
    factors(scale, &first, &second);
    if (special) { /* what is not finite goes the second way, see plait_encode_special */
        for (size_t i = 0; i < length; i++)
            integers[i] = isfinite(values[i]) ? (int32_t)rintf(values[i] * first * second) : 0;
        return;
    }
    for (size_t i = 0; i < length; i++)
        integers[i] = (int32_t)rintf(values[i] * first * second);
}

FOR_WIDER_VECTORS void plait_decode(const int32_t *restrict integers, float *restrict values, size_t length,
                                    int scale) {
    float first, second;
    factors(-scale, &first, &second);
    for (size_t i = 0; i < length; i++)
        values[i] = (float)integers[i] * first * second;
}

/* Counts of NaN, +inf and -inf, ten bits each, which any sum of up to 1023 workers leaves apart. */
void plait_encode_special(const float *values, int32_t *codes, size_t length) {
    for (size_t i = 0; i < length; i++)
        codes[i] = isnan(values[i]) ? 1 : !isinf(values[i]) ? 0 : values[i] > 0 ? 1 << 10 : 1 << 20;
}

/* Overwrites what a float sum would not deliver as finite; leaves the rest alone. */
void plait_decode_special(const int32_t *codes, float *values, size_t length) {
    for (size_t i = 0; i < length; i++) {
        int any_nan = codes[i] & 1023, up = codes[i] >> 10 & 1023, down = codes[i] >> 20 & 1023;
        if (any_nan || (up && down))
            values[i] = NAN;
        else if (up || down)
            values[i] = up ? INFINITY : -INFINITY;
    }
}
