/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/state_file.h"

#include "engine/model/fingerprint.h"
#include "engine/state_image.h"
#include "lib/base/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const unsigned char MAGIC[8] = {0x89, 'R', 'G', 'L', '\r', '\n', 0x1a, '\n'};

enum {
    FIXED_BYTES = 72, /* of the head, before the directory */
    ENTRY_BYTES = 24, /* of the directory */
    CHECKSUM_BYTES = 8,
    LAYOUT_FIXED_BYTES = 24,
    PART_BYTES = 48,
    SECTION_OPTIONAL = 1, /* flag: who does not know the section skips it */
    LEAST_HEAD_BYTES = FIXED_BYTES + CHECKSUM_BYTES,
};

/* In this order in the file, each at most once. */
enum section_kind {
    SECTION_META = 1,
    SECTION_TOKENS,
    SECTION_LAYOUT,
    SECTION_STATE,
    SECTION_LOGITS,
    SECTION_END
};
static const char *const section_names[] = {"", "META", "TOKENS", "LAYOUT", "STATE", "LOGITS"};

/* The number formats of the file are those of enum kv_format. */
_Static_assert(KV_F32 == 1 && KV_F16 == 2 && KV_BF16 == 3, "numbers of a file format");

static const char *part_name(enum state_part_kind kind)
{
    switch (kind) {
#define PART_CASE(value, number, name, traits) \
    case value:                                \
        return name;
        STATE_PARTS(PART_CASE)
#undef PART_CASE
    }
    return "part";
}

static uint64_t padded(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

/* ---- reading: the file against itself ---- */

struct reader {
    struct state_file *out;
    const unsigned char *bytes; /* [size], of file_bytes */
    size_t size;
    uint64_t file_bytes;
    size_t head_bytes;
    uint32_t num_sections;
};

static int truncated(uint64_t expected, uint64_t got, struct error *err)
{
    return error_set(err, ERROR_INVALID,
                     "state file: truncated: expected %" PRIu64 " bytes, got %" PRIu64, expected,
                     got);
}

static int check_sum(const char *what, const void *bytes, size_t size, uint64_t expected,
                     struct error *err)
{
    uint64_t got = XXH3_64bits(bytes, size);
    if (got == expected)
        return 0;
    return error_set(err, ERROR_INVALID,
                     "state file: corrupt: %s: expected checksum %016" PRIx64 ", got %016" PRIx64,
                     what, expected, got);
}

/* Magic, length and checksum of the head, which no version changes; then the version. */
static int read_frame(struct reader *r, struct error *err)
{
    if (r->size > 0 &&
        memcmp(r->bytes, MAGIC, r->size < sizeof MAGIC ? r->size : sizeof MAGIC) != 0)
        return error_set(err, ERROR_INVALID,
                         "state file: byte 0: expected 89 52 47 4c 0d 0a 1a 0a: it is no state "
                         "file");
    if (r->size < LEAST_HEAD_BYTES)
        return truncated(LEAST_HEAD_BYTES, r->size, err);
    r->head_bytes = read_u32(r->bytes + 12);
    if (r->head_bytes < LEAST_HEAD_BYTES || r->head_bytes > STATE_FILE_MAX_HEAD_BYTES)
        return error_set(err, ERROR_INVALID,
                         "state file: corrupt: byte 12: expected a head of %d to %d bytes, got %zu",
                         LEAST_HEAD_BYTES, STATE_FILE_MAX_HEAD_BYTES, r->head_bytes);
    if (r->size < r->head_bytes)
        return truncated(r->head_bytes, r->size, err);
    size_t summed = r->head_bytes - CHECKSUM_BYTES;
    if (check_sum("head", r->bytes, summed, read_u64(r->bytes + summed), err) != 0)
        return -1;
    uint32_t version = read_u32(r->bytes + 8);
    if (version > STATE_FILE_VERSION)
        return error_set(err, ERROR_INVALID,
                         "state file: version %" PRIu32 " is newer than this server's %d", version,
                         STATE_FILE_VERSION);
    if (version == 0)
        return error_set(err, ERROR_INVALID, "state file: byte 8: expected version 1 to %d, got 0",
                         STATE_FILE_VERSION);
    return 0;
}

static int read_head(struct reader *r, struct error *err)
{
    struct state_file *out = r->out;
    const unsigned char *head = r->bytes;
    r->num_sections = read_u32(head + 20);
    out->file_bytes = read_u64(head + 24);
    memcpy(out->fingerprint, head + 32, sizeof out->fingerprint);
    out->position = (int64_t)read_u64(head + 48);
    out->num_tokens = (int64_t)read_u64(head + 56);
    out->vocab_size = (int32_t)read_u32(head + 64);
    if (read_u32(head + 16) != 0 || read_u32(head + 68) != 0)
        return error_set(err, ERROR_INVALID, "state file: bytes 16 and 68: expected 0");
    if (r->num_sections != (r->head_bytes - LEAST_HEAD_BYTES) / ENTRY_BYTES ||
        (r->head_bytes - LEAST_HEAD_BYTES) % ENTRY_BYTES != 0)
        return error_set(err, ERROR_INVALID,
                         "state file: byte 20: %" PRIu32 " sections in a head of %zu bytes",
                         r->num_sections, r->head_bytes);
    if (out->file_bytes > r->file_bytes)
        return truncated(out->file_bytes, r->file_bytes, err);
    if (out->file_bytes < r->file_bytes)
        return error_set(err, ERROR_INVALID,
                         "state file: expected %" PRIu64 " bytes, got %" PRIu64
                         ": something follows its end",
                         out->file_bytes, r->file_bytes);
    if (out->position < 0 || out->num_tokens < out->position ||
        out->num_tokens > INT64_MAX / (int64_t)sizeof(int32_t))
        return error_set(err, ERROR_INVALID,
                         "state file: byte 48: position %" PRId64 " of %" PRId64 " tokens",
                         out->position, out->num_tokens);
    if (out->vocab_size < 1)
        return error_set(err, ERROR_INVALID,
                         "state file: byte 64: expected a vocabulary, got %" PRId32 " tokens",
                         out->vocab_size);
    return 0;
}

static struct state_file_section *section_of(struct state_file *file, uint32_t kind)
{
    struct state_file_section *const sections[] = {NULL,          &file->meta,  &file->tokens,
                                                   &file->layout, &file->state, &file->logits};
    return kind >= SECTION_META && kind < SECTION_END ? sections[kind] : NULL;
}

/* One entry of the directory and, when it is at hand, the section, which begins at *offset. */
static int read_section(struct reader *r, uint32_t index, uint32_t *last_kind, size_t *offset,
                        struct error *err)
{
    const unsigned char *entry = r->bytes + FIXED_BYTES + (size_t)index * ENTRY_BYTES;
    uint32_t kind = read_u32(entry), flags = read_u32(entry + 4);
    uint64_t size = read_u64(entry + 8), checksum = read_u64(entry + 16);
    struct state_file_section *section = section_of(r->out, kind);
    char name[32] = "";
    if (section != NULL)
        snprintf(name, sizeof name, "%s", section_names[kind]);
    else
        snprintf(name, sizeof name, "section %" PRIu32, kind);
    if ((flags & ~(uint32_t)SECTION_OPTIONAL) != 0)
        return error_set(err, ERROR_INVALID, "state file: %s: unknown flags %" PRIx32, name, flags);
    if (section == NULL && (flags & SECTION_OPTIONAL) == 0)
        return error_set(err, ERROR_INVALID,
                         "state file: %s: this server does not know it, and may not skip it", name);
    if (section != NULL && kind <= *last_kind)
        return error_set(err, ERROR_INVALID, "state file: %s: it comes after %s", name,
                         section_names[*last_kind]);
    if (size > r->file_bytes - *offset || padded(size) > r->file_bytes - *offset)
        return error_set(err, ERROR_INVALID,
                         "state file: %s: %" PRIu64 " bytes at byte %zu of %" PRIu64, name, size,
                         *offset, r->file_bytes);
    bool at_hand = *offset + padded(size) <= r->size;
    if (at_hand) {
        if (check_sum(name, r->bytes + *offset, size, checksum, err) != 0)
            return -1;
        for (uint64_t i = size; i < padded(size); i++)
            if (r->bytes[*offset + i] != 0)
                return error_set(err, ERROR_INVALID,
                                 "state file: corrupt: %s: expected zeros behind it", name);
    }
    if (section != NULL) {
        *section = (struct state_file_section){.present = true,
                                               .bytes = at_hand ? r->bytes + *offset : NULL,
                                               .offset = *offset,
                                               .size = size};
        *last_kind = kind;
    }
    *offset += padded(size);
    return 0;
}

/* The state's size is what its layout says. */
static int check_state_size(const struct state_file *file, struct error *err)
{
    const struct state_file_section *layout = &file->layout;
    if (layout->bytes == NULL)
        return 0;
    if (layout->size < LAYOUT_FIXED_BYTES)
        return error_set(err, ERROR_INVALID, "state file: LAYOUT: expected %d bytes, got %zu",
                         LAYOUT_FIXED_BYTES, layout->size);
    uint64_t slot = read_u64(layout->bytes), page = read_u64(layout->bytes + 8);
    uint32_t page_tokens = read_u32(layout->bytes + 16), parts = read_u32(layout->bytes + 20);
    if ((layout->size - LAYOUT_FIXED_BYTES) % PART_BYTES != 0 ||
        parts != (layout->size - LAYOUT_FIXED_BYTES) / PART_BYTES)
        return error_set(err, ERROR_INVALID, "state file: LAYOUT: %" PRIu32 " parts in %zu bytes",
                         parts, layout->size);
    if (page_tokens == 0)
        return error_set(err, ERROR_INVALID, "state file: LAYOUT: pages of 0 tokens");
    uint64_t pages = ((uint64_t)file->position + page_tokens - 1) / page_tokens, expected;
    if (__builtin_mul_overflow(pages, page, &expected) ||
        __builtin_add_overflow(expected, slot, &expected) || expected != file->state.size)
        return error_set(err, ERROR_INVALID,
                         "state file: STATE: expected %" PRIu64 " + %" PRIu64 " * %" PRIu64
                         " bytes, got %zu",
                         slot, pages, page, file->state.size);
    return 0;
}

/* What must be there, and how long, from what the head says. */
static int check_sizes(const struct state_file *file, struct error *err)
{
    bool state = file->position > 0;
    if (file->meta.size > STATE_FILE_MAX_META_BYTES)
        return error_set(err, ERROR_INVALID, "state file: META: expected at most %d bytes, got %zu",
                         STATE_FILE_MAX_META_BYTES, file->meta.size);
    if (!file->tokens.present || file->tokens.size != (uint64_t)file->num_tokens * sizeof(int32_t))
        return error_set(err, ERROR_INVALID,
                         "state file: TOKENS: expected %" PRId64 " tokens, got %zu bytes",
                         file->num_tokens, file->tokens.size);
    if (file->layout.present != state || file->state.present != state)
        return error_set(err, ERROR_INVALID,
                         "state file: at position %" PRId64 " expected %s LAYOUT and STATE",
                         file->position, state ? "a" : "no");
    if (file->logits.present &&
        (file->num_tokens == 0 || file->logits.size != (uint64_t)file->vocab_size * sizeof(float)))
        return error_set(err, ERROR_INVALID,
                         "state file: LOGITS: expected %" PRId32 " numbers, got %zu bytes",
                         file->vocab_size, file->logits.size);
    return check_state_size(file, err);
}

int state_file_parse_part(struct state_file *out, const void *bytes, size_t size,
                          uint64_t file_bytes, struct error *err)
{
    *out = (struct state_file){0};
    struct reader r = {.out = out, .bytes = bytes, .size = size, .file_bytes = file_bytes};
    if (read_frame(&r, err) != 0 || read_head(&r, err) != 0)
        return -1;
    uint32_t last_kind = 0;
    size_t offset = r.head_bytes;
    for (uint32_t i = 0; i < r.num_sections; i++)
        if (read_section(&r, i, &last_kind, &offset, err) != 0)
            return -1;
    if (offset != file_bytes)
        return error_set(err, ERROR_INVALID,
                         "state file: expected sections to byte %" PRIu64 ", got them to byte %zu",
                         file_bytes, offset);
    return check_sizes(out, err);
}

int state_file_parse(struct state_file *out, const void *bytes, size_t size, struct error *err)
{
    return state_file_parse_part(out, bytes, size, size, err);
}

/* ---- reading: the file against an engine ---- */

static const unsigned char *part_at(const struct state_file *file, int index)
{
    return file->layout.bytes + LAYOUT_FIXED_BYTES + (size_t)index * PART_BYTES;
}

/* The KV format the file's writer had; the layout's own where no part is a page. */
static enum kv_format kv_of(const struct state_file *file, const struct state_layout *layout)
{
    for (int i = 0; i < layout->num_parts; i++)
        if (state_part_pages(&layout->parts[i]))
            return (enum kv_format)read_u32(part_at(file, i) + 8);
    return layout->kv;
}

/* The bytes of a part, or of pages, when their elements are of another KV format. */
static uint64_t in_format(uint64_t bytes, enum kv_format from, enum kv_format to)
{
    return bytes / ops_kv_bytes(from) * ops_kv_bytes(to);
}

static void encode_part(const struct state_part *part, enum kv_format own, enum kv_format kv,
                        unsigned char *out)
{
    bool page = state_part_pages(part);
    const uint32_t numbers[8] = {(uint32_t)part->layer,  part->kind,
                                 page ? kv : KV_F32,     (uint32_t)part->heads,
                                 (uint32_t)part->rows,   (uint32_t)part->features,
                                 (uint32_t)part->window, 0};
    const uint64_t places[2] = {page ? in_format(part->offset, own, kv) : part->offset,
                                page ? in_format(part->head_bytes, own, kv) : part->head_bytes};
    memcpy(out, numbers, sizeof numbers);
    memcpy(out + sizeof numbers, places, sizeof places);
}

static int check_part(const struct state_file *file, const struct state_layout *layout, int index,
                      struct error *err)
{
    static const char *const names[] = {"layer", "kind",     "format", "heads",
                                        "rows",  "features", "window", "reserved"};
    const struct state_part *part = &layout->parts[index];
    const unsigned char *got = part_at(file, index);
    unsigned char expected[PART_BYTES];
    encode_part(part, layout->kv, kv_of(file, layout), expected);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (read_u32(got + 4 * i) != read_u32(expected + 4 * i))
            return error_set(err, ERROR_INVALID,
                             "state file: LAYOUT: part %d (%s of layer %d): %s: expected %" PRIu32
                             ", got %" PRIu32,
                             index, part_name(part->kind), part->layer, names[i],
                             read_u32(expected + 4 * i), read_u32(got + 4 * i));
    if (memcmp(got, expected, PART_BYTES) != 0)
        return error_set(err, ERROR_INVALID,
                         "state file: LAYOUT: part %d (%s of layer %d): expected %" PRIu64
                         " bytes a head at %" PRIu64 ", got %" PRIu64 " at %" PRIu64,
                         index, part_name(part->kind), part->layer, read_u64(expected + 40),
                         read_u64(expected + 32), read_u64(got + 40), read_u64(got + 32));
    return 0;
}

static int check_layout(const struct state_file *file, const struct state_layout *layout,
                        struct error *err)
{
    const unsigned char *bytes = file->layout.bytes;
    uint32_t parts = read_u32(bytes + 20);
    if (parts != (uint32_t)layout->num_parts)
        return error_set(err, ERROR_INVALID, "state file: LAYOUT: expected %d parts, got %" PRIu32,
                         layout->num_parts, parts);
    enum kv_format kv = kv_of(file, layout);
    if (kv != KV_F32 && kv != KV_F16 && kv != KV_BF16)
        return error_set(err, ERROR_INVALID,
                         "state file: LAYOUT: KV format: expected 1 to 3, got %d", (int)kv);
    for (int i = 0; i < layout->num_parts; i++)
        if (check_part(file, layout, i, err) != 0)
            return -1;
    uint64_t page_bytes = in_format(layout->page_bytes, layout->kv, kv);
    if (read_u64(bytes) != layout->slot_bytes || read_u64(bytes + 8) != page_bytes ||
        read_u32(bytes + 16) != OPS_TILE)
        return error_set(err, ERROR_INVALID,
                         "state file: LAYOUT: expected a slot of %zu bytes and pages of %" PRIu64
                         " for %d tokens, got %" PRIu64 ", %" PRIu64 ", %" PRIu32,
                         layout->slot_bytes, page_bytes, OPS_TILE, read_u64(bytes),
                         read_u64(bytes + 8), read_u32(bytes + 16));
    return 0;
}

static int check_tokens(const struct state_file *file, struct error *err)
{
    for (int64_t i = 0; file->tokens.bytes != NULL && i < file->num_tokens; i++) {
        int32_t token = (int32_t)read_u32(file->tokens.bytes + 4 * i);
        if (token < 0 || token >= file->vocab_size)
            return error_set(err, ERROR_INVALID,
                             "state file: TOKENS: token %" PRId64 ": expected 0 to %" PRId32
                             ", got %" PRId32,
                             i, file->vocab_size - 1, token);
    }
    return 0;
}

static const char *hex(const unsigned char *bytes, char text[2 * FINGERPRINT_BYTES + 1])
{
    for (int i = 0; i < FINGERPRINT_BYTES; i++)
        snprintf(text + 2 * (size_t)i, 3, "%02x", bytes[i]);
    return text;
}

int state_file_check(const struct state_file *file, const struct engine *engine, struct error *err)
{
    const struct engine_info *info = engine_info(engine);
    char expected[2 * FINGERPRINT_BYTES + 1], got[2 * FINGERPRINT_BYTES + 1];
    if (memcmp(file->fingerprint, engine_fingerprint(engine), FINGERPRINT_BYTES) != 0)
        return error_set(err, ERROR_INVALID,
                         "state file: it is of another model: expected fingerprint %s, got %s",
                         hex(engine_fingerprint(engine), expected), hex(file->fingerprint, got));
    if (file->vocab_size != info->vocab_size)
        return error_set(err, ERROR_INVALID,
                         "state file: expected a vocabulary of %" PRId32 " tokens, got %" PRId32,
                         info->vocab_size, file->vocab_size);
    if (info->max_positions > 0 && file->num_tokens > info->max_positions)
        return error_set(err, ERROR_INVALID,
                         "state file: expected at most %" PRId64 " tokens, got %" PRId64,
                         info->max_positions, file->num_tokens);
    if (file->layout.bytes != NULL && check_layout(file, engine_state_layout(engine), err) != 0)
        return -1;
    return check_tokens(file, err);
}

void state_file_tokens(const struct state_file *file, int32_t *tokens)
{
    memcpy(tokens, file->tokens.bytes, file->tokens.size);
}

void state_file_image(const struct state_file *file, const struct engine *engine, void *image)
{
    const struct state_layout *layout = engine_state_layout(engine);
    enum kv_format kv = kv_of(file, layout);
    size_t pages = file->state.size - layout->slot_bytes;
    memcpy(image, file->state.bytes, layout->slot_bytes);
    state_image_convert(kv, file->state.bytes + layout->slot_bytes, layout->kv,
                        (char *)image + layout->slot_bytes, pages / ops_kv_bytes(kv));
}

void state_file_logits(const struct state_file *file, float *logits)
{
    memcpy(logits, file->logits.bytes, file->logits.size);
}

/* ---- writing ---- */

struct section {
    uint32_t kind, flags;
    const void *bytes;
    uint64_t size;
};

enum { MAX_SECTIONS = SECTION_END - 1 };

static uint64_t layout_bytes(const struct state_layout *layout)
{
    return LAYOUT_FIXED_BYTES + (uint64_t)layout->num_parts * PART_BYTES;
}

/* The sections of a file, in order; their number. */
static int plan_sections(const struct engine *engine, const struct state_file_source *source,
                         const void *layout, struct section sections[MAX_SECTIONS])
{
    int count = 0;
    if (source->meta_bytes > 0)
        sections[count++] =
            (struct section){SECTION_META, SECTION_OPTIONAL, source->meta, source->meta_bytes};
    sections[count++] = (struct section){SECTION_TOKENS, 0, source->tokens,
                                         (uint64_t)source->num_tokens * sizeof(int32_t)};
    if (source->position > 0) {
        sections[count++] =
            (struct section){SECTION_LAYOUT, 0, layout, layout_bytes(engine_state_layout(engine))};
        sections[count++] = (struct section){SECTION_STATE, 0, source->image,
                                             state_image_bytes(engine, source->position)};
    }
    if (source->logits != NULL)
        sections[count++] =
            (struct section){SECTION_LOGITS, SECTION_OPTIONAL, source->logits,
                             (uint64_t)engine_info(engine)->vocab_size * sizeof(float)};
    return count;
}

static uint64_t head_bytes(int num_sections)
{
    return LEAST_HEAD_BYTES + (uint64_t)num_sections * ENTRY_BYTES;
}

static uint64_t file_bytes(const struct section *sections, int count)
{
    uint64_t bytes = head_bytes(count);
    for (int i = 0; i < count; i++)
        bytes += padded(sections[i].size);
    return bytes;
}

uint64_t state_file_bytes(const struct engine *engine, const struct state_file_source *source)
{
    struct section sections[MAX_SECTIONS];
    int count = plan_sections(engine, source, NULL, sections);
    return file_bytes(sections, count);
}

static void put_u32(unsigned char *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
}

static void put_u64(unsigned char *at, uint64_t value)
{
    memcpy(at, &value, sizeof value);
}

static void encode_layout(const struct state_layout *layout, unsigned char *out)
{
    put_u64(out, layout->slot_bytes);
    put_u64(out + 8, layout->page_bytes);
    put_u32(out + 16, OPS_TILE);
    put_u32(out + 20, (uint32_t)layout->num_parts);
    for (int i = 0; i < layout->num_parts; i++)
        encode_part(&layout->parts[i], layout->kv, layout->kv,
                    out + LAYOUT_FIXED_BYTES + (size_t)i * PART_BYTES);
}

/* The oldest version that has all its parts: servers before 2 knew no convolutions. */
static uint32_t version_of(const struct engine *engine, const struct state_file_source *source)
{
    const struct state_layout *layout = engine_state_layout(engine);
    for (int i = 0; source->position > 0 && i < layout->num_parts; i++)
        if (state_part_is(&layout->parts[i], STATE_IN_VERSION_2))
            return 2;
    return 1;
}

static void encode_head(const struct engine *engine, const struct state_file_source *source,
                        const struct section *sections, int count, unsigned char *out)
{
    size_t bytes = head_bytes(count);
    memset(out, 0, bytes);
    memcpy(out, MAGIC, sizeof MAGIC);
    put_u32(out + 8, version_of(engine, source));
    put_u32(out + 12, (uint32_t)bytes);
    put_u32(out + 20, (uint32_t)count);
    put_u64(out + 24, file_bytes(sections, count));
    memcpy(out + 32, engine_fingerprint(engine), FINGERPRINT_BYTES);
    put_u64(out + 48, (uint64_t)source->position);
    put_u64(out + 56, (uint64_t)source->num_tokens);
    put_u32(out + 64, (uint32_t)engine_info(engine)->vocab_size);
    for (int i = 0; i < count; i++) {
        unsigned char *entry = out + FIXED_BYTES + (size_t)i * ENTRY_BYTES;
        put_u32(entry, sections[i].kind);
        put_u32(entry + 4, sections[i].flags);
        put_u64(entry + 8, sections[i].size);
        put_u64(entry + 16, XXH3_64bits(sections[i].bytes, sections[i].size));
    }
    put_u64(out + bytes - CHECKSUM_BYTES, XXH3_64bits(out, bytes - CHECKSUM_BYTES));
}

int state_file_write(const struct engine *engine, const struct state_file_source *source,
                     int (*write)(void *context, const void *bytes, size_t size, struct error *err),
                     void *context, struct error *err)
{
    static const unsigned char zeros[8] = {0};
    const struct state_layout *layout = engine_state_layout(engine);
    unsigned char head[LEAST_HEAD_BYTES + MAX_SECTIONS * ENTRY_BYTES];
    struct section sections[MAX_SECTIONS];
    unsigned char *table = malloc(layout_bytes(layout));
    if (table == NULL)
        return error_set(err, ERROR_NO_MEMORY, "state file: no memory for its layout");
    encode_layout(layout, table);
    int count = plan_sections(engine, source, table, sections);
    encode_head(engine, source, sections, count, head);
    int result = write(context, head, head_bytes(count), err);
    for (int i = 0; i < count && result == 0; i++) {
        size_t padding = padded(sections[i].size) - sections[i].size;
        if (sections[i].size > 0)
            result = write(context, sections[i].bytes, sections[i].size, err);
        if (result == 0 && padding > 0)
            result = write(context, zeros, padding, err);
    }
    free(table);
    return result;
}
