/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: whether a sanitizer checks this build; sizes are then the least that touch the same
 * memory. */
#ifndef TESTS_UNIT_SANITIZED_H
#define TESTS_UNIT_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#endif
