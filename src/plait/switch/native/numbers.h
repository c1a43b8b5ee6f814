/* Between float32 and the fixed-point integers that a switch can add. */
#ifndef PLAIT_NUMBERS_H
#define PLAIT_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

struct plait_bound {
    int exponent; /* every finite value is less than 2^(exponent + 1) in size */
    int special;  /* not 0 where there is a NaN or an infinity */
};

struct plait_bound plait_bound(const float *values, size_t length);
int plait_scale(int exponent, unsigned summands);
void plait_encode(const float *values, int32_t *integers, size_t length, int scale, int special);
void plait_decode(const int32_t *integers, float *values, size_t length, int scale);
void plait_encode_special(const float *values, int32_t *codes, size_t length);
void plait_decode_special(const int32_t *codes, float *values, size_t length);

#endif
